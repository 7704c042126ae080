"""Models and pages for the tests of reports: the tiny backbone on the sample, one class with a hostile name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dca import Classifier, Session
from dca.model.inputs import as_dataset
from dca.report.reported_model import ReportedModel, prepare_report
from dca.runs.run import run
from dca.runs.spec import FitSpec

HOSTILE = "<script>alert(1)<"


@pytest.fixture(scope="session")
def hostile_photos(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """The photos with one class renamed to a script."""
    folder = tmp_path_factory.mktemp("hostile") / 'pho\'tos & "more"'
    shutil.copytree(photos, folder)
    for part in ("train", "test"):
        (folder / part / "guitar").rename(folder / part / HOSTILE)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, hostile_photos: Path, tiny_folder: Path) -> Path:
    """A closed form with a gallery."""
    spec = FitSpec(data=str(hostile_photos), backbone=str(tiny_folder))
    return run(spec, tmp_path_factory.mktemp("report") / "photos.dca", gallery=True).folder


@pytest.fixture(scope="session")
def session() -> Session:
    return Session(device="cpu")


@pytest.fixture(scope="session")
def model(model_folder: Path, tiny_folder: Path, session: Session) -> Classifier:
    return Classifier.from_pretrained(model_folder, backbone=tiny_folder, session=session)


@pytest.fixture(scope="session")
def tested(model: Classifier, model_folder: Path, hostile_photos: Path, session: Session) -> ReportedModel:
    """The model measured on the test images."""
    dataset = as_dataset(hostile_photos, None, for_evaluation=True)
    return prepare_report(model, "photos.dca", session, folder=model_folder, dataset=dataset, data=str(hostile_photos))


@pytest.fixture(scope="session")
def held_out(model: Classifier, model_folder: Path, session: Session) -> ReportedModel:
    """The model with what its fit knows."""
    return prepare_report(model, "photos.dca", session, folder=model_folder)
