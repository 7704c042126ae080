"""An option is validated once, at the edge, and is the same object from there on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dca.core import options as core_options
from dca.methods.dca import DCAOptions
from dca.study.specification import group_jobs, parse_specification
from dca.study.worker import Worker

Validations = list[Any]
QUICK = {"epochs": 2, "warmup_epochs": 0, "batch_size": 8}


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> Validations:
    """The options of DCA whose epochs are not the default, each time that they are validated."""
    seen: Validations = []
    check = core_options.check_limits

    def count(options: Any) -> None:
        if isinstance(options, DCAOptions) and options.epochs == QUICK["epochs"]:
            seen.append(options)
        check(options)

    monkeypatch.setattr(core_options, "check_limits", count)
    return seen


@pytest.mark.parametrize("combination", [("--method", "dca"), ("--with", "dca", "--set", "folds=2")])
@pytest.mark.parametrize("estimate", [(), ("--estimate",)])
def test_a_fit_on_the_command_line_validates_once(
    dca: Callable[..., Any],
    photos: Path,
    tiny_folder: Path,
    tmp_path: Path,
    validations: Validations,
    combination: tuple[str, ...],
    estimate: tuple[str, ...],
):
    settings = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    line = ("fit", photos, "--backbone", tiny_folder, "--shots", 2, "-o", tmp_path / "m.dca", *combination, *estimate)
    done = dca(*line, *settings, "--set", "alpha=1")
    assert done.code == 0, done.err
    assert [options.alpha for options in validations] == [1.0]


def test_a_cell_of_a_sweep_validates_once(photos: Path, tiny_folder: Path, tmp_path: Path, validations: Validations):
    common = {"data": str(photos), "backbone": str(tiny_folder), "shots": 1}
    study = parse_specification({"common": common, "grid": [{"method": "dca", "options": QUICK}]}, "one")
    (job,) = group_jobs(study.cells)
    assert [result.error for result in Worker(tmp_path / "runs", None, "cpu").run(job)] == [""]
    assert len(validations) == 1
