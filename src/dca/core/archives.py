"""Zip files of strangers: a limit that holds before anything of them is in memory."""

from __future__ import annotations

import zipfile
from typing import Any, BinaryIO


def check_directory(file: BinaryIO, most: int) -> None:
    """Raise ValueError where the directory of a zip file, its names, has more than `most` bytes.

    `zipfile` reads all of it when it opens a file, and needs some ten times its bytes for that.
    """
    end: Any = zipfile._EndRecData(file)  # type: ignore[attr-defined] # what ZipFile itself reads
    if end is None:
        raise ValueError("no directory of files")
    if end[zipfile._ECD_SIZE] > most:  # type: ignore[attr-defined]
        raise ValueError(f"a directory of more than {most:,} bytes")
    file.seek(0)
