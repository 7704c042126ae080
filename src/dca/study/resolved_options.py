"""What the options of an experiment come to: its values, with those that method, dataset and shots decide filled in.

A default may change from one version to the next, and with it what an experiment stands for. The values that a run
recorded do not, so they say which options were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dca.core.options import as_json, replace_options
from dca.datasets import catalog
from dca.methods.base import Problem
from dca.methods.registry import get_method
from dca.study.index import FEW_CLASSES
from dca.study.specification import Cell


def resolve_options(
    method: str, options: Any, dataset: str, shots: int | None, classes: int = FEW_CLASSES
) -> dict[str, Any]:
    """All options of a method as JSON holds them, with the values that depend on the problem filled in.

    Args:
        method: Name of the method.
        options: An `Options` object of the method.
        dataset: Name of a public dataset, or "".
        shots: Images per class; None for all.
        classes: Number of classes.

    Returns:
        Values by name.
    """
    problem = Problem(names=tuple(map(str, range(classes))), shots=shots or 1, dataset=dataset)
    return as_json(asdict(get_method(method).resolve(options, problem)))


def resolve_cell_options(cell: Cell, classes: int = FEW_CLASSES) -> dict[str, Any]:
    """All options of a cell, those of its head included, as they are today."""
    experiment, entry = cell.experiment, catalog.find(cell.experiment.data)
    options = replace_options(experiment.options, **cell.head)
    return resolve_options(experiment.method, options, entry.name if entry else "", experiment.shots, classes)


def compare_options(recorded: Mapping[str, Any], cell: Cell, classes: int = FEW_CLASSES) -> list[str]:
    """Options with other values in a run than in a cell today; names that only one of them has are left out.

    Args:
        recorded: What the run recorded.
        cell: The cell.
        classes: Number of classes of the run.

    Returns:
        One line per option.
    """
    today = resolve_cell_options(cell, classes)
    return [
        f"{name}={value!r} there, {today[name]!r} today"
        for name, value in recorded.items()
        if name in today and today[name] != value
    ]
