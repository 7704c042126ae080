"""Corrections as files: names of folders, reading, writing, and how a dataset takes them in."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dca.core.errors import UserError
from dca.datasets.corrections import (
    CORRECTIONS,
    add_corrections,
    carry_over_corrections,
    escape_label,
    extend_classes,
    read_corrections,
    remove_correction,
    unescape_label,
    write_correction,
)
from dca.datasets.folder import load_folder
from dca.datasets.walk import is_hidden


def image(path: Path, colour: int) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), (colour, 0, 0)).save(path)
    return path.read_bytes()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40))
def test_folder_names_lead_back_to_the_label_and_nowhere_else(label: str):
    name = escape_label(label)
    assert unescape_label(name) == label
    assert "/" not in name
    assert "\\" not in name
    assert name not in (".", "..")
    assert not is_hidden(name)


@pytest.mark.parametrize("label", ["cat", "hot air balloon", "Ünïcode", "名前", "-1", "a.b"])
def test_usual_labels_are_their_own_folder_names(label: str):
    assert escape_label(label) == label


def test_written_corrections_are_read_again(tmp_path: Path):
    one, two = image(tmp_path / "1.png", 1), image(tmp_path / "2.png", 2)
    write_correction(tmp_path, "a/b", one, sha256(one), ".png")
    write_correction(tmp_path, "fox", two, sha256(two), ".png")
    assert [(c.label, c.path.read_bytes()) for c in read_corrections(tmp_path)] == [("a/b", one), ("fox", two)]


def test_an_image_has_one_label(tmp_path: Path):
    one = image(tmp_path / "1.png", 1)
    write_correction(tmp_path, "cat", one, sha256(one), ".png")
    write_correction(tmp_path, "fox", one, sha256(one), ".png")
    assert [path.parent.name for path in (tmp_path / CORRECTIONS).glob("*/*")] == ["fox"]
    remove_correction(tmp_path, sha256(one))
    assert list((tmp_path / CORRECTIONS).iterdir()) == []


def test_the_newest_of_two_labels_counts(tmp_path: Path):
    """As after an end between writing the new file and removing the old one."""
    for second, label in enumerate(("fox", "cat")):
        image(path := tmp_path / CORRECTIONS / label / f"{label}.png", 1)
        os.utime(path, (1000 - second, 1000 - second))
    (found,) = read_corrections(tmp_path)
    assert found.label == "fox"


def test_a_folder_without_corrections_has_none(tmp_path: Path):
    assert read_corrections(tmp_path) == []
    carry_over_corrections(tmp_path, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_new_labels_become_classes():
    labels, names, index = extend_classes(
        ["n01", "n02"], ["tench", "great white"], ["great_white", "fox", "Fox", "n01"]
    )
    assert (labels, names) == (("n01", "n02", "fox"), ("tench", "great white", "fox"))
    assert index == [1, 2, 2, 0]


def test_a_dataset_takes_corrections_in(tmp_path: Path):
    for label, numbers in (("cat", (1, 2)), ("dog", (3, 4))):
        for number in numbers:
            image(tmp_path / "photos" / "train" / label / f"{number}.png", number)
    image(tmp_path / "photos" / "test" / "cat" / "9.png", 9)
    for label, number in (("dog", 2), ("fox", 7), ("fox", 9)):  # of training, new, of the test part
        data = image(tmp_path / "x.png", number)
        write_correction(tmp_path / "model", label, data, sha256(data), ".png")
    photos = load_folder(tmp_path / "photos")
    found = add_corrections(photos, read_corrections(tmp_path / "model"))
    assert found.labels == ("cat", "dog", "fox")
    by_class = {label: [item for item in found.train if item.label == c] for c, label in enumerate(found.labels)}
    assert {label: len(items) for label, items in by_class.items()} == {"cat": 1, "dog": 3, "fox": 1}
    assert found.test == photos.test


def test_a_fit_learns_from_corrections_and_keeps_them(photos: Path, tiny_folder: Path, tmp_path: Path, dca):
    """`dca fit` over a model with corrections takes them in; they stay where they are."""
    target, fit = tmp_path / "m.dca", ("fit", photos, "--backbone", tiny_folder, "--device", "cpu", "-q")
    assert dca(*fit, "-o", target).code == 0
    data = image(tmp_path / "x.png", 5)
    write_correction(target, "narwhal", data, sha256(data), ".png")
    refused = dca(*fit, "-o", target)
    assert refused.code == 2
    assert "training images: not the same" in refused.err
    again = dca(*fit, "-o", target, "--overwrite")
    assert again.code == 0, again.err
    assert "11 classes, 41 training images (all of them), 1 of them corrected in dca serve" in again.out
    assert [c.label for c in read_corrections(target)] == ["narwhal"]
    assert dca(*fit, "-o", target).code == 0  # finished already, with the corrections
    without = dca(*fit, "-o", target, "--overwrite", "--corrections", "none")
    assert "10 classes, 40 training images (all of them)\n" in without.out
    assert [c.label for c in read_corrections(target)] == ["narwhal"]
    elsewhere = dca(*fit, "-o", tmp_path / "other.dca", "--corrections", target)
    assert "1 of them corrected" in elsewhere.out


def test_corrections_that_are_asked_for_must_be_there(photos: Path, tiny_folder: Path, tmp_path: Path, dca):
    told = dca("fit", photos, "--backbone", tiny_folder, "-o", tmp_path / "m", "--corrections", tmp_path / "none.dca")
    assert told.code == 2
    assert "holds no corrections" in told.err


def test_a_draw_and_corrections_exclude_each_other():
    from dca.study.experiment import Experiment

    with pytest.raises(UserError, match="draw and corrections"):
        Experiment(data="x", draw="d.json", corrections="m.dca")


def test_a_saved_model_keeps_the_corrections_of_the_one_before(fitted: Path, tmp_path: Path):
    import shutil

    from dca.model.classifier import Classifier

    folder = Path(shutil.copytree(fitted, tmp_path / "m.dca"))
    data = image(tmp_path / "x.png", 5)
    write_correction(folder, "fox", data, sha256(data), ".png")
    Classifier.from_pretrained(folder, device="cpu").save_pretrained(folder)
    assert [c.label for c in read_corrections(folder)] == ["fox"]
