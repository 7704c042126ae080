"""Reading in processes gives what reading in threads gives, and leaves no process behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from dca.core.errors import UserError
from dca.images import decode as decode_many
from dca.images.decode import Unreadable, decode_in_processes, decode_in_threads, iter_decode, processes_are_faster
from helpers.processes import start_process, wait_until
from helpers.small_images import photo

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork processes"
)


def total(image):
    return int(np.asarray(image).sum())


@pytest.fixture
def files(tmp_path):
    """90 files, one of them no image."""
    for n in range(90):
        photo(n % 7).save(tmp_path / f"{n:02}.png")
    (tmp_path / "41.png").write_bytes(b"no image")
    return sorted(tmp_path.glob("*.png"))


def test_processes_give_what_threads_give(files):
    scale = 3  # a local function cannot be sent to a process, but a fork has it
    by_threads = list(decode_in_threads(files, lambda image: scale * total(image), workers=2, ahead=8))
    by_processes = list(decode_in_processes(files, lambda image: scale * total(image), workers=2, ahead=8))
    assert by_processes == by_threads
    assert isinstance(by_processes[41], Unreadable)


def test_each_image_may_have_its_own_function_in_processes(files):
    functions = [lambda image, n=n: (n, total(image)) for n in range(len(files))]
    found = list(decode_in_processes(files, functions, workers=2, ahead=8))
    assert [outcome[0] for n, outcome in enumerate(found) if n != 41] == [n for n in range(90) if n != 41]


def test_an_error_of_the_function_is_not_hidden_in_a_process(files):
    def fail(image):
        raise RuntimeError("our bug")

    with pytest.raises(RuntimeError, match="our bug"):
        list(decode_in_processes(files, fail, workers=2, ahead=8))


def test_a_killed_process_is_an_error_that_says_so(files):
    def kill(image):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match="ended from outside"):
        list(decode_in_processes(files, kill, workers=2, ahead=8))


def test_processes_are_for_many_files_and_workers(files, monkeypatch):
    monkeypatch.setattr(decode_many, "MANY_FILES", len(files))
    assert processes_are_faster(files, 4)
    assert not processes_are_faster(files, 2)
    assert not processes_are_faster(files[1:], 4)
    assert not processes_are_faster([*files[1:], photo()], 4)
    assert next(iter_decode(files, lambda image: os.getpid(), workers=4, ahead=8)) != os.getpid()


CHILD = """
import sys, time
from pathlib import Path
from dca.images.decode import decode_in_processes
files = sorted(Path(sys.argv[1]).glob("*.png"))
found = decode_in_processes(files, lambda image: __import__("os").getpid(), workers=2, ahead=8)
print(next(found), flush=True)
time.sleep(600)
"""


def test_processes_end_with_a_killed_parent(files):
    with start_process([sys.executable, "-c", CHILD, files[0].parent], stdout=subprocess.PIPE, text=True) as child:
        worker = int(child.stdout.readline())
        child.kill()
        wait_until(lambda: not _alive(worker))


def _alive(pid):
    """Whether a process runs; one that has ended and is not reaped yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
