"""Atomic writes, locks and JSON files: a reader never sees half a file, nor a moment without a folder.

Beside a folder NAME that is being replaced lie `.NAME.new` (what will take its place, or has just left it) and, where
the system cannot exchange two names, `.NAME.old`. What a killed process leaves of them is put right by the next one
that takes the lock of the folder (`exclusive_lock`), or looks for a folder that is missing (`restore_folder`).
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from dca.core.errors import UserError
from dca.core.hints import Hint, choose_output
from dca.core.locks import LockHeldError, hold_lock

T = TypeVar("T")
# Seconds that a reader waits for a folder that another process is replacing, and how often it reads one again.
PATIENCE = 10.0
ATTEMPTS = 20
# The name of an unfinished file says which process of which machine makes it.
_UNFINISHED = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-\d+\.new", re.DOTALL)
_numbers = itertools.count()
# End of the name of unfinished work that a repeated command continues; a user may see it.
PARTIAL = ".partial"
# The locks that this process holds, each with its thread.
_held: set[tuple[str, int]] = set()


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
def exclusive_lock(folder: Path, what: str = "fit or server", *, wait: float = 0.0) -> Iterator[None]:
    """Make this process the only one that writes to `folder`, or to the file of that name.

    The lock is an advisory lock of the system on a hidden file beside the folder. It ends with the
    process, even if that is killed; a lock file that stays behind blocks nobody. Whoever takes it puts
    right what a killed process left.

    what: what such a process does, for the error. wait: seconds to wait for one that has the lock.

    Raises:
        InUseError: Another process holds the lock.
        UserError: The lock file cannot be created.
    """
    folder = follow_link(folder)
    lock_file = folder.with_name(f".{folder.name}.lock")
    with ExitStack() as stack:
        with explain_write_errors(folder):
            lock_file.parent.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(hold_lock(lock_file, wait=wait))
            except LockHeldError as error:
                hint: Hint = ["wait until it has ended", choose_output()]
                details = [error.holder] if error.holder else []
                raise InUseError(f"another {what} is writing {folder}", details=details, hint=hint) from None
        _held.add(key := _lock_key(folder))
        stack.callback(_held.discard, key)
        _recover(folder)
        yield


def _lock_key(folder: Path) -> tuple[str, int]:
    return os.path.abspath(folder), threading.get_ident()


@contextmanager
def _within_lock(folder: Path, what: str, wait: float = 0.0) -> Iterator[None]:
    """The lock of a folder, taken here unless the caller holds it."""
    if _lock_key(folder) in _held:
        yield
    else:
        with exclusive_lock(folder, what, wait=wait):
            yield


def follow_link(folder: Path) -> Path:
    """The folder that a link points to, which is what is replaced, so that a link stays a link; else `folder`."""
    return Path(os.path.realpath(folder)) if folder.is_symlink() else folder


def partial_folder(target: Path) -> Path:
    """Where a folder is made, over several calls if need be, before it takes the place of `target`."""
    folder = follow_link(target)
    return folder.with_name(f"{folder.name}{PARTIAL}")


def _recover(target: Path) -> None:
    """Put right what a killed process left beside and in a folder, or beside a file. The caller holds its lock."""
    new, old = _names_beside(target)
    with explain_write_errors(target):
        if old.is_dir() and not target.exists():
            os.replace(old, target)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    remove_abandoned(target.parent, f".{target.name}.")
    for folder, _, _ in os.walk(target):
        remove_abandoned(Path(folder))


def restore_folder(target: Path) -> None:
    """Put a missing folder back that a killed process has moved aside; a replacement that goes on is waited for."""
    target = follow_link(target)
    if not target.exists() and _names_beside(target)[1].is_dir():
        with exclusive_lock(target, wait=PATIENCE):
            pass


def read_whole(folder: Path, read: Callable[[], T]) -> T:
    """What `read` returns of the files in a folder, all of them from before or all from after a replacement.

    It reads again where another process has replaced the folder meanwhile.
    """
    for _ in range(ATTEMPTS):
        before = _state(folder)
        try:
            found = read()
        except (UserError, OSError):
            if _state(folder) == before:
                raise
        else:
            if _state(folder) == before:
                return found
    return read()


def _state(folder: Path) -> tuple[int, int] | None:
    """What changes when another folder takes this name; None where there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _names_beside(target: Path) -> tuple[Path, Path]:
    """Where a folder lies before it takes the place of `target`, and where that lies in the meantime."""
    return target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")


def remove_abandoned(folder: Path, prefix: str = ".") -> None:
    """Delete unfinished files that processes of this machine left in a folder when they were killed."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and is_abandoned(entry.name):
                with suppress(OSError):
                    os.unlink(entry.path)


def is_abandoned(name: str) -> bool:
    """Whether this is the name of an unfinished file of a process of this machine that has ended."""
    found = _UNFINISHED.fullmatch(name)
    return found is not None and found["host"] == _host() and not _is_running(int(found["process"]))


def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _is_running(process: int) -> bool:
    if sys.platform == "win32":  # where signal 0 ends a process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file to write to; when the block ends, it is flushed to disk and renamed to `path`."""
    with explain_write_errors(path):
        unfinished = path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{next(_numbers)}.new")
        # Created in this way, it has the permissions that the user's umask gives.
        handle = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            yield unfinished
            os.fsync(handle)
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
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


def atomic_replace(finished: Path, target: Path, what: str = "fit or server") -> None:
    """Put the folder `finished` in the place of `target`, which exists at every moment if it did before.

    The two names are exchanged in one system call, and what was at `target` is then deleted. Where the system or
    the file system cannot do that, `target` is moved aside and put back by the next process if this one is killed.

    Raises:
        UserError: If it cannot be replaced (it is then as it was), or another process is writing it.
    """
    target = follow_link(target)
    new, old = _names_beside(target)
    with _within_lock(target, what), explain_write_errors(target):
        made = os.stat(finished)
        if finished != new:  # what a kill leaves behind has a hidden name
            os.replace(finished, new)
        try:
            if not target.exists():
                os.replace(new, target)
            elif not exchange(new, target):
                os.replace(target, old)
                os.replace(new, target)
        except BaseException:
            if not target.exists() and old.exists():
                os.replace(old, target)
            if finished != new and new.exists() and os.path.samestat(made, os.stat(new)):
                os.replace(new, finished)
            raise
        _flush_folder(target.parent)
        for replaced in (new, old):
            shutil.rmtree(replaced, ignore_errors=True)


# Flags of the system calls that exchange two names, and what they answer where that is not possible.
_LINUX_EXCHANGE, _MACOS_SWAP, _LINUX_WORKING_FOLDER = 2, 2, -100
_CANNOT_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM})


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one system call; returns False where that is not possible.

    Raises:
        OSError: If it fails for another reason, such as permissions.
    """
    library: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    if hasattr(library, "renameat2"):
        here = _LINUX_WORKING_FOLDER
        failed = library.renameat2(here, os.fsencode(one), here, os.fsencode(other), _LINUX_EXCHANGE)
    elif hasattr(library, "renamex_np"):
        failed = library.renamex_np(os.fsencode(one), os.fsencode(other), _MACOS_SWAP)
    else:
        return False
    if failed and (number := ctypes.get_errno()) not in _CANNOT_EXCHANGE:
        raise OSError(number, os.strerror(number), os.fspath(one), None, os.fspath(other))
    return not failed


def _flush_folder(folder: Path) -> None:
    """Write the names in a folder to disk, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def atomic_folder(target: Path, what: str = "fit or server", *, wait: float = 0.0) -> Iterator[Path]:
    """A folder to fill, which takes the place of `target` when the block ends; nothing is left of it after an error.

    what, wait: as for `exclusive_lock`; the lock is held meanwhile, by the caller or here.
    """
    target = follow_link(target)
    with _within_lock(target, what, wait):
        unfinished = _names_beside(target)[0]
        with explain_write_errors(target):
            unfinished.mkdir()
        try:
            yield unfinished
            atomic_replace(unfinished, target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give a file a second name (a hard link), which takes no space and is on disk already; else copy and flush it."""
    if os.path.islink(source):
        shutil.copy2(source, target, follow_symlinks=False)
        return
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
    with open(target, "r+b") as file:
        os.fsync(file.fileno())


def link_tree(source: Path, target: Path) -> None:
    """`link_or_copy` of a file, or of everything in a folder, in place of what is at the target.

    Unfinished files of processes that have ended are left out.
    """
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(
            source,
            target,
            symlinks=True,
            ignore=lambda _, names: [name for name in names if is_abandoned(name)],
            copy_function=link_or_copy,
        )
    else:
        link_or_copy(source, target)


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
