"""Locks where the system has none: a file names the holder, and one that a killed process left blocks nobody."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dca.core.errors import UserError
from dca.core.files import exclusive_lock
from dca.core.locks import NO_LOCKS, LockHeldError, hold_lock
from helpers.processes import start_process

fcntl = pytest.importorskip("fcntl", reason="needs flock")

HOLD = (
    "import errno, fcntl, sys, time\nfrom pathlib import Path\nfrom dca.core.files import exclusive_lock\n"
    "def flock(*_): raise OSError(int(sys.argv[2]), 'no locks')\n"
    "fcntl.flock = flock\n"
    "with exclusive_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"
)


@pytest.fixture(params=sorted(NO_LOCKS))
def number(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A file system without locks, and what it answers."""

    def flock(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    return int(request.param)


def test_a_file_system_without_locks_has_a_substitute(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    with exclusive_lock(tmp_path / "m.dca"):
        (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert told == f"{tmp_path}: this file system has no locks; a file that names the process is used instead"
        with pytest.raises(UserError, match="another fit or server is writing") as caught:
            exclusive_lock(tmp_path / "m.dca").__enter__()
        assert f"process {os.getpid()} on " in caught.value.details[0]
        assert ".m.dca.lock.process" in caught.value.details[0]
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_process_blocks_nobody(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "m.dca"
    with start_process([sys.executable, "-c", HOLD, folder, number], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another fit or server is writing"), exclusive_lock(folder):
            pytest.fail("two at once")
        process.kill()
        process.wait()
    assert [path.name for path in tmp_path.iterdir()] == [".m.dca.lock.process"]
    with exclusive_lock(folder, wait=10):
        pass
    assert list(tmp_path.iterdir()) == []


def test_another_error_of_the_lock_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="cannot be written"):
        exclusive_lock(tmp_path / "m.dca").__enter__()


def test_a_lock_is_waited_for_as_long_as_was_asked(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path / "lock"),
        pytest.raises(LockHeldError, match="another process holds"),
        hold_lock(tmp_path / "lock", wait=0.1),
    ):
        pytest.fail("two at once")
    with hold_lock(tmp_path / "lock", wait=0.1):
        pass
    assert list(tmp_path.iterdir()) == []
