"""Atomic writes, locks and JSON files: a reader never sees half a file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dca.core.errors import UserError
from dca.core.hints import Hint, choose_output


class InUseError(UserError):
    """Another process is writing what this one wants to write."""


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError (no permission, read-only, disk full) into a UserError about `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error})",
            hint="check the folder's permissions and the free space, or choose another folder",
        ) from error


@contextmanager
def exclusive_lock(folder: Path, what: str = "fit or server") -> Iterator[None]:
    """Make this process the only one that writes to `folder`, or to the file of that name.

    The lock is an advisory lock of the system on a hidden file beside the folder. It ends with the
    process, even if that is killed; a lock file that stays behind blocks nobody.

    what: what such a process does, for the error.

    Raises:
        InUseError: Another process holds the lock.
        UserError: The lock file cannot be created.
    """
    lock_file = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(lock_file)
    with explain_write_errors(folder):
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        # FileLock reports a lock file that cannot be created as one that is held (e.g. below /proc).
        lock_file.touch()
        try:
            lock.acquire(blocking=False)
        except Timeout:
            hint: Hint = ["wait until it has ended", choose_output()]
            raise InUseError(f"another {what} is writing {folder}", hint=hint) from None
    try:
        yield
    finally:
        with suppress(OSError):  # while the lock is held: after that, the file may be another process's
            lock_file.unlink()
        lock.release()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file to write to; when the block ends, it is flushed to disk and renamed to `path`."""
    with explain_write_errors(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            yield Path(name)
            os.fsync(handle)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: under a temporary name, flushed to disk, then renamed."""
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically."""
    write_bytes(path, encode_utf8(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"))


def read_json(path: Path, *, hint: Hint = "the file is damaged or cut off: copy it again") -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UserError: The file cannot be read or holds something else; it names the file and carries `hint`.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable JSON ({error})", hint=hint) from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(raw).__name__}", hint=hint)
    return raw


def atomic_replace(finished: Path, target: Path) -> None:
    """Rename the folder `finished` to `target`; what was at `target` is removed, or restored on failure."""
    with explain_write_errors(target):
        if not target.exists():
            os.replace(finished, target)
            return
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
        os.replace(target, aside / "old")
        try:
            os.replace(finished, target)
        except BaseException:
            os.replace(aside / "old", target)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the block ends; nothing is left of it after an error."""
    with explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        os.chmod(unfinished, 0o755)
    try:
        yield unfinished
        atomic_replace(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def cache_folder() -> Path:
    """The user's cache folder: DCA_CACHE, or else the usual one of this system."""
    if folder := os.environ.get("DCA_CACHE"):
        return Path(folder).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("dca")


def json_digest(value: Any) -> str:
    """sha256 of a JSON value; the order of the keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(encode_utf8(text)).hexdigest()


def encode_utf8(text: str) -> bytes:
    r"""JSON text as bytes; bytes of file names that are not valid text become \udcXX escapes."""
    return text.encode("utf-8", "backslashreplace")
