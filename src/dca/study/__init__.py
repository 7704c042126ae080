"""Comparing methods as papers do: experiments under protocols, sweeps, selection, published numbers, claims, reports.

The study is a client of the library: nothing in `dca` outside of this package imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dca.study import protocols
    from dca.study.experiment import Experiment, ExperimentResult
    from dca.study.index import RunRecord, collect, read_results
    from dca.study.run import make_experiment_task, run_experiment
    from dca.study.selection import select_options
    from dca.study.specification import Cell, Specification, load_specification
    from dca.study.sweep import Plan, plan_sweep, run_sweep

__all__ = [
    "Cell",
    "Experiment",
    "ExperimentResult",
    "Plan",
    "RunRecord",
    "Specification",
    "collect",
    "load_specification",
    "make_experiment_task",
    "plan_sweep",
    "protocols",
    "read_results",
    "run_experiment",
    "run_sweep",
    "select_options",
]

# Module -> its public names.
_HOMES = {
    "experiment": ("Experiment", "ExperimentResult"),
    "index": ("RunRecord", "collect", "read_results"),
    "run": ("make_experiment_task", "run_experiment"),
    "selection": ("select_options",),
    "specification": ("Cell", "Specification", "load_specification"),
    "sweep": ("Plan", "plan_sweep", "run_sweep"),
}


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that the command line's help costs nothing."""
    if name == "protocols":
        return import_module("dca.study.protocols")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"dca.study.{module}"), name)
    raise AttributeError(f"module 'dca.study' has no attribute '{name}'")


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return sorted({*globals(), *__all__})
