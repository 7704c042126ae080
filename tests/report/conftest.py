"""Models and pages for the tests of reports: the tiny backbone on the sample, one class with a hostile name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dca import Classifier, Session
from dca.experiment.run import run
from dca.experiment.spec import Spec
from dca.model.inputs import as_dataset
from dca.report.subject import Subject, about

HOSTILE = "<script>alert(1)<"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


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
    spec = Spec(data=str(hostile_photos), backbone=str(tiny_folder))
    return run(spec, tmp_path_factory.mktemp("report") / "photos.dca", gallery=True).folder


@pytest.fixture(scope="session")
def session() -> Session:
    return Session(device="cpu")


@pytest.fixture(scope="session")
def model(model_folder: Path, tiny_folder: Path, session: Session) -> Classifier:
    return Classifier.from_pretrained(model_folder, backbone=tiny_folder, session=session)


@pytest.fixture(scope="session")
def tested(model: Classifier, model_folder: Path, hostile_photos: Path, session: Session) -> Subject:
    """The model measured on the test images."""
    dataset = as_dataset(hostile_photos, None, measuring=True)
    return about(model, "photos.dca", session, folder=model_folder, dataset=dataset, data=str(hostile_photos))


@pytest.fixture(scope="session")
def left_out(model: Classifier, model_folder: Path, session: Session) -> Subject:
    """The model with what its fit knows."""
    return about(model, "photos.dca", session, folder=model_folder)
