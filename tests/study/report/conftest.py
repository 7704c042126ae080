"""A folder of invented runs that fills every section, and its report."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dca.study.experiment import Experiment
from dca.study.report.folder import write_runs_report
from dca.study.report.subject import Subject, read_subject
from dca.study.specification import Cell
from dca.study.sweep import record_failure
from helpers.made_runs import write_run

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "runs_report.py"
# Enough to fill every section.
DATASETS = ("dtd", "eurosat", "imagenet")
METHODS = ("zero_shot", "tip_adapter", "coop", "dapt", "maple", "dca")
GAMMAS = (100.0, 700.0)


@pytest.fixture(scope="session")
def script() -> ModuleType:
    """benchmarks/runs_report.py as a module."""
    spec = importlib.util.spec_from_file_location("runs_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def wanted(cell: Any) -> bool:
    head = cell.head.get("gamma1", GAMMAS[0]) in GAMMAS and cell.head.get("gamma2", 5.0) in (5.0, 500.0)
    return (
        head
        and cell.experiment.measured_on == "test"
        and cell.experiment.data in DATASETS
        and cell.experiment.method in METHODS
        and cell.experiment.seed <= 3
    )


@pytest.fixture(scope="session")
def runs(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part of the cells of all shipped specifications; with one more backbone, and one run on validation images."""
    folder = tmp_path_factory.mktemp("made") / "runs"
    for name in sorted(script.list_shipped()):
        for cell in filter(wanted, script.load_specification(name).cells):
            if not (folder / cell.id).exists():
                script.write_cell(folder, cell, script.invent_result(cell))
    write_run(folder, 0.75, data="my photos & <more>", method="closed_form", shots=None)
    write_run(folder, 0.99, data="eurosat", method="gda", measured_on="validation")
    spec = Experiment(data="dtd", method="dca", shots=16, seed=1, backbone="vit-b-16", rules="paper")
    gammas = {"gamma1": GAMMAS[0], "gamma2": 600.0, "center": "text"}
    record_failure(folder, Cell(replace(spec, options={"recipe": "paper"}), gammas), "not positive definite", "")
    return folder


@pytest.fixture(scope="session")
def subject(runs: Path) -> Subject:
    return read_subject(runs, specifications=["paper/few-shot"])


@pytest.fixture(scope="session")
def report(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report."""
    return write_runs_report(subject, tmp_path_factory.mktemp("written") / "report").parent


@pytest.fixture(scope="session")
def results(runs: Path) -> dict[str, dict[str, Any]]:
    """Every result file by id, with its spec and head."""
    found = {}
    for path in runs.glob("*/result.json"):
        record = json.loads((path.parent / "spec.json").read_text())
        found[path.parent.name] = {**record["spec"], **json.loads(path.read_text()), "head": record.get("head", {})}
    return found
