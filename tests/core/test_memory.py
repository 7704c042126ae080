from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from dca.core import device as memory

# Six blocks of 8 MB, allocated and freed ten times: pages that the system had to map, without the first time.
PROGRAM = """
import resource, sys
import numpy as np
from dca.core.device import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = []
for _ in range(11):
    blocks = [np.ones(10**6) for _ in range(6)]
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


# 200 MB in small blocks below one that stays: resident megabytes that are given back.
TRIMMED = """
import os
from pathlib import Path
from dca.core.device import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20

blocks = [os.urandom(10_000) for _ in range(20_000)]
last = blocks.pop()
blocks.clear()
before = resident()
assert return_freed_memory()
print(before - resident())
"""
needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these functions")


def printed(program: str, *arguments: str) -> int:
    run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return int(run.stdout)


@needs_glibc
def test_kept_memory_is_not_mapped_again():
    assert printed(PROGRAM, "keep") < printed(PROGRAM, "return") / 5


@needs_glibc
def test_memory_below_a_block_that_stays_is_given_back():
    assert printed(TRIMMED) > 100


@pytest.mark.parametrize("library", [object(), None])
def test_other_systems_keep_what_they_like(monkeypatch: pytest.MonkeyPatch, library: object):
    if library is None:
        monkeypatch.setattr(memory.sys, "platform", "darwin")
    else:
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    assert memory.keep_freed_memory() is False
    assert memory.return_freed_memory() is False
