from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from dca.core import memory

# Six blocks of 8 MB, allocated and freed ten times: pages that the system had to map, without the first time.
PROGRAM = """
import resource, sys
import numpy as np
from dca.core.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = []
for _ in range(11):
    blocks = [np.ones(10**6) for _ in range(6)]
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


def faults(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_kept_memory_is_not_mapped_again():
    assert faults("keep") < faults("return") / 5


@pytest.mark.parametrize("library", [object(), None])
def test_other_systems_keep_what_they_like(monkeypatch: pytest.MonkeyPatch, library: object):
    if library is None:
        monkeypatch.setattr(memory.sys, "platform", "darwin")
    else:
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    assert memory.keep_freed_memory() is False
