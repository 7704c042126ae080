"""Device and precision, threads, freed memory, and libraries of a GPU that start in the background."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
import torch

from dca.core import device
from dca.core.device import SHARED_FROM, compute_dtype, feature_dtype, limit_threads, require_device, resolve_device
from dca.core.errors import UserError


def test_auto_is_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch):
    for there, kind, dtype in ((True, "cuda", torch.bfloat16), (False, "cpu", torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert resolve_device("auto").type == kind
        assert compute_dtype(resolve_device("auto"), "auto") == dtype


def test_a_device_that_is_not_here_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device 'cuda:7' cannot be used: no CUDA device here") as caught:
        resolve_device("cuda:7")
    assert caught.value.hint == "use device='auto' or 'cpu'"
    assert caught.value.render("cli").endswith("fix: use --device auto or cpu")
    with pytest.raises(UserError, match="device 'gpu' cannot be used"):
        resolve_device("gpu")


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="unknown precision 'fp8'") as caught:
        require_device("cpu", "fp8")
    assert caught.value.render("cli").endswith("fix: use --precision auto, fp32 or bf16")
    assert compute_dtype(torch.device("cpu"), "bf16") == torch.bfloat16


# Frozen features of full-size towers


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bool]]:
    """What `multiplies_bf16` says of a processor with these instruction sets, torch with and without its own probes."""

    def ask(flags: str, *, torch_knows: bool, onednn: bool = True) -> bool:
        found = set(flags.split())
        for name, flag in (("_is_avx512_bf16_supported", "avx512_bf16"), ("_is_amx_tile_supported", "amx_tile")):
            if torch_knows:
                monkeypatch.setattr(torch.cpu, name, lambda flag=flag: flag in found, raising=False)
            else:
                monkeypatch.delattr(torch.cpu, name, raising=False)
        info = tmp_info(flags)
        monkeypatch.setattr(device, "CPU_INFO", info)
        monkeypatch.setattr(device, "has_onednn", lambda: onednn)
        device.multiplies_bf16.cache_clear()
        return device.multiplies_bf16()

    with tempfile.TemporaryDirectory() as folder:

        def tmp_info(flags: str) -> Path:
            path = Path(folder) / "cpuinfo"
            path.write_text(f"processor\t: 0\nmodel name\t: some CPU\nflags\t\t: fpu sse2 {flags}\n\nprocessor\t: 1\n")
            return path

        yield ask
    device.multiplies_bf16.cache_clear()


@pytest.mark.parametrize("torch_knows", [True, False])
def test_instructions_for_bfloat16_are_found(probe: Callable[..., bool], torch_knows: bool) -> None:
    assert probe("avx512f avx512_bf16", torch_knows=torch_knows)
    assert probe("amx_tile amx_bf16 amx_int8", torch_knows=torch_knows)
    assert not probe("avx2 avx512f avx512bw avx512vl", torch_knows=torch_knows)  # bfloat16 would be emulated
    assert not probe("avx512_bf16", torch_knows=torch_knows, onednn=False)


def test_a_system_without_that_list_has_none(probe: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    probe("", torch_knows=False)
    monkeypatch.setattr(device, "CPU_INFO", Path("no such file"))
    device.multiplies_bf16.cache_clear()
    assert not device.multiplies_bf16()


@pytest.mark.parametrize(
    ("precision", "kind", "there", "trained", "frozen"),
    [
        ("auto", "cpu", True, torch.float32, torch.bfloat16),
        ("auto", "cpu", False, torch.float32, torch.float32),
        ("fp32", "cpu", True, torch.float32, torch.float32),
        ("bf16", "cpu", False, torch.bfloat16, torch.bfloat16),
        ("auto", "cuda", False, torch.bfloat16, torch.bfloat16),
        ("fp32", "cuda", True, torch.float32, torch.float32),
    ],
)
def test_only_frozen_features_are_bfloat16_on_a_cpu_by_default(
    precision: str, kind: str, there: bool, trained: torch.dtype, frozen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "multiplies_bf16", lambda: there)
    where = torch.device(kind)
    assert (compute_dtype(where, precision), feature_dtype(where, precision)) == (trained, frozen)


@pytest.mark.parametrize(("multiplications", "expected"), [(SHARED_FROM - 1, 1), (SHARED_FROM, 2)])
def test_small_products_take_one_thread(multiplications: int, expected: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with limit_threads(multiplications):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# Memory

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
# 30 MB in small blocks by each of six threads, one after the other: resident megabytes when they have freed them.
THREADS = """
import os, sys, threading
from pathlib import Path
from dca.core.device import share_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20

if sys.argv[1] == "share":
    assert share_freed_memory()
turns, stay = [threading.Event() for _ in range(7)], []

def work(number):
    turns[number].wait()
    blocks = [os.urandom(100_000) for _ in range(300)]
    stay.append(os.urandom(1000))
    del blocks
    turns[number + 1].set()
    turns[-1].wait()

before = resident()
threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
turns[0].set()
for thread in threads:
    thread.join()
print(resident() - before)
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


@needs_glibc
def test_what_a_thread_has_freed_is_taken_by_others():
    assert printed(THREADS, "share") < printed(THREADS, "keep") / 2


@pytest.mark.parametrize("library", [object(), None])
def test_other_systems_keep_what_they_like(monkeypatch: pytest.MonkeyPatch, library: object):
    if library is None:
        monkeypatch.setattr(device.sys, "platform", "darwin")
    else:
        monkeypatch.setattr(device.ctypes, "CDLL", lambda name: library)
    assert device.keep_freed_memory() is False
    assert device.return_freed_memory() is False
    assert device.share_freed_memory() is False


# Libraries of a GPU


@pytest.fixture
def not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_starting", None)


@pytest.mark.usefixtures("not_started")
def test_a_cpu_has_nothing_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "call_gpu_libraries", lambda gpu: pytest.fail("called"))
    device.start_gpu_libraries(torch.device("cpu"))
    device.wait_for_gpu_libraries()


@pytest.mark.usefixtures("not_started")
def test_a_gpu_starts_once_in_the_background_and_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, go = SimpleNamespace(type="cuda"), Event()
    seen: list[object] = []

    def first_calls(gpu: object) -> None:
        go.wait(5)
        seen.append(gpu)

    monkeypatch.setattr(device, "call_gpu_libraries", first_calls)
    device.start_gpu_libraries(gpu)  # type: ignore[arg-type]
    device.start_gpu_libraries(gpu)  # type: ignore[arg-type]
    assert not seen
    go.set()
    device.wait_for_gpu_libraries()
    assert seen == [gpu]


@pytest.mark.usefixtures("not_started")
def test_the_calls_exist_and_errors_are_left_to_those_who_need_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []

    def installed() -> bool:
        called.append(True)
        return False

    monkeypatch.setattr(device, "triton_installed", installed)
    device.call_gpu_libraries(torch.device("cpu"))
    assert called  # every call before it succeeded
    monkeypatch.setattr(torch, "eye", lambda *_, **__: 1 / 0)
    device.call_gpu_libraries(torch.device("cpu"))
