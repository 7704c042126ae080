"""Experiments that are trained alike and tested on different images share one fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dca.model.classifier import Classifier
from dca.study.experiment import Experiment
from dca.study.specification import Cell, Specification, group_jobs, parse_specification
from dca.study.sweep import few_shot_twin, plan_sweep
from dca.study.worker import Worker
from helpers.miniatures import Size, miniature

SIZE = Size(per_class={"train": 4, "val": 2, "test": 2}, classes=3, per_folder=8, distinct=4)
SHIFTED = {"protocol": "domain-shift", "targets": ["eurosat@noise", "eurosat@grey"]}
Figures = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a miniature of EuroSAT."""
    folder = tmp_path_factory.mktemp("data")
    miniature("eurosat", folder, SIZE)
    return folder


@pytest.fixture
def study(tiny_folder: Path) -> Specification:
    """Two methods, few-shot and with a domain shift, and a head of one of the shifted ones."""
    common = {"data": "eurosat", "backbone": str(tiny_folder), "shots": 2, "options": {"epochs": 1}}
    grids = [
        {"method": ["coop", "dca"]},
        {"method": ["coop", "dca"], **SHIFTED},
        {"method": "dca", "head": {"test_metric": "cosine"}, **SHIFTED},
    ]
    return parse_specification({"common": common, "grid": grids}, "both")


def carry_out(cells: tuple[Cell, ...], runs: Path, root: Path) -> None:
    worker, made = Worker(runs, root, "cpu"), plan_sweep(Specification("some", "some", "", cells), runs)
    reports = [report for job in made.jobs for report in worker.run(job)]
    assert [report.error for report in reports] == [""] * len(cells)


def test_a_shared_fit_gives_what_a_fit_of_its_own_gives(
    study: Specification, root: Path, tmp_path: Path, figures: Figures
):
    made = plan_sweep(study, tmp_path / "shared")
    assert (len(made.to_do), made.new_fits) == (5, 2)
    carry_out(study.cells, tmp_path / "shared", root)
    alone = Worker(tmp_path / "alone", root, "cpu")
    for job in group_jobs(study.cells):
        assert not any(report.error for report in alone.run(job))
    shared, own = figures(tmp_path / "shared"), figures(tmp_path / "alone")
    measured = [cell for cell in study.cells if cell.experiment.protocol == "domain-shift"]
    assert all(shared[cell.id].pop("fit") == few_shot_twin(cell.experiment).id for cell in measured)  # type: ignore[union-attr]
    assert all(own[cell.id].pop("fit") == cell.experiment.id for cell in measured if cell.head)
    assert shared == own
    assert [len(shared[cell.id]["targets"]) for cell in measured] == [3, 3, 3], "its own test images come first"


def test_a_finished_model_is_tested_without_another_fit(
    study: Specification, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    carry_out(study.cells[:2], tmp_path, root)
    monkeypatch.setattr(Classifier, "_fit_drawn", lambda *a, **k: pytest.fail("fitted again"))
    assert plan_sweep(study, tmp_path).new_fits == 0
    carry_out(study.cells[2:], tmp_path, root)
    assert plan_sweep(study, tmp_path).to_do == ()


def test_without_the_model_of_its_twin_an_experiment_is_fitted(study: Specification, root: Path, tmp_path: Path):
    """Of a copied folder of runs often only the figures are there."""
    carry_out(study.cells[:2], tmp_path, root)
    for cell in study.cells[:2]:
        (tmp_path / cell.id / "config.json").unlink()
        (tmp_path / cell.id / "model.safetensors").unlink()
    assert [job.experiment.protocol for job in plan_sweep(study, tmp_path).jobs] == ["domain-shift"] * 2


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, True),
        ({"protocol": "transductive", "targets": []}, True),
        ({"protocol": "few-shot", "targets": []}, False),
        ({"protocol": "base-to-new", "targets": []}, False),
        ({"data": "my/photos"}, False),  # images may be held out of it
    ],
)
def test_which_experiments_have_a_twin(change: dict[str, Any], shared: bool):
    spec = Experiment(**{"data": "eurosat", "method": "maple", "shots": 16, **SHIFTED, **change})
    assert (few_shot_twin(spec) is not None) == shared


def test_the_twin_has_the_authors_recipe_of_the_other_protocol():
    spec = Experiment(data="eurosat", method="maple", shots=16, rules="paper", **SHIFTED)
    twin, usual = few_shot_twin(spec), Experiment(data="eurosat", method="maple", shots=16, rules="paper")
    assert twin is not None
    assert twin.options == spec.options != usual.options
    assert twin.id != usual.id
