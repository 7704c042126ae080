"""Labels that look wrong: found by leaving images out, copies under two labels, images that cannot be checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset, LabelledImage
from dca.model.classifier import Classifier
from dca.model.findings import LabelConflict, check_labels, doubtful_labels
from dca.training.session import Session

COLOURS = {"red": (200, 30, 30), "blue": (30, 30, 200)}


def square(colour: str, seed: int) -> Image.Image:
    """A noisy square, so that none is a copy of another."""
    noise = np.random.default_rng(seed).integers(-30, 30, (40, 40, 3))
    return Image.fromarray((np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    """Eight squares of each colour, and a red one among the blue."""
    for k, colour in enumerate(COLOURS):
        (tmp_path / "squares" / colour).mkdir(parents=True)
        for n in range(8):
            square(colour, 10 * k + n).save(tmp_path / "squares" / colour / f"{n}.png")
    square("red", 99).save(tmp_path / "squares" / "blue" / "wrong.png")
    return tmp_path / "squares"


def test_an_image_in_the_wrong_folder_is_found_with_its_path_and_class(squares: Path, clip: CLIP):
    found = check_labels(load_dataset(squares), Session(device="cpu"), backbone=clip, odds=2)
    assert (found.images, found.not_checked, found.conflicts) == (17, (), ())
    (row,) = found.doubtful
    assert (row.image, row.label, row.suggested) == (str(squares / "blue" / "wrong.png"), "blue", "red")
    assert row.probability >= 2 * row.own
    assert "index" not in found.to_dict()["doubtful"][0]


def test_the_rows_are_those_of_a_fit_of_the_default(sample: Dataset, clip: CLIP):
    session = Session(device="cpu")
    found = check_labels(sample, session, backbone=clip, odds=1)
    model = Classifier(backbone=clip).fit(sample, session=session)
    expected = doubtful_labels(model.training_images_, sample.labels, 1)
    assert found.doubtful == tuple(dataclasses.replace(row, image=f"image {row.index}") for row in expected)
    assert found.estimate == model.estimate_


def test_copies_under_two_labels_are_named(squares: Path, clip: CLIP):
    noise = np.random.default_rng(5).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    busy = Image.fromarray(noise).resize((64, 64), Image.Resampling.NEAREST)
    busy.save(squares / "blue" / "one.png")
    busy.resize((48, 48)).save(squares / "red" / "other.png")
    found = check_labels(load_dataset(squares), Session(device="cpu"), backbone=clip)
    (row,) = found.conflicts
    paths = (str(squares / "blue" / "one.png"), str(squares / "red" / "other.png"))
    assert row == LabelConflict(paths, ("blue", "red"))
    assert found.to_dict()["conflicts"] == [{"images": list(paths), "labels": ["blue", "red"]}]


def test_an_image_that_is_alone_in_its_class_is_not_checked(squares: Path, clip: CLIP):
    (squares / "green").mkdir()
    square("red", 71).save(squares / "green" / "alone.png")
    found = check_labels(load_dataset(squares), Session(device="cpu"), backbone=clip)
    assert found.not_checked == (str(squares / "green" / "alone.png"),)
    assert found.to_dict()["checked"] == 17


def test_one_image_per_class_cannot_be_checked(clip: CLIP):
    items = tuple(LabelledImage(square(colour, k), k) for k, colour in enumerate(COLOURS))
    dataset = Dataset("two", tuple(COLOURS), tuple(COLOURS), items)
    with pytest.raises(UserError, match="no label can be checked"):
        check_labels(dataset, Session(device="cpu"), backbone=clip)
