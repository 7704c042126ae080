"""Writing so that a reader never meets half a file."""

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


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal (no permission, read-only, disk full) into a message about `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error})",
            hint="check the folder's permissions and the free space, or choose another place",
        ) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only fit that writes into `folder`; raises where another one does.

    The lock is the system's, on a hidden file beside the folder, so it ends with the process however
    that ends: after a kill the empty file may stay, but it keeps nobody out.
    """
    place = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(place)
    with writing(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            hint = "wait until it has ended, or choose another folder with -o DIR"
            raise UserError(f"another fit is writing {folder}", hint=hint) from None
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: afterwards it may be another's
            place.unlink()
        lock.release()


def write_bytes(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename."""
    with writing(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """An indented JSON file, atomically."""
    write_bytes(path, utf8(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"))


def read_json(path: Path, *, hint: str = "the file is damaged or cut off: copy it again") -> dict[str, Any]:
    """A JSON object; anything else is an error that names the file, with `hint` as the way out."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable JSON ({error})", hint=hint) from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(raw).__name__}", hint=hint)
    return raw


def publish(made: Path, target: Path) -> None:
    """Put the finished folder `made` in the place of `target`, whatever was there before."""
    with writing(target):
        if not target.exists():
            os.replace(made, target)
            return
        old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
        os.replace(target, old / "was")
        try:
            os.replace(made, target)
        except BaseException:
            os.replace(old / "was", target)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)


def digest_of(value: Any) -> str:
    """sha256 of a JSON value, the same for the same content."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(utf8(text)).hexdigest()


def utf8(text: str) -> bytes:
    r"""JSON text as bytes; file names that are no valid text stay readable as \udcXX escapes."""
    return text.encode("utf-8", "backslashreplace")
