"""Datasets are found by path, by public name, or as the sample."""

from __future__ import annotations

import pytest

from dca.core.errors import UserError
from dca.datasets import load_dataset
from helpers.small_images import make_folder


@pytest.mark.parametrize("name", ["eurosat", "dtd", "stanford_cars"])
def test_a_folder_with_the_name_of_a_public_dataset_is_not_that_dataset(tmp_path, name):
    folder = make_folder(tmp_path / name, {"cat": 2, "dog": 2})
    dataset = load_dataset(folder)
    assert (dataset.name, dataset.public, dataset.template) == (name, "", "a photo of a {}.")
    assert dataset.keys == ()


def test_own_folders_are_not_mistaken_for_public_ones(tmp_path):
    make_folder(tmp_path / "a/train", {"x": 1, "y": 1})
    make_folder(tmp_path / "a/val", {"x": 1, "y": 1})
    make_folder(tmp_path / "b/images", {"x": 1, "y": 1})
    assert load_dataset(tmp_path / "a").name == "a"
    assert load_dataset(tmp_path / "b/images").name == "images"


def test_the_sample_is_found_by_name(monkeypatch):
    monkeypatch.setattr("dca.datasets.sample.load_sample", lambda: "the sample")
    assert load_dataset("sample") == "the sample"


def test_unknown_and_unplaced_names(monkeypatch, tmp_path):
    monkeypatch.delenv("DCA_DATA", raising=False)
    with pytest.raises(UserError, match="Did you mean 'eurosat'"):
        load_dataset("eurosatt")
    with pytest.raises(UserError, match="where is EuroSAT") as error:
        load_dataset("eurosat")
    assert "path of its folder" in error.value.hint
    assert "DCA_DATA=DIR, the folder that holds eurosat/" in error.value.hint
    with pytest.raises(UserError, match="no folder eurosat/ here"):
        load_dataset("eurosat", root=tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        load_dataset(tmp_path / "none")


def test_a_mistyped_folder_is_answered_with_the_one_beside_it(tmp_path, monkeypatch):
    for name in ("photos", "zebra", *(f"{n:02}" for n in range(9))):
        (tmp_path / name).mkdir()
    (tmp_path / "labels.csv").touch()
    monkeypatch.chdir(tmp_path)
    for typed, meant in (
        ("photoz", "photos"),
        ("./photoz", "photos"),
        ("photoz/", "photos"),
        ("label.csv", "labels.csv"),
    ):
        with pytest.raises(UserError, match=f"Did you mean '{meant}'"):
            load_dataset(typed)
    with pytest.raises(UserError, match=f"Did you mean '{tmp_path / 'photos'}'"):
        load_dataset(tmp_path / "photso")
    for typed in ("nofolder", "./nofolder"):
        with pytest.raises(UserError) as error:
            load_dataset(typed)
        assert "Did you mean" not in str(error.value)
    assert error.value.details == ("beside it: 00, 01, 02, 03, 04, 05, 06, 07 ...",)
