from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_pictures import bad_files, class_folders
from PIL import Image
from rich.cells import cell_len

from dca.cli.eval import format_evaluation
from dca.runs.plots import PLOT_FILES
from dca.training.evaluate import evaluate_predictions


def test_eval_prints_exactly_the_promised_keys(dca: Any, fitted: Path, photos: Path):
    said = dca("eval", fitted, photos, "--json")
    assert said.code == 0
    assert said.err == ""
    report = json.loads(said.out)
    figures = {"accuracy", "mean_over_classes", "n", "classes", "per_class", "mean_scores", "scores", "ece"}
    assert set(report) == {*figures, "seen_in_training"}
    assert list(report["mean_scores"]) == ["precision", "recall", "f1", "roc_auc"]
    assert report["mean_scores"]["recall"] == pytest.approx(report["mean_over_classes"])
    assert {label: scores["recall"] for label, scores in report["scores"].items()} == report["per_class"]
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


@pytest.mark.parametrize(("truth", "expected"), [
    ([0, 0, 0, 1], "accuracy 75.0 % on 4 images; mean over classes 50.0 %; "),
    ([0, 0, 1, 1], "accuracy 50.0 % on 4 images; calibration"),
])  # fmt: skip
def test_the_mean_over_classes_is_named_where_it_differs(truth: list[int], expected: str):
    """All images are taken for class 0; the estimate of a fit is a mean over classes, too."""
    report = evaluate_predictions(np.tile([0.9, 0.1], (4, 1)), np.array(truth), ["a", "b"])
    assert format_evaluation(report)[0].startswith(expected)
    assert report.to_dict()["mean_over_classes"] == 0.5


def test_eval_keeps_its_columns_for_wide_names(dca: Any, tiny_folder: Path, tmp_path: Path):
    class_folders(tmp_path / "zoo", ("大熊猫", "cat"), 1)
    options = ("--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    assert dca("fit", tmp_path / "zoo", *options).code == 0
    table = dca("eval", tmp_path / "m.dca", tmp_path / "zoo").out.splitlines()[1:]
    assert len(table) == 4
    assert table[0].split() == ["class", "recall", "precision", "F1", "ROC", "AUC"]
    assert table[-1].split()[0] == "mean"
    assert len({cell_len(line) for line in table}) == 1


def test_one_image_is_no_images(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "one", ("fish",), 1)
    assert " on 1 image; " in dca("eval", fitted, tmp_path / "one").out


def test_images_that_were_trained_on_are_counted(dca: Any, fitted: Path, photos: Path):
    said = dca("eval", fitted, photos / "train", "--json")
    assert said.code == 0
    report = json.loads(said.out)
    assert (report["n"], report["seen_in_training"]) == (40, 20), "two shots of each of the ten classes"
    assert said.err.count("\n") == 1
    assert "trained on 20 of these 40 images" in said.err
    unseen = dca("eval", fitted, photos, "--json")
    assert json.loads(unseen.out)["seen_in_training"] == 0
    assert unseen.err == ""


def test_charts_are_written_and_named(dca: Any, fitted: Path, photos: Path, tmp_path: Path):
    expected = [str(tmp_path / "charts" / name) for name in PLOT_FILES]
    said = dca("eval", fitted, photos, "-o", tmp_path / "charts")
    assert said.code == 0
    assert said.out.splitlines()[-1] == f"plots  {tmp_path / 'charts'}/: {', '.join(PLOT_FILES)}"
    for path in expected:
        with Image.open(path) as image:
            image.load()
            assert np.asarray(image.convert("L")).std() > 5
    report = json.loads(dca("eval", fitted, photos, "-o", tmp_path / "charts", "--json").out)
    assert report["plots"] == expected


def test_plots_of_an_evaluation_are_in_the_model_and_named(
    dca: Any, fitted: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = tmp_path / "m.dca"
    shutil.copytree(fitted, model)
    said = dca("eval", model, photos, "--plots")
    assert said.code == 0
    place = model / "plots" / "eval-photos"
    assert said.out.splitlines()[-1] == f"plots  {place}/: {', '.join(PLOT_FILES)}"
    assert sorted(path.name for path in place.iterdir()) == sorted(PLOT_FILES)
    assert json.loads(dca("eval", model, photos, "--plots", "--json").out)["plots"] == [
        str(place / name) for name in PLOT_FILES
    ]
    shutil.rmtree(model / "plots")
    assert "plots" not in dca("eval", model, photos, "--no-plots").out
    assert not (model / "plots").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = dca("eval", model, photos, "--plots")
    assert said.code == 0
    assert said.err.count("pip install 'dca-prompt[report]'") == 1


def test_a_model_that_cannot_be_written_to_is_measured_all_the_same(
    dca: Any, fitted: Path, photos: Path, tmp_path: Path
):
    model = tmp_path / "m.dca"
    shutil.copytree(fitted, model)
    (model / "plots").touch()  # no folder can be made there
    said = dca("eval", model, photos, "--plots")
    assert said.code == 0
    assert "warning: no plots: " in said.err


def test_charts_that_cannot_be_drawn_are_said_before_the_work(
    dca: Any, fitted: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    said = dca("eval", fitted, photos, "-o", tmp_path / "file")
    assert said.code == 2
    assert f"{tmp_path / 'file'}: cannot be written" in said.err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = dca("eval", fitted, photos, "-o", tmp_path / "charts")
    assert said.code == 2
    assert said.out == ""
    assert "pip install 'dca-prompt[report]'" in said.err
    assert not (tmp_path / "charts").exists()


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


def test_an_evaluation_counts_only_classes_with_images():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1]])
    report = evaluate_predictions(probabilities, np.array([0, 1]), ["a", "b", "c"])
    assert report.accuracy == 0.5
    assert report.per_class == {"a": 1.0, "b": 0.0}


def test_eval_makes_the_head_again(dca: Any, fitted: Path, photos: Path):
    from dca.model.classifier import Classifier

    said = dca("eval", fitted, photos, "--set", "gamma1=2", "--set", "gamma2=1", "--json")
    model = Classifier.from_pretrained(fitted)
    assert json.loads(said.out) == model.with_options(gamma1=2.0, gamma2=1.0).evaluate(str(photos)).to_dict()
    indefinite = ("eval", fitted, photos, "--set", "gamma1=0", "--set", "gamma2=500")
    said = dca(*indefinite)
    assert said.code == 2
    assert "not positive definite" in said.err
    assert "use --set floor=0.001" in said.err
    assert dca(*indefinite, "--set", "floor=0.001").code == 0


def test_eval_refuses_options_of_training(dca: Any, fitted: Path, photos: Path):
    said = dca("eval", fitted, photos, "--set", "epochs=3")
    assert said.code == 2
    assert "epochs of this finished dca model cannot be changed" in said.err
    assert "gamma1, gamma2, floor" in said.err


def test_classes_of_the_data_alone_compete_where_asked(dca: Any, fitted: Path, tmp_path: Path):
    class_folders(tmp_path / "two", ("fish", "guitar"), 2)
    assert " among " not in dca("eval", fitted, tmp_path / "two").out
    assert json.loads(dca("eval", fitted, tmp_path / "two", "--json").out)["classes"] == 10
    said = dca("eval", fitted, tmp_path / "two", "--classes", "target")
    assert "on 4 images, among 2 of 10 classes; calibration error" in said.out
    assert json.loads(dca("eval", fitted, tmp_path / "two", "--classes", "target", "--json").out)["classes"] == 2
