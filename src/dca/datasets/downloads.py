"""Fetch the files of public datasets: addresses and checksums as data (`downloads.toml`), resumed, checked, unpacked.

A file is written as NAME.part until it is complete and its checksum is right; the next call goes on where a killed one
was, with a request for the rest. An archive is unpacked beside it and deleted. What is in place is listed in
`.fetched.json` of the dataset's folder, with the sha256 of what was fetched, so that nothing is fetched twice.

Archives come from others: only plain files and folders inside of the dataset's folder are written; links, devices and
names that lead out of it are an error.
"""

from __future__ import annotations

import hashlib
import tarfile
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dca.core.errors import UserError
from dca.core.files import exclusive_lock, explain_write_errors, read_json, write_json
from dca.core.progress import Progress, silent
from dca.core.text import format_bytes

FETCHED = ".fetched.json"
# Bytes that are read at once, and seconds that a server may be silent.
BLOCK, PATIENCE = 2**20, 60.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of a dataset.

    Attributes:
        file: Its name in the dataset's folder.
        url: Where it is.
        md5, sha256: Its checksum; empty where none is known.
        bytes: Its size; 0 where it is not known.
        unpack: Whether it is an archive, to be unpacked in the folder.
        strip: Leading folders of the names in the archive that are left out.
        inner: Archives inside of it, to be unpacked after it.
        by_hand: Why it cannot be fetched by a program, and what to do with it; empty if it can.
    """

    file: str
    url: str
    md5: str = ""
    sha256: str = ""
    bytes: int = 0
    unpack: bool = False
    strip: int = 0
    inner: tuple[str, ...] = ()
    by_hand: str = ""

    @property
    def checksum(self) -> str:
        """The checksum in words.

        >>> Source(file="a", url="", md5="12").checksum, Source(file="a", url="").checksum
        ('md5 12', 'checksum unknown')
        """
        return f"sha256 {self.sha256}" if self.sha256 else f"md5 {self.md5}" if self.md5 else "checksum unknown"

    @property
    def size(self) -> str:
        """The size in words."""
        return format_bytes(self.bytes) if self.bytes else "size unknown"

    def describe(self) -> dict[str, Any]:
        """Plain values, for records."""
        facts = {"file": self.file, "url": self.url, "md5": self.md5, "sha256": self.sha256, "bytes": self.bytes}
        return {**{name: value or None for name, value in facts.items()}, "by_hand": self.by_hand or None}


@cache
def _read_sources() -> Mapping[str, tuple[Source, ...]]:
    text = (resources.files("dca.datasets") / "downloads.toml").read_text(encoding="utf-8")
    return {
        name: tuple(Source(**{**one, "inner": tuple(one.get("inner", ()))}) for one in rows)
        for name, rows in tomllib.loads(text).items()
    }


def sources_of(name: str) -> tuple[Source, ...]:
    """The files of a public dataset of this package; none for those of others.

    >>> [source.file for source in sources_of("eurosat")]
    ['EuroSAT.zip', 'split_zhou_EuroSAT.json']
    """
    return _read_sources().get(name, ())


def list_missing(folder: Path, sources: tuple[Source, ...]) -> list[Source]:
    """The files that are not in the folder; of archives those that were not unpacked there by an earlier call."""
    fetched = _read_fetched(folder)
    return [one for one in sources if one.file not in fetched and (one.unpack or not (folder / one.file).is_file())]


def fetch_all(folder: Path, sources: tuple[Source, ...], progress: Progress = silent) -> dict[str, str]:
    """Fetch and unpack what is missing and can be fetched.

    Args:
        folder: Folder of the dataset; made if it is not there.
        sources: Files of the dataset.
        progress: Receives the progress, in bytes.

    Returns:
        The sha256 of each file that was fetched now.

    Raises:
        UserError: If a file cannot be reached, is not what it should be, or cannot be unpacked or written.
    """
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    found = {}
    with exclusive_lock(folder / FETCHED, "download"):
        for source in list_missing(folder, sources):
            if source.by_hand:
                continue
            target = folder / source.file
            # An archive whose unpacking was interrupted is still there.
            digest = _check(source, target, target) if target.is_file() else fetch(source, target, progress)
            if source.unpack:
                for archive, strip in ((source.file, source.strip), *((inner, 0) for inner in source.inner)):
                    unpack(folder / archive, folder, strip=strip, progress=progress)
            found[source.file] = digest
            write_json(folder / FETCHED, {"sha256": {**_read_fetched(folder), source.file: digest}})
            for archive in (source.file, *source.inner) if source.unpack else ():
                (folder / archive).unlink(missing_ok=True)
    return found


def _read_fetched(folder: Path) -> dict[str, str]:
    """The sha256 of the files that were fetched into a folder."""
    if not (folder / FETCHED).is_file():
        return {}
    found = read_json(folder / FETCHED, hint=f"delete {folder / FETCHED}; its files are fetched again").get("sha256")
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}


def fetch(source: Source, target: Path, progress: Progress = silent) -> str:
    """Fetch one file, from where an earlier call stopped, and check it.

    Args:
        source: The file.
        target: Where it goes.
        progress: Receives the progress, in bytes.

    Returns:
        Its sha256.

    Raises:
        UserError: If it cannot be reached, or has another size or checksum; what was fetched of it is then deleted.
    """
    part = target.with_name(target.name + ".part")
    with explain_write_errors(target):
        _receive(source, part, progress)
        digest = _check(source, part, target)
        part.replace(target)
    return digest


def _check(source: Source, file: Path, target: Path) -> str:
    """The sha256 of what was fetched; it is deleted if it is something else than it should be."""
    size, sha256 = file.stat().st_size, _digest(file, "sha256")
    wrong = []
    if source.bytes and size != source.bytes:
        wrong.append(f"{size:,} bytes, expected {source.bytes:,}")
    if source.sha256 and sha256 != source.sha256:
        wrong.append(f"sha256 {sha256}, expected {source.sha256}")
    if source.md5 and (md5 := _digest(file, "md5")) != source.md5:
        wrong.append(f"md5 {md5}, expected {source.md5}")
    if wrong:
        file.unlink()
        raise UserError(
            f"{source.url}: what was fetched is not {source.file}",
            details=wrong,
            hint=[f"open the address in a browser, and put the file at {target}", "try again later"],
        )
    return sha256


def _receive(source: Source, part: Path, progress: Progress) -> None:
    """Append to `part` what it lacks of the file."""
    have = part.stat().st_size if part.is_file() else 0
    if source.bytes and have >= source.bytes:
        return
    try:
        request = urllib.request.Request(source.url, headers={"User-Agent": "dca"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        with make_opener().open(request, timeout=PATIENCE) as answer:
            # A server that knows no ranges sends all of it.
            have = have if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length and length.isdigit() else source.bytes
            _write(answer, part, have, total, source, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send
            return
        raise _unreachable(source, f"HTTP {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:  # no such host, time out, a connection that breaks, an address that is none
        raise _unreachable(source, str(getattr(error, "reason", error))) from None


def make_opener() -> urllib.request.OpenerDirector:
    """What opens addresses: of HTTP alone, also after a redirection; the usual one knows files and FTP, too."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler, urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener


def _write(answer: IO[bytes], part: Path, have: int, total: int, source: Source, progress: Progress) -> None:
    most = source.bytes or total
    with part.open("r+b" if have else "wb") as file:
        file.seek(have)
        file.truncate()
        while block := answer.read(BLOCK):
            have += len(block)
            if most and have > most:
                raise UserError(f"{source.url}: sends more than {most:,} bytes", hint="fetch the file with a browser")
            file.write(block)
            progress(source.file, have, total, "")
    if total and have < total:
        raise _unreachable(source, f"the connection ended after {have:,} of {total:,} bytes")


def _unreachable(source: Source, why: str) -> UserError:
    return UserError(
        f"{source.url} cannot be fetched ({why})",
        hint=["run the same command again: it goes on where it was", "fetch the file with a browser"],
    )


def _digest(path: Path, name: str) -> str:
    """Hexadecimal digest of a file; md5 is what its publishers give, and protects from accidents only."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()


def unpack(archive: Path, folder: Path, *, strip: int = 0, progress: Progress = silent) -> None:
    """Unpack a zip or tar file; files that are there already are replaced.

    Args:
        archive: The archive.
        folder: Where its files go.
        strip: Leading folders of their names that are left out.
        progress: Receives the number of files.

    Raises:
        UserError: If it is no archive or damaged, or a member is a link, a device, or outside of the folder.
    """
    try:
        for number, (name, file) in enumerate(_members(archive), 1):
            target = _place(archive, folder, name, strip)
            if target is not None:
                _copy_member(file, target)
            progress(f"unpacking {archive.name}", number, 0, "")
    except UserError:
        raise
    except Exception as error:  # each way to compress has errors of its own
        raise UserError(
            f"{archive}: cannot be unpacked ({error})", hint="delete it and run the command again"
        ) from None


def _copy_member(source: IO[bytes], target: Path) -> None:
    with explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb")
    with file:
        while block := source.read(BLOCK):
            with explain_write_errors(target):
                file.write(block)
                file.flush()


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the plain files of an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                if (member.external_attr >> 16) & 0o170000 == 0o120000:
                    raise _refused(archive, member.filename, "a link")
                if not member.is_dir():
                    with opened.open(member) as file:
                        yield member.filename, file
        return
    with tarfile.open(archive) as opened_tar:
        for entry in opened_tar:
            if not (entry.isfile() or entry.isdir()):
                raise _refused(archive, entry.name, "a link or a device")
            content = opened_tar.extractfile(entry)
            if content is not None:
                yield entry.name, content


def _place(archive: Path, folder: Path, name: str, strip: int) -> Path | None:
    """Where a member goes; None if nothing of its name is left."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or ":" in parts[0] or "\0" in name:
        raise _refused(archive, name, "a name that leads out of the folder")
    kept = parts[strip:]
    return folder.joinpath(*kept) if kept else None


def _refused(archive: Path, name: str, what: str) -> UserError:
    return UserError(f"{archive}: not unpacked, since {name!r} is {what}", hint="get the archive from its publisher")
