"""Cells that failed in a sweep, as its folder of runs records them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.files import read_json, write_json, writing
from dca.studies.cell import Cell
from dca.studies.settings import settings_of

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
    with writing(place):
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
