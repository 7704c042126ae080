"""An index over the result files of many runs, so that 100,000 of them are quick to ask.

The files stay the truth: `refresh` reads those whose time or size has changed, and the database is made again where
it is missing, damaged or of another version. Where it cannot be written it is kept in memory.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from dca.core.errors import UserError, unknown_name
from dca.core.files import read_json
from dca.features.database import BUSY_SECONDS, transaction
from dca.model.checkpoint import PARTIAL, RESULT, SPEC

log = logging.getLogger(__name__)

FILE = "index.sqlite"
_PER_TRANSACTION = 1000


@dataclass(frozen=True)
class RunRecord:
    """One finished cell.

    Attributes:
        id: Name of its folder.
        method, protocol, shots, seed, rules, accuracy, zero_shot_accuracy, harmonic_mean, seconds,
        evaluation_seconds, trained_parameters: As in `result.json` and `spec.json`; None where they are not there.
        dataset: Name of the public dataset, else the name of the data.
        backbone: As in the spec.
        measured_on: "test" or "validation".
        device: What the fit ran on, "cpu" or "cuda"; None where it was not recorded.
        spec: The spec, as `Spec.to_dict` gives it.
        head: Options of the head, where they differ from those of the fit.
        targets: The figures of each target.
    """

    id: str
    method: str
    dataset: str
    protocol: str
    shots: int | None
    seed: int
    backbone: str
    rules: str
    measured_on: str
    device: str | None
    accuracy: float | None
    zero_shot_accuracy: float | None
    harmonic_mean: float | None
    seconds: float
    evaluation_seconds: float
    trained_parameters: int
    spec: dict[str, Any]
    head: dict[str, Any]
    targets: list[dict[str, Any]]


COLUMNS = tuple(field.name for field in fields(RunRecord))
_JSON = ("spec", "head", "targets")
_ASKABLE = tuple(name for name in COLUMNS if name not in _JSON)
_SCHEMA = (
    f"CREATE TABLE cells (modified INTEGER NOT NULL, bytes INTEGER NOT NULL, {', '.join(COLUMNS)}, PRIMARY KEY (id))",
    "CREATE INDEX by_method ON cells (method, dataset, shots, seed)",
    "CREATE INDEX by_dataset ON cells (dataset, shots)",
)


class RunIndex:
    """The finished cells under a folder of runs.

    Args:
        runs: The folder; it need not exist.

    Example:
        >>> import tempfile
        >>> with RunIndex(Path(tempfile.mkdtemp())) as index:
        ...     index.refresh(), index.rows(method="dca")
        (0, [])
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._db = _connect(runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def refresh(self) -> int:
        """Take in what has changed since the last time.

        Returns:
            The number of finished cells.
        """
        known = {
            id: (modified, size) for id, modified, size in self._db.execute("SELECT id, modified, bytes FROM cells")
        }
        there = dict(_result_files(self.runs))
        changed = [id for id, state in there.items() if known.get(id) != state]
        for start in range(0, len(changed), _PER_TRANSACTION):
            self._store(changed[start : start + _PER_TRANSACTION], there)
        gone = [(id,) for id in known if id not in there]
        if gone:
            with transaction(self._db):
                self._db.executemany("DELETE FROM cells WHERE id = ?", gone)
        return int(self._db.execute("SELECT count(*) FROM cells").fetchone()[0])

    def _store(self, ids: Iterable[str], states: dict[str, tuple[int, int]]) -> None:
        """Read these result files and store their rows; one that cannot be read is no finished cell."""
        read = [(id, _values(self.runs / id)) for id in ids]
        with transaction(self._db):
            self._db.executemany("DELETE FROM cells WHERE id = ?", [(id,) for id, _ in read])
            marks = ", ".join("?" * (2 + len(COLUMNS)))
            found = [(*states[id], *values) for id, values in read if values is not None]
            self._db.executemany(f"INSERT INTO cells VALUES ({marks})", found)

    def ids(self) -> set[str]:
        """Ids of all finished cells."""
        return {row[0] for row in self._db.execute("SELECT id FROM cells")}

    def rows(self, **wanted: Any) -> list[RunRecord]:
        """The cells with these values, sorted by id.

        Args:
            **wanted: A value, or a list of values, of one of the columns.

        Returns:
            The rows.

        Raises:
            UserError: If there is no such column.
        """
        clauses, values = [], []
        for name, value in wanted.items():
            if name not in _ASKABLE:
                raise unknown_name("column", name, _ASKABLE)
            some = list(value) if isinstance(value, list | tuple | set) else [value]
            clauses.append(f"({' OR '.join(f'{name} IS ?' for _ in some) or '0'})")
            values += some
        where = f" WHERE {' AND '.join(clauses)}" if clauses else ""
        found = self._db.execute(f"SELECT {', '.join(COLUMNS)} FROM cells{where} ORDER BY id", values)
        return [_row(values) for values in found]


def _row(values: Sequence[Any]) -> RunRecord:
    named = dict(zip(COLUMNS, values, strict=True))
    return RunRecord(**{name: json.loads(value) if name in _JSON else value for name, value in named.items()})


def _result_files(runs: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Folder name, and time and size of the result file, of every finished cell."""
    if not runs.is_dir():
        return
    with os.scandir(runs) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(PARTIAL):
                continue
            with suppress(OSError):
                found = os.stat(os.path.join(entry.path, RESULT))
                yield entry.name, (found.st_mtime_ns, found.st_size)


def _values(folder: Path) -> tuple[Any, ...] | None:
    """The columns of one cell; None if its files cannot be read."""
    try:
        result, record = read_json(folder / RESULT), read_json(folder / SPEC)
        spec = record["spec"]
        named = {
            **{name: result.get(name) for name in COLUMNS},
            "id": folder.name,
            "dataset": result.get("public") or spec["data"],
            "backbone": spec["backbone"],
            "rules": spec["rules"],
            "measured_on": spec.get("measured_on", "test"),
            "device": _device(folder, record, result),
            "evaluation_seconds": result.get("evaluation_seconds", 0.0),
            "spec": json.dumps(spec),
            "head": json.dumps(record.get("head", {})),
            "targets": json.dumps(result["targets"]),
        }
    except (UserError, LookupError, TypeError) as error:
        log.warning("%s: left out of the index (%s)", folder, error)
        return None
    return tuple(named[name] for name in COLUMNS)


def _device(folder: Path, record: dict[str, Any], result: dict[str, Any]) -> str | None:
    """What the fit of a cell ran on. A head that was measured on a finished model has the device of its fit."""
    fit = folder.parent / str(result.get("fit")) / SPEC
    if "fit" in result and fit.is_file():
        record = read_json(fit)
    found = record.get("identity", {}).get("device")
    return None if found is None else str(found)


def _connect(runs: Path) -> sqlite3.Connection:
    """The database of a folder of runs, made if needed; in memory where the folder is missing or cannot be written."""
    path = runs / FILE
    if not runs.is_dir() or not os.access(runs, os.W_OK):
        return _opened(":memory:")
    try:
        return _opened(path)
    except sqlite3.OperationalError as error:  # no room, no locks on this file system
        log.warning("%s is not used: %s", path, error)
        return _opened(":memory:")
    except sqlite3.DatabaseError:  # damaged, or the tables of another version
        path.unlink(missing_ok=True)
        return _opened(path)


def _opened(place: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        if not _has_tables(db):
            with transaction(db):
                if not _has_tables(db):  # another process may have made them
                    for statement in _SCHEMA:
                        db.execute(statement)
    except BaseException:
        db.close()
        raise
    return db


def _has_tables(db: sqlite3.Connection) -> bool:
    """Whether the tables are there; raises for those of another version."""
    statements = {row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if statements and statements != set(_SCHEMA):
        raise sqlite3.DatabaseError("its tables are not those of this version")
    return bool(statements)
