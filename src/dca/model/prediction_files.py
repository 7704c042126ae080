"""Files of a prediction: the table (CSV, JSON lines, Parquet), the journal of unfinished rows, and copied images.

Tables are written row by row. The journal is a file of JSON lines that only grows, so that a killed process loses
nothing; rows of features have one, too. Images can be copied into one folder per predicted class.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dca.core.errors import UserError
from dca.core.files import PARTIAL, atomic_write, encode_utf8, explain_write_errors
from dca.core.hints import allow_overwrite
from dca.core.progress import Progress

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]
# First characters with which a spreadsheet takes a cell for a formula, unless it is a number.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
NUMBER = re.compile(r"[+-]\d+(\.\d+)?")
_QUOTED = re.compile('[",\r\n]')
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

    def flatten(self, row: Row) -> Row:
        """A row by column; what it lacks is None."""
        values = {name: row.get(name) for name in self.names()}
        for n, best in enumerate(row.get("top", [])[1:], 2):
            values[f"label_{n}"], values[f"probability_{n}"] = best["label"], best["probability"]
        return values


def escape_cell(text: str) -> str:
    """A text for a CSV cell, with an apostrophe in front if a spreadsheet would run it as a formula.

    >>> escape_cell("=1+1"), escape_cell("-5"), escape_cell("cat")
    ("'=1+1", '-5', 'cat')
    """
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def format_csv_row(cells: Iterable[str]) -> str:
    r"""A line of a CSV table. Unlike Python's `csv`, it quotes "\r", which readers take for the end of a line.

    >>> format_csv_row(["a,b", "c"]), format_csv_row(["\r.jpg", "d"])
    ('"a,b",c\n', '"\r.jpg",d\n')
    """
    quoted = ('"' + cell.replace('"', '""') + '"' if _QUOTED.search(cell) else cell for cell in cells)
    return ",".join(quoted) + "\n"


def _csv_cell(value: Any) -> str:
    """Any value of a row for a CSV cell; sets are joined by "; ".

    >>> _csv_cell(None), _csv_cell(0.25), _csv_cell(["cat", "dog"])
    ('', '0.250000', 'cat; dog')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}"
    return escape_cell("; ".join(value) if isinstance(value, list) else str(value))


def _write_csv(rows: Iterable[Row], columns: Columns, path: Path) -> None:
    # Names of files may hold bytes that are not valid text; they are written as they are.
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(format_csv_row(columns.names()))
        file.writelines(format_csv_row(map(_csv_cell, columns.flatten(row).values())) for row in rows)


def _write_jsonl(rows: Iterable[Row], columns: Columns, path: Path) -> None:
    with path.open("wb") as file:
        for row in rows:
            file.write(encode_utf8(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"))


def _write_parquet(rows: Iterable[Row], columns: Columns, path: Path) -> None:
    from pyarrow import RecordBatch
    from pyarrow.parquet import ParquetWriter

    schema = _schema(columns)
    with ParquetWriter(path, schema) as writer:
        for group in batch_rows(rows, ROW_GROUP):
            flat = [{name: to_valid_text(value) for name, value in columns.flatten(row).items()} for row in group]
            writer.write_batch(RecordBatch.from_pylist(flat, schema=schema))


def _schema(columns: Columns) -> pyarrow.Schema:
    """Types by the names of the columns."""
    import pyarrow as pa

    def kind(name: str) -> Any:
        if name == "set":
            return pa.list_(pa.string())
        return pa.float64() if name.startswith(("probability", "p_value")) else pa.string()

    return pa.schema([(name, kind(name)) for name in columns.names()])


def to_valid_text(value: Any) -> Any:
    r"""Text that Parquet takes: bytes of file names that are not valid text become \udcXX."""
    return encode_utf8(value).decode() if isinstance(value, str) else value


def batch_rows(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
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
    require_writer_package(kind)
    return kind


def require_writer_package(kind: str) -> None:
    """Raise if the package that writes files of this suffix is not installed."""
    if kind != ".parquet":
        return
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        hint = ["pip install 'dca-prompt[parquet]'", "write CSV files"]
        raise UserError("Parquet files need pyarrow, which is not installed", hint=hint) from None


# Seconds between two waits for the disk.
SYNC_EVERY = 2.0


class Journal:
    """The rows made so far, in OUTPUT.partial; the first line says what decides them.

    Args:
        output: The file that is being made.
        identity: Plain values that decide the rows; rows of another identity are not continued.
        fresh: Begin anew if the rows on disk have another identity, instead of raising.

    Attributes:
        paths: Path of every image that has a row.

    Raises:
        UserError: If the rows on disk have another identity, or the file cannot be written.
    """

    def __init__(self, output: Path, identity: dict[str, Any], *, fresh: bool = False) -> None:
        self.path = output.with_name(output.name + PARTIAL)
        self.paths: set[str] = set()
        self._synced = time.monotonic()
        with explain_write_errors(self.path):
            self._open(identity, fresh)

    def _open(self, identity: dict[str, Any], fresh: bool) -> None:
        whole = self._count_whole_bytes()
        found = self._read_identity() if whole else None
        if found is not None and found != identity:
            if not fresh:
                raise _identity_error(self.path, found, identity)
            found = None
        self._file = self.path.open("ab")
        # A line that was cut off belongs to images that are opened again.
        self._file.truncate(whole if found is not None else 0)
        if found is not None:
            self.paths.update(row["path"] for row in self.rows())
            return
        try:
            self._append([{"identity": identity}])
        except BaseException:
            self._file.close()
            raise

    def _count_whole_bytes(self) -> int:
        """Length in bytes of the lines that are whole."""
        if not self.path.is_file():
            return 0
        length = 0
        with self.path.open("rb") as file:
            for line in file:
                if not _is_row(line):
                    break
                length += len(line)
        return length

    def _read_identity(self) -> Any:
        with self.path.open("rb") as file:
            return json.loads(file.readline()).get("identity", {})

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows: a killed process does not lose them, and a power failure only those of the last seconds."""
        rows = list(rows)
        with explain_write_errors(self.path):
            self._append(rows)
        self.paths.update(row["path"] for row in rows)

    def _append(self, rows: Iterable[dict[str, Any]]) -> None:
        self._file.write(b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows))
        self._file.flush()
        if time.monotonic() - self._synced > SYNC_EVERY:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def extend(
        self, batches: Iterable[Sequence[dict[str, Any]]], wanted: Sequence[str], progress: Progress
    ) -> tuple[int, float]:
        """Add batch after batch as they are made; returns how many of the wanted images had a row, and the seconds."""
        before, now, began = len(self.paths.intersection(wanted)), 0, time.monotonic()
        for rows in batches:
            self.append(rows)
            now += len(rows)
            progress("images", before + now, len(wanted), f"{now / (time.monotonic() - began):.1f} images/s")
        return before, time.monotonic() - began

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, in the order in which they were added."""
        with self.path.open("rb") as file:
            next(file)
            for line in file:
                yield json.loads(line)

    def remove(self) -> None:
        """Delete the file, once its rows are elsewhere."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def drop_finished_journal(output: Path) -> None:
    """Delete the rows that a call left when it was killed after it had written the output from them."""
    journal = output.with_name(output.name + PARTIAL)
    # Rows of a later call, which is to replace the output, are newer.
    if journal.is_file() and journal.stat().st_mtime_ns <= output.stat().st_mtime_ns:
        journal.unlink()


def _is_row(line: bytes) -> bool:
    """Whether a line is a whole JSON object."""
    if not line.endswith(b"\n"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _identity_error(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> UserError:
    """The error for unfinished rows that cannot be continued."""
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    return UserError(
        f"{path} holds unfinished rows of another command",
        details=[f"{name}: {found.get(name)} there, {wanted[name]} here" for name in differing],
        hint=["finish it with the options that began it", allow_overwrite(), "choose another file"],
    )


# Characters that a folder's name cannot have on some system, and the path separators of all.
_UNSAFE = re.compile(r'[\x00-\x1f/\\:*?"<>|]')


class ImageFolders:
    """Copies images into FOLDER/LABEL/, never over another file.

    Args:
        folder: Where the folders of the classes are made.
        labels: All labels that images may get.
        copied: Copies that were made before, as paths relative to `folder`.
    """

    def __init__(self, folder: Path, labels: Sequence[str], copied: Iterable[str] = ()) -> None:
        self.folder = folder
        self._names = _make_folder_names(labels)
        self._copied = set(copied)

    def copy(self, image: Path, label: str) -> str:
        """Copy an image to the folder of its label; returns the path of the copy relative to the folder of all.

        An image of the same name as an earlier one gets a part of its path's hash behind its name. A file that is
        there with the same content is the copy of an interrupted run, and is kept.
        """
        hashed = hashlib.sha256(os.fsencode(image)).hexdigest()[:8]
        with explain_write_errors(self.folder):
            for name in (image.name, f"{image.stem}-{hashed}{image.suffix}"):
                relative = f"{self._names[label]}/{name}"
                target = self.folder / relative
                if relative in self._copied:
                    continue
                if not target.exists():
                    _copy(image, target)
                elif not filecmp.cmp(image, target, shallow=False):
                    continue
                self._copied.add(relative)
                return relative
        raise UserError(
            f"{self.folder / relative} exists and is another image", hint="choose another folder to copy to"
        )


def require_outside(folder: Path, sources: Sequence[str]) -> None:
    """Raise if `folder` is inside one of the folders of images, where its copies would be predicted again."""
    resolved = Path(os.path.realpath(folder))
    for source in sources:
        if os.path.isdir(source) and resolved.is_relative_to(os.path.realpath(source)):
            raise UserError(
                f"{folder} is inside {source}, so that the copies would be taken for new images",
                hint="choose a folder outside the images",
            )


def _copy(image: Path, target: Path) -> None:
    """Copy a file so that the target is never incomplete; times of the file are kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as unfinished:
        shutil.copy2(image, unfinished)


def _make_folder_names(labels: Sequence[str]) -> dict[str, str]:
    """A name for the folder of each label; labels that give the same one are numbered.

    >>> _make_folder_names(["cat", "../cat", "a/b", ".", "CAT"])
    {'cat': 'cat', '../cat': '.._cat', 'a/b': 'a_b', '.': '_', 'CAT': 'CAT (2)'}
    """
    names: dict[str, str] = {}
    used: dict[str, int] = {}
    for label in labels:
        # Windows drops dots and spaces at the end, and "." and ".." are no names.
        name = _UNSAFE.sub("_", label).rstrip(". ")[:100] or "_"
        count = used[name.casefold()] = used.get(name.casefold(), 0) + 1
        names[label] = name if count == 1 else f"{name} ({count})"
    return names
