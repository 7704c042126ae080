"""Test images classified together: a protocol of its own, from the specification to the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.nn import functional as F

from conftest import Said
from dca.datasets.dataset import Dataset
from dca.model.classifier import Classifier
from dca.runs.evaluate import evaluate
from dca.study import protocols
from dca.study.experiment import Experiment, ExperimentResult
from dca.study.report.folder import write_runs_report
from dca.study.report.subject import read_subject
from dca.study.run import run_experiment
from dca.study.specification import Specification, parse_specification
from dca.study.sweep import plan_sweep
from dca.study.worker import Worker
from dca.training.evaluate import classify_features, classify_together, encode_images
from dca.training.session import Session
from helpers.made_runs import write_run
from helpers.miniatures import Size, miniature
from oracles.transduction import transduce as literally

SIZE = Size(per_class={"train": 4, "val": 2, "test": 3}, classes=3, per_folder=12, distinct=6)
Figures = Callable[[Path], dict[str, Any]]


@pytest.mark.parametrize("name", ["zero_shot", "closed_form"])
def test_the_predictions_are_those_of_the_equations_on_all_test_images(sample: Dataset, name: str) -> None:
    session = Session(device="cpu")
    task = protocols.transductive(sample, 2, 1)
    model = Classifier(name, shots=2, seed=1, device="cpu")._fit_drawn(task.source, session)
    (measured,) = evaluate(model.method_, task.targets, session)
    (features,) = encode_images([model.method_], [item.image for item in sample.test], session)
    temperature, model.method_.temperature = model.method_.temperature, 1.0
    alone = classify_features(model.method_, features)
    model.method_.temperature = temperature
    assert (temperature == 1.0) == (name == "closed_form"), "a fit calibrates answers for one image at a time"
    unit = F.normalize(features.double(), dim=-1)
    expected, _, _ = literally(unit.tolist(), alone.tolist(), [], [], power=1.0, gamma=0.0)
    np.testing.assert_allclose(measured.adapted.probabilities, expected, atol=1e-8)
    assert np.abs(measured.adapted.probabilities - alone).max() > 1e-3, "it is not what each image is given alone"
    assert measured.zero_shot is not None
    if name == "zero_shot":
        np.testing.assert_array_equal(measured.zero_shot.probabilities, measured.adapted.probabilities)


def test_the_order_of_the_images_does_not_matter_and_their_company_does(sample: Dataset) -> None:
    session = Session(device="cpu")
    method = Classifier("zero_shot", device="cpu").fit(sample).method_
    (features,) = encode_images([method], [item.image for item in sample.test], session)
    together = classify_together(method, features)
    np.testing.assert_allclose(classify_together(method, features.flip(0))[::-1], together, atol=1e-9)
    few = classify_together(method, features[:10])
    assert np.abs(few - together[:10]).max() > 1e-3
    np.testing.assert_allclose(classify_features(method, features[:10]), classify_features(method, features)[:10])


def test_labels_of_test_images_are_never_looked_at(sample: Dataset) -> None:
    """With all labels exchanged the probabilities stay as they are."""
    session = Session(device="cpu")
    method = Classifier("closed_form", shots=2, device="cpu").fit(sample).method_
    (target,) = protocols.transductive(sample, 2, 1).targets
    wrong = replace(target, test=tuple(replace(item, label=(item.label + 1) % 10) for item in target.test))
    one, other = evaluate(method, [target, wrong], session)
    np.testing.assert_array_equal(one.adapted.probabilities, other.adapted.probabilities)
    assert one.adapted.accuracy != other.adapted.accuracy


def test_the_record_has_no_accuracy_of_the_model_on_one_image(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    given = {"data": str(photos), "method": "closed_form", "shots": 2, "backbone": str(tiny_folder)}
    experiment = Experiment(**given, protocol="transductive")  # type: ignore[arg-type]
    assert experiment.id != Experiment(**given).id  # type: ignore[arg-type]
    fitted = run_experiment(experiment, tmp_path / "m.dca", device="cpu")
    result = fitted.result
    assert isinstance(result, ExperimentResult)
    assert (result.protocol, result.accuracy, result.zero_shot_accuracy, result.test_images) == (
        "transductive", None, None, 0,
    )  # fmt: skip
    (target,) = result.targets
    assert (target.name, target.test_images) == ("photos together", 30)
    card = (tmp_path / "m.dca" / "README.md").read_text()
    assert "test images | accuracy" not in card
    assert run_experiment(experiment, tmp_path / "m.dca", device="cpu").classifier is None, "finished already"


def test_the_command_says_what_was_measured(
    photos: Path, tiny_folder: Path, tmp_path: Path, dca: Callable[..., Said]
) -> None:
    common = ("study", "run", photos, "--shots", 1, "--backbone", tiny_folder, "--method", "zero_shot")
    told = dca(*common, "--protocol", "transductive", "-o", tmp_path / "a.dca")
    assert told.code == 0, told.err
    assert "of photos together" in told.out
    assert "protocol transductive" in told.out
    refused = dca(*common, "--protocol", "transductive", "--target", photos, "-o", tmp_path / "b.dca")
    assert refused.code == 2
    assert "transductive tests on photos itself" in refused.err


@pytest.fixture
def study(tiny_folder: Path) -> Specification:
    """Zero-shot CLIP and two methods, alone and together, and a head of one that is classified together."""
    common = {"data": "eurosat", "backbone": str(tiny_folder), "shots": 2, "protocol": ["few-shot", "transductive"]}
    dca = {"method": "dca", "options": {"epochs": 1}}
    grids = [{"method": ["zero_shot", "closed_form"]}, dca, {**dca, "head": {"test_metric": "cosine"}}]
    return parse_specification({"common": common, "grid": grids}, "together")


def carry_out(study: Specification, runs: Path, root: Path) -> None:
    worker = Worker(runs, root, "cpu")
    reports = [report for job in plan_sweep(study, runs).jobs for report in worker.run(job)]
    assert [report.error for report in reports] == [""] * len(study.cells)


def test_a_sweep_fits_once_and_measures_both_ways(
    study: Specification, tiny_folder: Path, tmp_path: Path, figures: Figures
) -> None:
    miniature("eurosat", tmp_path / "data", SIZE)
    made = plan_sweep(study, tmp_path / "runs")
    assert (len(made.to_do), made.new_fits) == (8, 3)
    carry_out(study, tmp_path / "runs", tmp_path / "data")
    alone = Specification("alone", "alone", "", tuple(c for c in study.cells if c.experiment.protocol != "few-shot"))
    carry_out(alone, tmp_path / "own", tmp_path / "data")
    shared, own = figures(tmp_path / "runs"), figures(tmp_path / "own")
    for cell in alone.cells:
        assert shared[cell.id]["targets"] == own[cell.id]["targets"], "as with a fit of its own"
        assert shared[cell.id]["accuracy"] is None


def test_reports_keep_it_apart(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for data, method, alone, together in (
        ("eurosat", "zero_shot", 0.40, 0.50),
        ("eurosat", "closed_form", 0.60, 0.55),
        ("dtd", "zero_shot", 0.30, 0.36),
        ("dtd", "closed_form", 0.50, 0.62),
    ):
        for seed in (1, 2):
            write_run(runs, alone, data=data, method=method, seed=seed)
            write_run(runs, together, data=data, method=method, seed=seed, protocol="transductive")
    page = write_runs_report(read_subject(runs), tmp_path / "report", text_only=True)
    text = (page.parent / "report.md").read_text()
    _, _, rest = text.partition("## All test images together")
    section, _, _ = rest.partition("\n## ")
    assert r"| closed\_form | **62.00** ± 0.00 | **55.00** ± 0.00 | **58.50** ± 0.00 |" in section
    assert r"| zero\_shot | +6.00 ± 0.00 | +10.00 ± 0.00 | +8.00 |" in section
    assert r"| closed\_form | +12.00 ± 0.00 | −5.00 ± 0.00 | +3.50 |" in section
    assert "62.00" not in text.replace(section, "")
