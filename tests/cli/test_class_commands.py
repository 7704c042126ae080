"""add-class, remove-class and rename-class on a model folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_pictures import bad_files, class_folders

from dca.model.checkpoint import read_record
from dca.model.classifier import Classifier


@pytest.fixture
def model(fitted: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to change."""
    return Path(shutil.copytree(fitted, tmp_path / "model.dca"))


@pytest.fixture
def zebras(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "zoo", ("zebra",), 3) / "zebra"


def test_a_class_is_added_in_place(dca: Any, model: Path, zebras: Path):
    said = dca("add-class", model, "zebra", zebras)
    assert said.code == 0, said.err
    assert said.out.splitlines() == [
        f"{model}: added 'zebra' with 3 images; 11 classes",
        "its accuracy is not known any more",
        f"next  dca eval {model} FOLDER",
    ]
    assert sorted(path.name for path in model.iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
    ]
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.dca", "zoo"], "nothing else is left"
    record = read_record(model)
    assert record.labels[-1] == "zebra"
    assert [image.name for image in record.training_images[-3:]] == [f"zebra/{n}.jpg" for n in range(3)]
    assert "accuracy" not in record.results
    assert (record.lineage[0].before.results or {})["accuracy"] is not None
    assert "added 'zebra' with 3 images" in (model / "README.md").read_text(encoding="utf-8")
    assert str(model.parent) not in (model / "config.json").read_text(encoding="utf-8")
    assert dca("predict", model, zebras).code == 0


def test_the_three_commands_print_json(dca: Any, model: Path, zebras: Path):
    added = json.loads(dca("add-class", model, "zebra", zebras / "0.jpg", zebras / "1.jpg", "--json").out)
    assert (added["model"], added["change"], added["label"]) == (str(model), "added", "zebra")
    assert len(added["images"]) == 2
    assert len(added["classes"]) == 11
    renamed = json.loads(dca("rename-class", model, "Zebra", "SKU-1", "--label-only", "--json").out)
    assert (renamed["label"], renamed["new_label"], renamed["new_name"]) == ("zebra", "SKU-1", "zebra")
    removed = json.loads(dca("remove-class", model, "SKU-1", "--json").out)
    assert (removed["change"], removed["label"], removed["name"]) == ("removed", "SKU-1", "zebra")
    assert len(removed["classes"]) == 10
    assert [change.kind for change in read_record(model).lineage] == ["added", "renamed", "removed"]


def test_removing_what_was_added_gives_the_old_probabilities(dca: Any, model: Path, zebras: Path, photos: Path):
    before = Classifier.from_pretrained(model).predict_proba(photos / "test")
    assert dca("add-class", model, "zebra", zebras).code == 0
    assert dca("remove-class", model, "zebra").code == 0
    np.testing.assert_allclose(Classifier.from_pretrained(model).predict_proba(photos / "test"), before, atol=1e-6)


def test_a_changed_model_goes_elsewhere_if_asked(dca: Any, model: Path, zebras: Path, tmp_path: Path):
    whole = {path.name: path.read_bytes() for path in model.iterdir()}
    assert dca("add-class", model, "zebra", zebras, "-o", tmp_path / "more.dca", "--label", "z").code == 0
    assert {path.name: path.read_bytes() for path in model.iterdir()} == whole
    record = read_record(tmp_path / "more.dca")
    assert (record.labels[-1], record.problem.names[-1]) == ("z", "zebra")
    said = dca("remove-class", model, "fish", "-o", tmp_path / "more.dca")
    assert said.code == 2
    assert f"{tmp_path / 'more.dca'} holds a model" in said.err
    assert "--overwrite" in said.err
    assert dca("remove-class", model, "fish", "-o", tmp_path / "more.dca", "--overwrite").code == 0
    assert len(read_record(tmp_path / "more.dca").labels) == 9


def test_other_files_in_the_folder_and_a_link_to_it_stay(dca: Any, model: Path, tmp_path: Path):
    (model / "notes.txt").write_text("mine")
    (model / "charts").mkdir()
    (model / "charts" / "a.png").write_bytes(b"x")
    (tmp_path / "link.dca").symlink_to(model, target_is_directory=True)
    assert dca("remove-class", tmp_path / "link.dca", "fish").code == 0
    assert (tmp_path / "link.dca").is_symlink()
    assert (model / "notes.txt").read_text() == "mine"
    assert (model / "charts" / "a.png").read_bytes() == b"x"
    assert not (model / "result.json").exists(), "it belongs to another model"


def test_a_class_without_images_is_known_by_its_name(dca: Any, model: Path, photos: Path):
    said = dca("add-class", model, "zebra")
    assert said.code == 0
    assert "no images: the class is known by its name only" in said.out
    assert read_record(model).options["test_metric"] == "mahalanobis"
    assert dca("eval", model, photos).code == 0


def test_a_fit_does_not_take_a_changed_model_for_its_own(
    dca: Any, photos: Path, tiny_folder: Path, zebras: Path, tmp_path: Path
):
    line = (
        "fit",
        photos,
        "--shots",
        1,
        "--backbone",
        tiny_folder,
        "--method",
        "dca",
        "--set",
        "epochs=0",
        "-o",
        tmp_path / "m.dca",
    )
    assert dca(*line).code == 0
    assert dca("add-class", tmp_path / "m.dca", "zebra", zebras).code == 0
    said = dca(*line)
    assert said.code == 2
    assert "holds a model whose classes were changed after the fit" in said.err
    assert "added 'zebra' with 3 images" in said.err
    assert "--overwrite" in said.err
    assert dca(*line, "--overwrite").code == 0
    assert read_record(tmp_path / "m.dca").lineage == ()


def test_wrong_arguments_leave_the_model_as_it_is(dca: Any, model: Path, zebras: Path, tmp_path: Path):
    whole = {path.name: path.read_bytes() for path in model.iterdir()}
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    bad = bad_files(tmp_path / "bad")
    cases = [
        (("add-class", model, "Fish", zebras), "the model has a class 'fish' already"),
        (("add-class", model, "zebra", zebras / "9.jpg"), "no such file or folder"),
        (("add-class", model, "zebra", tmp_path / "empty"), "holds no images"),
        (("add-class", model, "zebra", tmp_path / "bad"), bad[0]),
        (("remove-class", model, "fihs"), "unknown class 'fihs'. Did you mean 'fish'?"),
        (("rename-class", model, "fish", "house"), "the model has a class 'house' already"),
        (("rename-class", tmp_path / "none.dca", "fish", "house"), "no such model folder"),
        (("remove-class", model, "fish", "-o", zebras), "exists and is not a dca model"),
        (("remove", model, "fish"), "dca remove-class"),
    ]
    for arguments, problem in cases:
        said = dca(*arguments)
        assert said.code == 2, arguments
        assert problem in said.err
    assert {path.name: path.read_bytes() for path in model.iterdir()} == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "empty", "model.dca", "zoo"]


def test_a_method_that_must_be_fitted_again_says_so(
    dca: Any, photos: Path, tiny_folder: Path, zebras: Path, tmp_path: Path
):
    options = ("--method", "gda", "--set", "views=0", "--shots", 1, "--backbone", tiny_folder)
    assert dca("fit", photos, *options, "-o", tmp_path / "m.dca").code == 0
    said = dca("add-class", tmp_path / "m.dca", "zebra", zebras)
    assert said.code == 2
    assert "this gda model cannot take a new class" in said.err
    assert "fit again with the images of all classes" in said.err
    said = dca("rename-class", tmp_path / "m.dca", "fish", "shark")
    assert said.code == 2
    assert "--label-only" in said.err
    assert dca("rename-class", tmp_path / "m.dca", "fish", "shark", "--label-only").code == 0
    assert dca("remove-class", tmp_path / "m.dca", "house").code == 0
    assert len(read_record(tmp_path / "m.dca").labels) == 9
