from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_pictures import bad_files, class_folders
from rich.cells import cell_len

from dca.engine.evaluate import calibration_error, evaluation


def test_eval_prints_exactly_the_promised_keys(dca: Any, fitted: Path, photos: Path):
    said = dca("eval", fitted, photos, "--json")
    assert said.code == 0
    assert said.err == ""
    report = json.loads(said.out)
    assert set(report) == {"accuracy", "n", "per_class", "ece"}
    assert report["n"] == 30, "the test part only"
    assert type(report["accuracy"]) is float
    assert 0 <= report["accuracy"] <= 1
    assert 0 <= report["ece"] <= 1
    assert len(report["per_class"]) == 10
    assert np.mean(list(report["per_class"].values())) == pytest.approx(report["accuracy"])
    assert report["accuracy"] == json.loads((fitted / "result.json").read_text())["accuracy"]


def test_eval_says_the_same_to_people(dca: Any, fitted: Path, photos: Path):
    report = json.loads(dca("eval", fitted, photos, "--json").out)
    said = dca("eval", fitted, photos)
    assert f"accuracy {100 * report['accuracy']:.1f} % on 30 images" in said.out
    assert all(name in said.out for name in report["per_class"])


def test_eval_keeps_its_columns_for_wide_names(dca: Any, tiny_folder: Path, tmp_path: Path):
    class_folders(tmp_path / "zoo", ("大熊猫", "cat"), 1)
    options = ("--backbone", tiny_folder, "-o", tmp_path / "m.dca", "--set", "epochs=1")
    assert dca("fit", tmp_path / "zoo", *options).code == 0
    table = dca("eval", tmp_path / "m.dca", tmp_path / "zoo").out.splitlines()[1:]
    assert len(table) == 2
    assert len({cell_len(line) for line in table}) == 1


def test_one_image_is_no_images(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "one", ("fish",), 1)
    assert " on 1 image; " in dca("eval", fitted, tmp_path / "one").out


def test_images_that_were_trained_on_are_counted(dca: Any, fitted: Path, photos: Path):
    said = dca("eval", fitted, photos / "train", "--json")
    assert said.code == 0
    assert json.loads(said.out)["n"] == 40
    assert said.err.count("\n") == 1
    assert "trained on 20 of these images (40 in all)" in said.err, "two shots of each of the ten classes"
    assert "trained on" not in dca("eval", fitted, photos).err


def test_eval_exits_3_below_the_required_accuracy(dca: Any, fitted: Path, photos: Path):
    accuracy = json.loads((fitted / "result.json").read_text())["accuracy"]
    assert dca("eval", fitted, photos, "--min-accuracy", accuracy).code == 0
    said = dca("eval", fitted, photos, "--min-accuracy", 1.0, "--json")
    assert said.code == 3
    assert "below the required 100.0 %" in said.err
    assert json.loads(said.out)["accuracy"] == accuracy
    assert dca("eval", fitted, photos, "--min-accuracy", 90).code == 2


def test_classes_the_model_does_not_know_are_all_named(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "zoo", ("fish", "lion", "tiger"))
    said = dca("eval", fitted, tmp_path / "zoo")
    assert said.code == 2
    assert "lion: 2 images" in said.err
    assert "tiger: 2 images" in said.err
    assert "the model knows: butterfly" in said.err


def test_unreadable_images_are_all_listed(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "more", ("fish", "house"))
    names = bad_files(tmp_path / "more" / "fish")
    said = dca("eval", fitted, tmp_path / "more", "--json")
    assert said.code == 2
    assert said.out == ""
    assert all(name in said.err for name in names)


def test_a_folder_without_test_part_is_measured_whole(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "more", ("fish", "house"), 3)
    assert json.loads(dca("eval", fitted, tmp_path / "more", "--json").out)["n"] == 6


@pytest.mark.parametrize("part", ["test", "val", "Validation"])
def test_a_folder_with_nothing_but_a_test_part_is_measured(dca: Any, fitted: Path, tmp_path: Path, part: str):
    class_folders(tmp_path / "more" / part, ("fish", "house"), 3)
    said = dca("eval", fitted, tmp_path / "more", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["n"] == 6


def test_validation_images_are_measured_rather_than_training_images(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "more" / "train", ("fish", "house"), 3)
    class_folders(tmp_path / "more" / "val", ("fish", "house"), 1)
    assert json.loads(dca("eval", fitted, tmp_path / "more", "--json").out)["n"] == 2


def test_what_could_not_be_learned_from_is_measured(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "one", ("fish",), 3)
    (tmp_path / "one" / "house").mkdir()
    class_folders(tmp_path / "parts" / "train", ("lion",), 1)
    class_folders(tmp_path / "parts" / "test", ("fish",), 2)
    class_folders(tmp_path / "list", ("fish",), 1)
    (tmp_path / "list" / "list.csv").write_text("path,label,split\nfish/0.jpg,fish,test\n")
    for place, count in (("one", 3), ("parts", 2), ("list/list.csv", 1)):
        said = dca("eval", fitted, tmp_path / place, "--json")
        assert said.code == 0, said.err
        report = json.loads(said.out)
        assert (report["n"], list(report["per_class"])) == (count, ["fish"])


def test_the_calibration_error_of_known_cases():
    sure = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert calibration_error(sure, np.array([True, True])) == 0
    assert calibration_error(sure, np.array([False, False])) == 1
    mixed = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    right = np.array([True, False, True, True])
    assert calibration_error(mixed, right) == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)


def test_an_evaluation_counts_only_classes_with_images():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1]])
    report = evaluation(probabilities, np.array([0, 1]), ["a", "b", "c"])
    assert report.accuracy == 0.5
    assert report.per_class == {"a": 1.0, "b": 0.0}
