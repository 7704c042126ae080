"""What the options of an experiment come to: its values, with those that method, dataset and shots decide filled in.

A default may change from one version to the next, and with it what a spec stands for. The values that a run recorded do
not, so they say which setting was measured.

Cells that failed in a sweep, as its folder of runs records them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.files import explain_write_errors, read_json, write_json
from dca.core.options import as_json
from dca.datasets import catalog
from dca.methods.base import Problem
from dca.methods.registry import get_method
from dca.model.checkpoint import RESULT, SPEC
from dca.study.specification import Cell

# Classes that are assumed where their number is not known: some epochs follow from a number of steps and of images.
FEW = 2


def resolved(
    method: str, options: Mapping[str, Any], dataset: str, shots: int | None, classes: int = FEW
) -> dict[str, Any]:
    """All options of a method as JSON holds them, with the values that depend on the problem filled in."""
    kind, names = get_method(method), tuple(map(str, range(classes)))
    found = kind.resolve(kind.choose(options), Problem(names=names, shots=shots or 1, dataset=dataset))
    return as_json(asdict(found))


def settings_of(cell: Cell, classes: int = FEW) -> dict[str, Any]:
    """All options of a cell, those of its head included, as they are today."""
    entry, spec = catalog.lookup(cell.spec.data), cell.spec
    return resolved(spec.method, {**spec.options, **cell.head}, entry.name if entry else "", spec.shots, classes)


@dataclass(frozen=True)
class Recorded:
    """The options that a run recorded, by name, and its number of classes."""

    options: Mapping[str, Any]
    classes: int = FEW


def recorded(runs: Path, name: str) -> Recorded:
    """What a finished run was made with.

    Args:
        runs: Folder of the results.
        name: Name of the folder of the run; a head has the values that it does not change from its fit.

    Returns:
        Its options, none where it recorded none, and its number of classes.
    """
    record, result = read_json(runs / name / SPEC), read_json(runs / name / RESULT)
    options = record.get("identity", {}).get("options", {})
    fit = result.get("fit")
    if not options and fit and (runs / fit / SPEC).is_file():
        options = {**recorded(runs, fit).options, **record.get("options", record["head"])}
    return Recorded(options, result.get("classes", FEW))


def differences(there: Recorded, cell: Cell) -> list[str]:
    """Options that have other values in a run than in a cell today; names that only one of them has are left out."""
    today = settings_of(cell, there.classes)
    return [
        f"{name}={value!r} there, {today[name]!r} today"
        for name, value in there.options.items()
        if name in today and today[name] != value
    ]


FOLDER = "failed"


@dataclass(frozen=True)
class Failure:
    """One cell that failed in the last sweep.

    Attributes:
        id: Its id.
        label: The cell in words.
        spec: The spec, as `Spec.to_dict` gives it.
        head: Options of the head, where they differ from those of the fit.
        options: All options of the method, with defaults; empty where they are not known.
        error: Why it failed.
    """

    id: str
    label: str
    spec: Mapping[str, Any]
    head: Mapping[str, Any]
    options: Mapping[str, Any]
    error: str


def failures(runs: Path) -> tuple[Failure, ...]:
    """The cells that failed and were not finished since, sorted by id.

    Raises:
        UserError: If a record cannot be read.
    """
    return tuple(_read(place) for place in sorted((runs / FOLDER).glob("*.json")))


def _read(place: Path) -> Failure:
    record = read_json(place)
    try:
        known = {name: record[name] for name in ("spec", "head", "error")}
        return Failure(place.stem, record["cell"], **known, options=record.get("options", {}))
    except KeyError as error:
        raise UserError(f"{place}: no record of a failed cell, {error} is missing", hint="remove the file") from None


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
    return runs / FOLDER / f"{cell.id}.json"
