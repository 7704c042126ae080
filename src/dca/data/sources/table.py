"""Image lists: CSV and JSON Lines files that name a path, a label and perhaps a split."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.wording import counted
from dca.data.decode import is_special
from dca.data.sources.walk import IMAGE_SUFFIXES

PATH_COLUMNS = ("path", "file_name", "filename", "file", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "class", "category", "label_name", "class_name", "target")
SPLIT_COLUMNS = ("split", "subset", "partition", "set")
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
_EXPECTED = "expected a header 'path,label' or 'path,label,split'"


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a list; `split` is train, val, test or empty."""

    line: int
    path: Path
    label: str
    split: str


def read_rows(table: Path) -> list[Row]:
    """Rows of an image list, paths taken relative to the list's own folder.

    Raises UserError with every bad row and its line number.
    """
    records = list(_json_records(table) if table.suffix.lower() == ".jsonl" else _csv_records(table))
    rows: list[Row] = []
    faults: list[str] = []
    first: dict[Path, Row] = {}
    for line, record in records:
        row = _row(table.parent, line, record)
        if isinstance(row, Row) and row.path in first:
            other = first[row.path]
            same = other.label == row.label
            row = f"line {line}: {record['path']} " + (
                f"is listed again (first in line {other.line})"
                if same
                else f"has label '{row.label}' here and '{other.label}' in line {other.line}"
            )
        if isinstance(row, str):
            faults.append(row)
            continue
        first[row.path] = row
        rows.append(row)
    if faults:
        raise UserError(
            f"{table}: {counted(len(faults), 'row', of=len(records))} cannot be used.",
            details=faults,
            hint="correct or remove these lines; paths are relative to the folder of the list",
        )
    if not rows:
        raise UserError(f"{table}: no rows.", hint=_EXPECTED)
    return rows


def has_labels(table: Path) -> bool:
    """Whether an image list has a label column (captions alone are no classes)."""
    if table.suffix.lower() == ".jsonl":
        return any(record.get("label") for _, record in _json_records(table))
    header, _ = _csv_header(table)
    return header is not None and _find(header, LABEL_COLUMNS) is not None


def _row(folder: Path, line: int, record: dict[str, str]) -> Row | str:
    """The row, or what is wrong with it."""
    if fault := record.get("fault"):
        return f"line {line}: {fault}"
    if not record["path"]:
        return f"line {line}: no path"
    path = folder / record["path"]
    if "\\" in record["path"] and not path.is_file():
        path = folder / record["path"].replace("\\", "/")  # a list made on Windows
    if not record["label"]:
        return f"line {line}: no label for {record['path']}"
    split = record["split"].lower()
    if split and split not in SPLIT_NAMES:
        return f"line {line}: split '{record['split']}' is none of train, val, test"
    if is_special(path):
        return f"line {line}: not a regular file: {record['path']}"
    if not path.is_file():
        return f"line {line}: no such file: {record['path']}"
    return Row(line, path, record["label"], SPLIT_NAMES.get(split, ""))


def _text(table: Path) -> str:
    try:
        return table.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = table.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(
            f"{table}: not UTF-8 text (line {line}).", hint="save the list again with UTF-8 encoding"
        ) from error
    except OSError as error:
        raise UserError(f"{table}: cannot be read ({error.strerror}).") from error


def _csv_header(table: Path) -> tuple[list[str] | None, str]:
    """Column names (None for a list without header) and the delimiter."""
    first = next((line for line in _text(table).splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    cells = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), [])]
    names = [cell.lower() for cell in cells]
    if _find(names, PATH_COLUMNS) is not None:
        return names, delimiter
    if len(cells) in (2, 3) and Path(cells[0]).suffix.lower() in IMAGE_SUFFIXES:
        return None, delimiter
    raise UserError(f"{table}: the first line is '{first[:80]}'.", hint=_EXPECTED)


def _csv_records(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    header, delimiter = _csv_header(table)
    columns = header or ["path", "label", "split"]
    where = {
        "path": _find(columns, PATH_COLUMNS),
        "label": _find(columns, LABEL_COLUMNS),
        "split": _find(columns, SPLIT_COLUMNS),
    }
    if where["label"] is None:
        raise UserError(f"{table}: no label column among {', '.join(columns)}.", hint=_EXPECTED)
    needed = 1 + max(where["path"] or 0, where["label"])
    reader = csv.reader(io.StringIO(_text(table), newline=""), delimiter=delimiter)
    skip = header is not None
    for cells in _cells(table, reader):
        if not any(cell.strip() for cell in cells):
            continue
        if skip:
            skip = False
        elif not needed <= len(cells) <= len(columns):
            found = counted(len(cells), "cell")
            yield reader.line_num, {"fault": f"{found}, expected {len(columns)}: {delimiter.join(cells)[:60]}"}
        else:
            cells += [""] * (len(columns) - len(cells))
            yield reader.line_num, {k: "" if i is None else cells[i].strip() for k, i in where.items()}


def _cells(table: Path, reader: Any) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise UserError(f"{table}: line {reader.line_num} is not CSV ({error}).") from error


def _json_records(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(_text(table).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            yield number, {"fault": f"not JSON: {line[:60]}"}
            continue
        if not isinstance(values, dict):
            yield number, {"fault": f"not a JSON object: {line[:60]}"}
            continue
        names = [str(name).lower() for name in values]
        cells = list(values.values())
        record = {}
        for key, columns in (("path", PATH_COLUMNS), ("label", LABEL_COLUMNS), ("split", SPLIT_COLUMNS)):
            at = _find(names, columns)
            record[key] = "" if at is None or cells[at] is None else str(cells[at]).strip()
        yield number, record


def _find(columns: Sequence[str], accepted: Sequence[str]) -> int | None:
    """Position of the first accepted column name."""
    return next((columns.index(name) for name in accepted if name in columns), None)
