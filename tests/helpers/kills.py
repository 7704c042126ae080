"""A command in a forked child that is killed, or meets a full disk, at one of its file events; what it leaves."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core import files

# What the interpreter reports of calls that change names or contents. An "open" counts if it is for writing.
EVENTS = frozenset({
    *("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.utime"),
    "open",
})  # fmt: skip
# Those that need space.
GROWING = frozenset({"os.mkdir", "os.link", "os.symlink", "open", "fsync"})
# Exit code of a killed child, and of one that failed with an exception.
KILLED, FAILED = 77, 78


@dataclass(frozen=True)
class Outcome:
    """What a child did: its exit code, its file events in words, and what it printed."""

    code: int
    events: tuple[str, ...]
    output: str


def run_child(
    work: Callable[[], object],
    root: Path,
    log: Path,
    *,
    kill_at: int | None = None,
    full_at: int | None = None,
    can_exchange: bool = True,
) -> Outcome:
    """Run `work` in a forked child, which ends without any clean-up just before file event number `kill_at`.

    full_at: number of the event from which on the disk is full. root: folder whose events count. log: where events and
    output of the child go. can_exchange: whether the system can exchange two names. An exit code is what `work`
    returns; 0 if that is no number.
    """
    return start_child(work, root, log, kill_at, full_at, can_exchange).wait()


@dataclass(frozen=True)
class Child:
    """A forked child that works. log: where its events and output go."""

    number: int
    log: Path

    def wait(self) -> Outcome:
        """Wait until it has ended."""
        _, status = os.waitpid(self.number, 0)
        lines = self.log.read_text(errors="replace").splitlines()
        events = tuple(line.removeprefix("event ") for line in lines if line.startswith("event "))
        output = "\n".join(line for line in lines if not line.startswith("event "))
        return Outcome(os.waitstatus_to_exitcode(status), events, output)


def start_child(
    work: Callable[[], object],
    root: Path,
    log: Path,
    kill_at: int | None = None,
    full_at: int | None = None,
    can_exchange: bool = True,
) -> Child:
    """Start the child of `run_child`, which works at the same time as its parent."""
    log.unlink(missing_ok=True)
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads of the test runner, which hold no lock here
        number = os.fork()
    if number == 0:
        try:
            _begin(root, log, kill_at, full_at, can_exchange)
            done = work()
            code = done if isinstance(done, int) else 0
        except BaseException:
            traceback.print_exc()
            code = FAILED
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return Child(number, log)


def _begin(root: Path, log: Path, kill_at: int | None, full_at: int | None, can_exchange: bool) -> None:
    """Send the output of this process to the log and watch its file events."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout = sys.stderr = os.fdopen(os.dup(handle), "w", buffering=1)
    count = 0

    def note(event: str) -> None:
        nonlocal count
        if count == kill_at:
            os._exit(KILLED)
        count += 1
        os.write(handle, f"event {event}\n".encode())
        if full_at is not None and count > full_at and event.partition(" ")[0] in GROWING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or (event == "open" and not _writes(*arguments)):
            return
        names = [os.fsdecode(name) for name in arguments if isinstance(name, str | bytes | os.PathLike)]
        # A name that is relative to an open folder comes from the removal of a tree.
        if any(name.startswith(f"{root}/") or "/" not in name for name in names):
            note(" ".join([event, *(Path(name).name for name in names if name)]))

    fsync, exchange = os.fsync, files.exchange

    def watched_fsync(number: int) -> None:
        note("fsync")
        fsync(number)

    def watched_exchange(one: Path, other: Path) -> bool:
        note(f"exchange {one.name} {other.name}")
        return can_exchange and exchange(one, other)

    os.fsync, files.exchange = watched_fsync, watched_exchange
    sys.addaudithook(watch)


def _writes(path: Any, mode: str | None, flags: int) -> bool:
    return not isinstance(path, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def snapshot(root: Path) -> dict[str, Any]:
    """Everything below a folder: hashes of files, and JSON without times and hashes of what holds times.

    Lock files do not count: one that stays behind blocks nobody.
    """
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".lock":
            continue
        if path.is_symlink() or path.is_dir():
            found[name] = "link" if path.is_symlink() else "folder"
        elif path.name == "manifest.json":
            found[name] = sorted(json.loads(path.read_text())["files"])
        elif path.suffix == ".json":
            found[name] = _without_times(json.loads(path.read_text()))
        elif path.name == "metrics.jsonl":
            found[name] = [_without_times(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(part) for key, part in value.items() if "seconds" not in key}
    return [_without_times(part) for part in value] if isinstance(value, list) else value
