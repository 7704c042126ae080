"""Rows of predictions as files: CSV, JSON lines and Parquet, written row by row."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dca.core.errors import UserError
from dca.core.files import utf8

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]
# First characters with which a spreadsheet takes a cell for a formula, unless it is a number.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
NUMBER = re.compile(r"[+-]\d+(\.\d+)?")
# Rows per row group of a Parquet file, which is what is in memory while one is written.
ROW_GROUP = 10_000


@dataclass(frozen=True)
class Columns:
    """Which columns a table has beside path, label, probability and error.

    top: number of classes per image; the others are label_2, probability_2, ... p_value, sets, copies: whether there
    are p-values, sets of classes, and paths of copies.
    """

    top: int = 1
    p_value: bool = False
    sets: bool = False
    copies: bool = False

    def names(self) -> list[str]:
        """Names of all columns, in order."""
        more = [f"{name}_{n}" for n in range(2, self.top + 1) for name in ("label", "probability")]
        optional = {"p_value": self.p_value, "set": self.sets, "copied_to": self.copies}
        return ["path", "label", "probability", *more, *(name for name, on in optional.items() if on), "error"]

    def flat(self, row: Row) -> Row:
        """A row by column; what it lacks is None."""
        found = {name: row.get(name) for name in self.names()}
        for n, best in enumerate(row.get("top", [])[1:], 2):
            found[f"label_{n}"], found[f"probability_{n}"] = best["label"], best["probability"]
        return found


def cell(text: str) -> str:
    """A text for a CSV cell, with an apostrophe in front if a spreadsheet would run it as a formula.

    >>> cell("=1+1"), cell("-5"), cell("cat")
    ("'=1+1", '-5', 'cat')
    """
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def _csv_cell(value: Any) -> str:
    """Any value of a row for a CSV cell; sets are joined by "; ".

    >>> _csv_cell(None), _csv_cell(0.25), _csv_cell(["cat", "dog"])
    ('', '0.250000', 'cat; dog')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}"
    return cell("; ".join(value) if isinstance(value, list) else str(value))


def _write_csv(rows: Iterable[Row], columns: Columns, path: Path) -> None:
    # Names of files may hold bytes that are not valid text; they are written as they are.
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns.names())
        writer.writerows(map(_csv_cell, columns.flat(row).values()) for row in rows)


def _write_jsonl(rows: Iterable[Row], columns: Columns, path: Path) -> None:
    with path.open("wb") as file:
        for row in rows:
            file.write(utf8(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"))


def _write_parquet(rows: Iterable[Row], columns: Columns, path: Path) -> None:
    from pyarrow import RecordBatch
    from pyarrow.parquet import ParquetWriter

    schema = _schema(columns)
    with ParquetWriter(path, schema) as writer:
        for group in _groups(rows, ROW_GROUP):
            flat = [{name: _valid(value) for name, value in columns.flat(row).items()} for row in group]
            writer.write_batch(RecordBatch.from_pylist(flat, schema=schema))


def _schema(columns: Columns) -> pyarrow.Schema:
    """Types by the names of the columns."""
    import pyarrow as pa

    def kind(name: str) -> Any:
        if name == "set":
            return pa.list_(pa.string())
        return pa.float64() if name.startswith(("probability", "p_value")) else pa.string()

    return pa.schema([(name, kind(name)) for name in columns.names()])


def _valid(value: Any) -> Any:
    r"""Text that Parquet takes: bytes of file names that are not valid text become \udcXX."""
    return utf8(value).decode() if isinstance(value, str) else value


def _groups(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Rows in lists of at most `size`."""
    source = iter(rows)
    while group := list(islice(source, size)):
        yield group


WRITERS: dict[str, Callable[[Iterable[Row], Columns, Path], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


def require_writable_kind(path: Path) -> str:
    """The suffix of a table's file; raises if it is unknown, or if its package is not installed."""
    kind = path.suffix.lower()
    if kind not in WRITERS:
        raise UserError(f"{path}: predictions are written as {', '.join(WRITERS)}", hint=f"use {path.stem}.csv")
    require_package_of(kind)
    return kind


def require_package_of(kind: str) -> None:
    """Raise if the package that writes files of this suffix is not installed."""
    if kind != ".parquet":
        return
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        hint = ["pip install 'dca-prompt[parquet]'", "write CSV files"]
        raise UserError("Parquet files need pyarrow, which is not installed", hint=hint) from None
