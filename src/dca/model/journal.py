"""Unfinished predictions on disk: a file of JSON lines that only grows, so that a killed process loses nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dca.core.actions import allow_overwrite
from dca.core.errors import UserError
from dca.core.files import writing

SUFFIX = ".partial"
# Seconds between two waits for the disk.
SYNC_EVERY = 2.0


class Journal:
    """The rows predicted so far, in OUTPUT.partial; the first line says what they are predictions of.

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
        self.path = output.with_name(output.name + SUFFIX)
        self.paths: set[str] = set()
        self._synced = time.monotonic()
        with writing(self.path):
            self._open(identity, fresh)

    def _open(self, identity: dict[str, Any], fresh: bool) -> None:
        whole = self._whole()
        found = self._identity() if whole else None
        if found is not None and found != identity:
            if not fresh:
                raise _other_identity(self.path, found, identity)
            found = None
        self._file = self.path.open("ab")
        # A line that was cut off belongs to images that are predicted again.
        self._file.truncate(whole if found is not None else 0)
        if found is not None:
            self.paths.update(row["path"] for row in self.rows())
            return
        try:
            self._append([{"identity": identity}])
        except BaseException:
            self._file.close()
            raise

    def _whole(self) -> int:
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

    def _identity(self) -> Any:
        with self.path.open("rb") as file:
            return json.loads(file.readline()).get("identity", {})

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows: a killed process does not lose them, and a power failure only those of the last seconds."""
        rows = list(rows)
        with writing(self.path):
            self._append(rows)
        self.paths.update(row["path"] for row in rows)

    def _append(self, rows: Iterable[dict[str, Any]]) -> None:
        self._file.write(b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows))
        self._file.flush()
        if time.monotonic() - self._synced > SYNC_EVERY:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

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


def _is_row(line: bytes) -> bool:
    """Whether a line is a whole JSON object."""
    if not line.endswith(b"\n"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _other_identity(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> UserError:
    """The error for unfinished predictions that cannot be continued."""
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    return UserError(
        f"{path} holds unfinished predictions of another command",
        details=[f"{name}: {found.get(name)} there, {wanted[name]} here" for name in differing],
        hint=["finish it with the options that began it", allow_overwrite(), "choose another file"],
    )
