from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dca import plots
from dca.datasets.dataset import LabelledImage
from dca.model.records import Estimate, HeldOutPrediction, TrainingImage
from dca.runs.plots import PLOT_FILES, list_held_out_predictions, list_test_predictions, plot_evaluation
from dca.runs.run import run
from dca.runs.spec import FitSpec
from dca.study import Experiment, run_experiment
from dca.training.evaluate import evaluate_predictions


def items(count: int) -> list[LabelledImage]:
    return [LabelledImage(Image.new("RGB", (8, 8), (20 * n, 0, 0)), n % 3) for n in range(count)]


def test_plots_show_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given: dict[str, Any] = {}
    for name in ("plot_confusion", "plot_reliability", "plot_accuracies", "plot_selected_predictions"):
        monkeypatch.setattr(plots, name, lambda *args, _name=name, **_: given.update({_name: args}) or tmp_path)
    probabilities = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    report = evaluate_predictions(probabilities, np.array([0, 1, 2]), ["a", "b", "c"])
    plain = evaluate_predictions(np.eye(3)[[0, 1, 0]], np.array([0, 1, 2]), ["a", "b", "c"])
    plot_evaluation(list_test_predictions(items(3), report, plain), tmp_path, "m")
    assert given["plot_confusion"][0].tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    sure, right = given["plot_reliability"][:2]
    assert sure.tolist() == [0.7, 0.6, 0.8]
    assert right.tolist() == [True, False, True]
    assert given["plot_accuracies"][0] == [
        ("a", 1, 1, 1, None, ""),
        ("b", 1, 1, 0, None, ""),
        ("c", 1, 0, 1, None, ""),
    ]
    images, truths, said, sure = given["plot_selected_predictions"][:4]
    assert (truths, said, sure) == (["b", "a", "c"], ["a", "a", "c"], [0.6, 0.7, 0.8])
    assert [int(image[0, 0, 0]) for image in images] == [20, 0, 40]


def test_held_out_predictions_of_training_images_are_taken_where_they_are_known():
    held_out = HeldOutPrediction(0, 0.5, 0.1)
    images = [TrainingImage(n % 3, "", "", held_out if n else None) for n in range(4)]
    judged = list_held_out_predictions(items(4), images, ["a", "b", "c"])
    assert judged is not None
    assert judged.truth.tolist() == [1, 2, 0]
    assert judged.predicted.tolist() == [0, 0, 0]
    assert len(judged.images) == 3
    assert list_held_out_predictions(items(2), [TrainingImage(n, "", "") for n in (0, 1)], ["a", "b"]) is None


def test_plots_of_held_out_images_show_the_estimate_and_name_classes_of_one_photo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given: dict[str, dict[str, Any]] = {}
    for name in ("plot_confusion", "plot_reliability", "plot_accuracies"):
        monkeypatch.setattr(plots, name, lambda *_, _name=name, **named: given.update({_name: named}) or tmp_path)
    records = [TrainingImage(n % 2, "", "", HeldOutPrediction(0, 0.5, 0.1)) for n in range(3)]
    records.append(TrainingImage(2, "", ""))
    estimate = Estimate("leave-one-out", 0.5, 0.2, 0.8, 3)
    held_out = [LabelledImage(item.image, record.label) for item, record in zip(items(4), records, strict=True)]
    judged = list_held_out_predictions(held_out, records, ["a", "b", "c"], estimate)
    assert judged is not None
    plot_evaluation(judged, tmp_path, "m")
    assert given["plot_accuracies"]["estimate"] == (0.5, 0.2, 0.8)
    assert given["plot_reliability"]["accuracy"] == 0.5
    assert given["plot_confusion"]["missing"] == {2: "1 photo: cannot be measured"}


@pytest.mark.parametrize("part", ["", "train"])
def test_a_fit_leaves_plots_in_its_folder(photos: Path, tiny_folder: Path, tmp_path: Path, part: str):
    spec = FitSpec(data=str(photos / part), backbone=str(tiny_folder))
    outcome = run(spec, tmp_path / "m.dca", device="cpu", plots=True)
    assert outcome.result.plots == tuple(f"plots/{name}" for name in PLOT_FILES)
    for name in outcome.result.plots:
        with Image.open(outcome.folder / name) as image:
            assert np.asarray(image.convert("L")).std() > 5
    assert json.loads((outcome.folder / "result.json").read_text())["plots"] == list(outcome.result.plots)
    assert run(spec, tmp_path / "m.dca", device="cpu", plots=True).classifier is None, "finished already"
    again = run(spec, tmp_path / "m.dca", device="cpu", overwrite=True)
    assert "plots" not in again.result.to_dict()
    assert not (again.folder / "plots").exists()


def test_every_target_has_its_own_folder(photos: Path, tiny_folder: Path, tmp_path: Path):
    spec = Experiment(data=str(photos), backbone=str(tiny_folder), method="zero_shot", shots=1, protocol="base-to-new")
    outcome = run_experiment(spec, tmp_path / "m.dca", device="cpu", plots=True)
    folders = {str(Path(name).parent) for name in outcome.result.plots}
    assert folders == {"plots/photos base", "plots/photos new"}


def test_the_screen_names_the_plots_and_no_plots_leaves_them_out(
    dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arguments = ("fit", photos, "--backbone", tiny_folder, "--method", "zero_shot", "-o", tmp_path / "m.dca")
    said = dca(*arguments, "--plots")
    assert f"plots  {tmp_path / 'm.dca'}/plots/: {', '.join(PLOT_FILES)}" in said.out
    said = dca(*arguments, "--no-plots", "--overwrite")
    assert "plots" not in said.out
    assert not (tmp_path / "m.dca" / "plots").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = dca(*arguments, "--plots", "--overwrite")
    assert said.code == 0
    assert said.err.count("pip install 'dca-prompt[report]'") == 1


def test_a_changed_model_keeps_no_plots_of_the_old_one(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    arguments = ("fit", photos, "--backbone", tiny_folder, "--method", "zero_shot", "-o", tmp_path / "m.dca")
    assert dca(*arguments, "--plots").code == 0
    assert dca("remove-class", tmp_path / "m.dca", "fish").code == 0
    assert not (tmp_path / "m.dca" / "plots").exists()
