"""Results of many runs as values, read from a folder of runs or from one results file.

A folder of runs is what a sweep leaves: per finished cell a folder with `spec.json` and `result.json`, per failed cell
`failed/ID.json`. A results file holds the same as JSON lines, one cell per line, sorted by id: what both files of a
finished cell hold, without findings about single images, or the record of a failure. `collect` makes and extends it,
`read_results` reads either.

`RunIndex` keeps the records of a folder in SQLite, so that 100,000 runs are quick to ask. The files stay the truth:
`refresh` reads those whose time or size has changed, and the database is made again where it is missing, damaged or of
another version. Where it cannot be written it is kept in memory.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from dca.core import sqlite
from dca.core.errors import UserError, unknown_name
from dca.core.files import PARTIAL, encode_utf8, explain_write_errors, read_json, write_bytes
from dca.core.hints import collect_runs, run_sweep
from dca.core.sqlite import transaction
from dca.model.checkpoint import CONFIG, RESULT, SPEC
from dca.runs.result import TargetResult

log = logging.getLogger(__name__)

FILE = "index.sqlite"
RESULTS_SUFFIX = ".jsonl"
FAILED_FOLDER = "failed"
# Classes that are assumed where their number was not recorded: some epochs follow from a number of steps and of images.
FEW_CLASSES = 2
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
        spec: The spec, as `Experiment.to_dict` gives it.
        head: Options of the head, where they differ from those of the fit.
        options: All options that the run recorded, those of its fit included; empty where it recorded none.
        classes: Number of classes.
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
    classes: int
    spec: dict[str, Any]
    head: dict[str, Any]
    options: dict[str, Any]
    targets: tuple[TargetResult, ...]


@dataclass(frozen=True)
class FailedCell:
    """One cell that failed in the last sweep and was not finished since.

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


@dataclass(frozen=True)
class Results:
    """Finished and failed cells, both sorted by id."""

    records: tuple[RunRecord, ...]
    failures: tuple[FailedCell, ...] = ()


COLUMNS = tuple(field.name for field in fields(RunRecord))
_JSON = ("spec", "head", "options", "targets")
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
    named |= {name: json.loads(named[name]) for name in _JSON}
    return RunRecord(**named | {"targets": _targets(named["targets"])})


def _targets(values: Iterable[Mapping[str, Any]]) -> tuple[TargetResult, ...]:
    return tuple(TargetResult(**target) for target in values)


def _result_files(runs: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Folder name, and time and size of the result file, of every finished cell."""
    if not runs.is_dir():
        return
    with os.scandir(runs) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(PARTIAL):
                continue
            with suppress(OSError):
                status = os.stat(os.path.join(entry.path, RESULT))
                yield entry.name, (status.st_mtime_ns, status.st_size)


def _values(folder: Path) -> tuple[Any, ...] | None:
    """The columns of one cell; None if its files cannot be read."""
    try:
        record = _record(_finished_line(folder), lambda fit: _spec_record(folder.parent / fit))
    except (UserError, LookupError, TypeError) as error:
        log.warning("%s: left out of the index (%s)", folder, error)
        return None
    return tuple(json.dumps(value) if name in _JSON else value for name, value in asdict(record).items())


def _spec_record(folder: Path) -> dict[str, Any]:
    """What `spec.json` of a run holds; empty if there is no such run."""
    return read_json(folder / SPEC) if (folder / SPEC).is_file() else {}


def _finished_line(folder: Path) -> dict[str, Any]:
    """What a results file holds of a finished cell, from its folder: all but what is said of single images."""
    result = {name: value for name, value in read_json(folder / RESULT).items() if name != "findings"}
    return {"id": folder.name, **read_json(folder / SPEC), "result": result}


def _record(line: Mapping[str, Any], spec_record_of: Callable[[str], Mapping[str, Any]]) -> RunRecord:
    """The record of one finished cell.

    A head that was measured on a finished model has the device and the options of its fit, where it changes none.

    Args:
        line: What a results file holds of it.
        spec_record_of: The id of a fit -> its line or the content of its `spec.json`; empty if it is not there.

    Returns:
        The record.

    Raises:
        LookupError, TypeError: If the line lacks something.
    """
    result, spec, head = line["result"], line["spec"], line.get("head", {})
    identity = line.get("identity", {})
    options = identity.get("options", {})
    if "fit" in result and (of_fit := spec_record_of(str(result["fit"]))):
        identity = of_fit.get("identity", {})
        options = options or {**identity.get("options", {}), **line.get("options", head)}
    device = identity.get("device")
    taken = {name: result.get(name) for name in COLUMNS}
    return RunRecord(
        **taken
        | {
            "id": line["id"],
            "dataset": result.get("public") or spec["data"],
            "backbone": spec["backbone"],
            "rules": spec["rules"],
            "measured_on": spec.get("measured_on", "test"),
            "device": None if device is None else str(device),
            "evaluation_seconds": result.get("evaluation_seconds", 0.0),
            "classes": result.get("classes", FEW_CLASSES),
            "spec": spec,
            "head": head,
            "options": options,
            "targets": _targets(result["targets"]),
        }
    )


def read_failures(runs: Path) -> tuple[FailedCell, ...]:
    """The cells of a folder of runs that failed and were not finished since, sorted by id.

    Raises:
        UserError: If a record cannot be read.
    """
    return tuple(_failure(line, runs / FAILED_FOLDER / f"{line['id']}.json") for line in _failed_lines(runs))


def _failed_lines(runs: Path) -> Iterator[dict[str, Any]]:
    """What a results file holds of the failed cells of a folder; without tracebacks, which name paths of a machine."""
    for path in sorted((runs / FAILED_FOLDER).glob("*.json")):
        record = read_json(path) | {"id": path.stem}
        record.pop("traceback", None)
        yield record


def _failure(line: Mapping[str, Any], path: Path) -> FailedCell:
    try:
        known = {name: line[name] for name in ("id", "spec", "head", "error")}
        return FailedCell(**known, label=line["cell"], options=line.get("options", {}))
    except KeyError as error:
        raise UserError(f"{path}: no record of a failed cell, {error} is missing", hint="remove the file") from None


def read_results(source: Path) -> Results:
    """Read all finished and failed cells.

    Args:
        source: A folder of runs, which need not exist, or a results file.

    Returns:
        The results.

    Raises:
        UserError: If the file, or the record of a failure, cannot be read.

    Example:
        >>> read_results(Path("a folder without runs"))
        Results(records=(), failures=())
    """
    if not is_results_file(source):
        if not any(_result_files(source)):  # perhaps a model's folder, in which no index should be left
            return Results((), read_failures(source))
        with RunIndex(source) as index:
            index.refresh()
            return Results(tuple(index.rows()), read_failures(source))
    lines = {str(line["id"]): line for line in _file_lines(source)}
    try:
        records = [_record(line, lambda fit: lines.get(fit, {})) for line in lines.values() if "result" in line]
    except (LookupError, TypeError) as error:
        raise _not_results(source, str(error)) from None
    failures = [_failure(line, source) for line in lines.values() if "result" not in line]
    return Results(tuple(sorted(records, key=_id)), tuple(sorted(failures, key=_id)))


def is_results_file(source: Path) -> bool:
    """Whether a path names a results file, by its ending.

    >>> is_results_file(Path("results/study.jsonl")), is_results_file(Path("runs"))
    (True, False)
    """
    return source.suffix == RESULTS_SUFFIX


def is_runs_folder(folder: Path) -> bool:
    """Whether a folder holds finished runs, each in a folder of its own, and is no model itself."""
    return not (folder / CONFIG).exists() and any(True for _ in _result_files(folder))


def _id(one: RunRecord | FailedCell) -> str:
    return one.id


def _file_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a results file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})", hint=run_sweep()) from None
    for number, written in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(written)
        except ValueError as error:
            raise _not_results(path, f"line {number}: {error}") from None
        if not isinstance(line, dict) or "id" not in line:
            raise _not_results(path, f"line {number} has no id")
        yield line


def _not_results(path: Path, why: str) -> UserError:
    return UserError(f"{path}: not a results file ({why})", hint=collect_runs())


@dataclass(frozen=True)
class CollectCounts:
    """What `collect` did with the cells of its sources.

    Attributes:
        added: Cells that the file did not have.
        changed: Cells that the file had with other values; among them failures that are finished now.
        finished, failed: Cells that the file holds now.
    """

    added: int
    changed: int
    finished: int
    failed: int


def collect(sources: Iterable[Path], output: Path) -> CollectCounts:
    """Collect finished and failed cells into a results file, one per line, sorted by id.

    Cells that the file has already are kept, or replaced where a source has other values; a failure never replaces a
    finished cell. Equal results give equal bytes, whatever the order of the sources.

    Args:
        sources: Folders of runs, or results files.
        output: The results file; it is created or extended.

    Returns:
        Counts.

    Raises:
        UserError: If a source holds no cells, something cannot be read, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> line = '{"id": "a1", "cell": "gda eurosat", "spec": {}, "head": {}, "error": "no such data"}'
        >>> _ = (folder / "monday.jsonl").write_text(line)
        >>> collect([folder / "monday.jsonl"], folder / "all.jsonl")
        CollectCounts(added=1, changed=0, finished=0, failed=1)
    """
    if not is_results_file(output):
        raise UserError(
            f"{output}: a results file ends with {RESULTS_SUFFIX}", hint=f"name it {output}{RESULTS_SUFFIX}"
        )
    before = {line["id"]: line for line in _file_lines(output)} if output.exists() else {}
    after = dict(before)
    for source in sources:
        lines = list(_file_lines(source) if is_results_file(source) else _folder_lines(source))
        if not lines:
            raise UserError(f"{source}: no finished or failed runs", hint=run_sweep())
        for line in lines:
            if "result" in line or "result" not in after.get(line["id"], {}):
                after[line["id"]] = line
    if after != before:
        text = "".join(f"{_as_text(after[id])}\n" for id in sorted(after))
        with explain_write_errors(output):
            output.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(output, encode_utf8(text))
    finished = sum("result" in line for line in after.values())
    changed = sum(after[id] != line for id, line in before.items())
    return CollectCounts(len(after) - len(before), changed, finished, len(after) - finished)


def _folder_lines(runs: Path) -> Iterator[dict[str, Any]]:
    """The lines of a folder of runs; cells whose files cannot be read are left out with a warning."""
    yield from _failed_lines(runs)
    for id in sorted(dict(_result_files(runs))):
        try:
            line = _finished_line(runs / id)
            _record(line, lambda fit: {})
        except (UserError, LookupError, TypeError) as error:
            log.warning("%s: left out (%s)", runs / id, error)
        else:
            yield line


def _as_text(line: Mapping[str, Any]) -> str:
    """One line: the id, then everything else with sorted keys."""
    rest = {name: value for name, value in line.items() if name != "id"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return f'{{"id": {json.dumps(line["id"])}, {text[1:]}'


def _connect(runs: Path) -> sqlite3.Connection:
    """The database of a folder of runs, made if needed; in memory where the folder is missing or cannot be written."""
    path = runs / FILE
    if not runs.is_dir() or not os.access(runs, os.W_OK):
        return sqlite.connect(":memory:", _SCHEMA)
    try:
        return sqlite.connect(path, _SCHEMA)
    except sqlite3.OperationalError as error:  # no room, no locks on this file system
        log.warning("%s is not used: %s", path, error)
        return sqlite.connect(":memory:", _SCHEMA)
    except sqlite3.DatabaseError:  # damaged, or the tables of another version
        path.unlink(missing_ok=True)
        return sqlite.connect(path, _SCHEMA)
