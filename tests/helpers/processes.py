"""Child processes of tests: none outlives its test, and a busy machine may take its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

# Seconds that something may take on a busy machine before a test gives up.
PATIENCE = 300.0
DCA = (sys.executable, "-m", "dca")


@contextmanager
def start_process(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A child process; when the block ends, it and all processes that it started are killed."""
    process = subprocess.Popen([str(part) for part in command], start_new_session=True, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def wait_until(condition: Callable[[], object], process: subprocess.Popen[Any] | None = None) -> None:
    """Wait until something is so; fails if a process ends before, or after `PATIENCE` seconds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:
            pytest.fail(f"the process ended too early, with {process.returncode}")
        if time.monotonic() > end:
            pytest.fail(f"nothing happened for {PATIENCE:.0f} s")
        time.sleep(0.01)
