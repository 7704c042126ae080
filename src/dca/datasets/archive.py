"""Datasets in a zip file: its images are unpacked once, into the cache folder, and read from there.

An archive is a stranger's: only images and lists of images are unpacked, under names that stay inside the folder, and
no more bytes than it states.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from dca.core.archives import check_directory
from dca.core.errors import UserError
from dca.core.files import atomic_folder, cache_folder, explain_write_errors
from dca.core.text import format_bytes, pluralize
from dca.datasets.walk import IMAGE_SUFFIXES, is_hidden

SUFFIX = ".zip"
# Lists of images and names of classes that an archive may hold beside images.
LISTS = frozenset({".csv", ".tsv", ".jsonl", ".txt", ".json"})
# Limits: bytes of the directory of names; files, bytes of a file, and of all files.
MOST_DIRECTORY = 2**27
MOST_FILES, MOST_FILE_BYTES, MOST_BYTES = 1_000_000, 2**30, 2**38
# Bytes at a time.
BLOCK = 2**20


def unpack_archive(path: Path) -> Path:
    """Unpack the images of a zip file, unless that was done before; returns the folder.

    Raises:
        UserError: If it is no zip file, is encrypted or damaged, holds no image, is too large, or cannot be written.
    """
    folder = cache_folder() / "archives" / _hash_file(path)
    if folder.is_dir():
        return folder
    with _explain_damage(path), path.open("rb") as file:
        check_directory(file, MOST_DIRECTORY)
        with zipfile.ZipFile(file) as archive:
            members = list_members(archive, path)
            with atomic_folder(folder, "archive") as unfinished:
                _require_space(folder.parent, sum(member.file_size for member, _ in members), path)
                for member, name in members:
                    _unpack_member(archive, member, unfinished / name)
    return folder


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    """Turn whatever reading a zip file raises into a UserError: each way to compress has errors of its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        problem = f"{path} cannot be read as a zip file: {error or type(error).__name__}"
        raise UserError(problem, hint="unpack it and give the folder") from None


def _require_space(folder: Path, needed: int, path: Path) -> None:
    """Raise unless a folder has room for so many bytes."""
    with explain_write_errors(folder):
        free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{path} holds {format_bytes(needed)}, and {folder} has room for {format_bytes(free)}",
            hint=["free some space", "name another cache folder: DCA_CACHE=FOLDER", "unpack it and give the folder"],
        )


def list_members(archive: zipfile.ZipFile, path: Path) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """The images and lists of an archive, with the names under which they are unpacked.

    Raises:
        UserError: If there are none, too many, or some are encrypted.
    """
    found = dict[PurePosixPath, zipfile.ZipInfo]()
    for member in archive.infolist():
        name = PurePosixPath(member.filename.replace("\\", "/"))
        if member.is_dir() or name.suffix.lower() not in IMAGE_SUFFIXES | LISTS:
            continue
        if name.is_absolute() or ".." in name.parts or ":" in name.parts[0]:
            raise UserError(f"{path} names files outside of itself", details=[member.filename])
        if any(map(is_hidden, name.parts)):
            continue
        if member.flag_bits & 1:
            raise UserError(f"{path} is encrypted", hint="unpack it and give the folder")
        found[name] = member
    if not any(name.suffix.lower() in IMAGE_SUFFIXES for name in found):
        raise UserError(f"{path} holds no images", hint="one folder per class: photos/cat/*.jpg, photos/dog/*.jpg")
    total, largest = sum(m.file_size for m in found.values()), max(m.file_size for m in found.values())
    if len(found) > MOST_FILES or total > MOST_BYTES or largest > MOST_FILE_BYTES:
        size = f"{pluralize(len(found), 'file')} of {format_bytes(total)}, the largest of {format_bytes(largest)}"
        raise UserError(f"{path} holds {size}: too much", hint="unpack it and give the folder")
    return [(member, name) for name, member in found.items()]


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """Write one file; `zipfile` stops at the size that the archive states, and checks its checksum."""
    with explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb")
    with file, archive.open(member) as source:
        while block := source.read(BLOCK):
            with explain_write_errors(target):
                file.write(block)
                file.flush()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
