"""A lock between processes: held by one at a time, and free again when its holder ends, even if that is killed.

The lock is the system's own (`flock`). Some network drives have none; there, a file that names process and machine
takes its place. It is recognised as left behind only on the machine that wrote it.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

log = logging.getLogger(__name__)

# What flock answers where another process holds the lock, and where the file system has no locks.
HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK})
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
# Seconds between two attempts.
PAUSE = 0.05


class LockHeldError(TimeoutError):
    """Another process holds the lock. holder: which one, where that is known; else ""."""

    def __init__(self, path: Path, holder: str = "") -> None:
        super().__init__(f"another process holds {path}")
        self.holder = holder


@contextmanager
def hold_lock(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of this name; its file is removed in the end.

    Args:
        path: The lock file; its folder exists.
        wait: Seconds to wait for another process that holds it.

    Raises:
        LockHeldError: If another process holds the lock for longer.
        OSError: If the lock file cannot be created.
    """
    release = _acquire(path, time.monotonic() + wait)
    try:
        yield
    finally:
        release()


def _acquire(path: Path, until: float) -> Callable[[], None]:
    """Acquire the lock; returns the function that releases it."""
    try:
        import fcntl  # noqa: F401
    except ImportError:  # Windows
        return _acquire_with(FileLock(path), until)
    while True:
        try:
            handle = _try_flock(path)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            log.warning("%s: this file system has no locks; a file that names the process is used instead", path.parent)
            return _acquire_with(SoftFileLock(path.with_name(f"{path.name}.process")), until)
        if handle is not None:
            break
        if time.monotonic() >= until:
            raise LockHeldError(path)
        time.sleep(PAUSE)

    def release() -> None:
        with suppress(OSError):  # while the lock is held: after that, the file may be another process's
            path.unlink()
        _unlock(handle)

    return release


def _try_flock(path: Path) -> int | None:
    """Lock the file once; returns its handle, or None if another process holds it.

    Raises:
        OSError: If the file cannot be created, or the file system has no locks.
    """
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:
            return handle
    except OSError as error:
        os.close(handle)
        if error.errno in HELD:
            return None
        if error.errno in NO_LOCKS:
            path.unlink(missing_ok=True)
        raise
    os.close(handle)  # its last holder removed the file between opening and locking
    return None


def _unlock(handle: int) -> None:
    """Free a lock, also where processes that were forked meanwhile have its handle, too."""
    import fcntl

    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _acquire_with(lock: FileLock | SoftFileLock, until: float) -> Callable[[], None]:
    """Acquire a lock of the package `filelock`; returns the function that releases it."""
    try:
        lock.acquire(timeout=max(until - time.monotonic(), 0), poll_interval=PAUSE)
    except Timeout:
        path = Path(lock.lock_file)
        raise LockHeldError(path, _read_holder(path)) from None
    return lock.release


def _read_holder(path: Path) -> str:
    """The process and the machine that a lock file names; "" where it names none."""
    with suppress(OSError, ValueError):
        process, host = path.read_text(encoding="utf-8").splitlines()[:2]
        return f"it is process {int(process)} on {host}; if that is gone, delete {path}"
    return ""
