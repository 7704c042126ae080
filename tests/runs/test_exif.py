"""EXIF rotations: applied to everyone's images, ignored for public datasets where an experiment follows the papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import make_clip
from dca.core.choices import Rules
from dca.datasets.dataset import Dataset, LabelledImage
from dca.features.store import FeatureStore
from dca.images.decode import open_image
from dca.runs.folder import identify
from dca.runs.run import make_fit_task, run
from dca.runs.spec import FitSpec
from dca.training.session import Session

OPTIONS = {"tip_adapter": {"views": 0}, "vpt": {"epochs": 1, "warmup_epochs": 0, "learning_rate": 0.1}}


def written(folder: Path, sample: Dataset, save: Callable[[Image.Image, Path], None], public: str) -> Dataset:
    """Two classes of the sample as files."""
    folder.mkdir()

    def items(part: tuple[LabelledImage, ...], name: str) -> tuple[LabelledImage, ...]:
        found = []
        for number, item in enumerate(i for i in part if i.label < 2):
            save(open_image(item.image), folder / f"{name}{number}.png")
            found.append(LabelledImage(folder / f"{name}{number}.png", item.label))
        return tuple(found)

    parts = {"train": items(sample.train, "train"), "test": items(sample.test, "test")}
    return dataclasses.replace(sample, labels=sample.labels[:2], names=sample.names[:2], public=public, **parts)


def turned(image: Image.Image, place: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(place, exif=exif)


def as_stored(image: Image.Image, place: Path) -> None:
    image.save(place)


def upright(image: Image.Image, place: Path) -> None:
    image.transpose(Image.Transpose.ROTATE_270).save(place)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(device="cpu", store=FeatureStore(tmp_path / "store"))


def outcome(method: str, data: Dataset, rules: Rules, folder: Path, session: Session, tiny: Path) -> Any:
    spec = FitSpec(data="x", method=method, rules=rules, backbone=str(tiny), options=OPTIONS[method])
    return run(spec, folder, dataset=data, session=session)


@pytest.mark.parametrize("method", ["tip_adapter", "vpt"])
@pytest.mark.parametrize(
    ("public", "rules", "twin"),
    [("eurosat", "paper", as_stored), ("eurosat", "strict", upright), ("", "paper", upright)],
)
def test_a_run_reads_pixels_as_its_protocol_says(
    method: str, public: str, rules: Rules, twin: Any, sample: Dataset, tmp_path: Path, tiny_folder: Path
) -> None:
    """The twin: the same pixels in files without EXIF data. In training, tests, and when the model is measured."""
    plain, planted = (
        written(tmp_path / save.__name__, sample, save, public if save is turned else "") for save in (twin, turned)
    )
    plain = dataclasses.replace(plain, public=public)
    session, other = (Session(device="cpu", store=FeatureStore(tmp_path / name)) for name in ("one", "two"))
    wanted = outcome(method, plain, rules, tmp_path / "plain", session, tiny_folder)
    found = outcome(method, planted, rules, tmp_path / "planted", other, tiny_folder)
    want, got = (one.evaluations[0].adapted.probabilities for one in (wanted, found))
    np.testing.assert_allclose(got, want, atol=1e-7)
    np.testing.assert_allclose(found.classifier.evaluate(planted).probabilities, want, atol=1e-7)


def test_stored_features_of_both_readings_do_not_mix(sample: Dataset, session: Session, tmp_path: Path) -> None:
    clip = make_clip()
    turned(open_image(sample.train[0].image), tmp_path / "turned.png")
    as_stored(open_image(sample.train[0].image), tmp_path / "plain.png")
    images, plain = [tmp_path / "turned.png"], [tmp_path / "plain.png"]
    stored = session.for_dataset("eurosat", "paper")
    for _ in range(2):  # computed, then read
        ours, theirs = (each.frozen_features(clip, images) for each in (session, stored))
        assert not np.allclose(ours, theirs, atol=1e-3)
        np.testing.assert_allclose(theirs, session.frozen_features(clip, plain), atol=1e-6)
    for views in (stored.decode_images(images, clip), session.decode_images(images, clip)):
        assert views.crops.shape[0] == 1
    assert not np.array_equal(stored.decode_images(images, clip).crops, session.decode_images(images, clip).crops)
    assert not np.array_equal(stored.thumbnails(images), session.thumbnails(images))


def test_a_jpeg_without_a_rotation_is_the_same_content_in_both(
    sample: Dataset, session: Session, tmp_path: Path
) -> None:
    open_image(sample.train[0].image).save(tmp_path / "plain.jpg")
    stored = session.for_dataset("eurosat", "paper")
    assert stored.content_key(tmp_path / "plain.jpg") == session.content_key(tmp_path / "plain.jpg")


def test_the_identity_of_a_run_tells_the_readings_apart(sample: Dataset, session: Session, tmp_path: Path) -> None:
    data, clip = written(tmp_path / "turned", sample, turned, "eurosat"), make_clip()
    marks = []
    for rules in ("strict", "paper"):
        spec = FitSpec(data="x", method="gda", rules=rules)  # type: ignore[arg-type]
        marks.append(identify(spec, make_fit_task(spec, [data]), session, clip)["training images"])
    assert marks[0] != marks[1]
