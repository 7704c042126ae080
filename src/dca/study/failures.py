"""What the options of an experiment come to: its values, with those that method, dataset and shots decide filled in.

A default may change from one version to the next, and with it what a spec stands for. The values that a run recorded do
not, so they say which options were measured.

And the records of cells that failed in a sweep, which `dca.study.index` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.files import explain_write_errors, write_json
from dca.core.options import as_json
from dca.datasets import catalog
from dca.methods.base import Problem
from dca.methods.registry import get_method
from dca.study.index import FAILED_FOLDER, FEW_CLASSES
from dca.study.specification import Cell


def resolved(
    method: str, options: Mapping[str, Any], dataset: str, shots: int | None, classes: int = FEW_CLASSES
) -> dict[str, Any]:
    """All options of a method as JSON holds them, with the values that depend on the problem filled in."""
    kind, names = get_method(method), tuple(map(str, range(classes)))
    found = kind.resolve(kind.parse_options(options), Problem(names=names, shots=shots or 1, dataset=dataset))
    return as_json(asdict(found))


def settings_of(cell: Cell, classes: int = FEW_CLASSES) -> dict[str, Any]:
    """All options of a cell, those of its head included, as they are today."""
    entry, spec = catalog.find(cell.spec.data), cell.spec
    return resolved(spec.method, {**spec.options, **cell.head}, entry.name if entry else "", spec.shots, classes)


def differences(options: Mapping[str, Any], cell: Cell, classes: int = FEW_CLASSES) -> list[str]:
    """Options with other values in a run than in a cell today; names that only one of them has are left out.

    Args:
        options: What the run recorded.
        cell: The cell.
        classes: Number of classes of the run.

    Returns:
        One line per option.
    """
    today = settings_of(cell, classes)
    return [
        f"{name}={value!r} there, {today[name]!r} today"
        for name, value in options.items()
        if name in today and today[name] != value
    ]


def record_failure(runs: Path, cell: Cell, error: str, traceback: str) -> None:
    """Record that a cell failed."""
    place = _place(runs, cell)
    with explain_write_errors(place):
        place.parent.mkdir(exist_ok=True)
    record: dict[str, Any] = {"id": cell.id, "cell": cell.label, "spec": cell.spec.to_dict(), "head": dict(cell.head)}
    with suppress(UserError):  # options that no method has are an error of their own
        record["options"] = settings_of(cell)
    write_json(place, {**record, "error": error, "traceback": traceback})


def forget_failure(runs: Path, cell: Cell) -> None:
    """Remove the record of a cell that is finished now."""
    _place(runs, cell).unlink(missing_ok=True)


def _place(runs: Path, cell: Cell) -> Path:
    return runs / FAILED_FOLDER / f"{cell.id}.json"
