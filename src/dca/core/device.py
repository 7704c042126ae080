"""Where and how this process computes: device, precision, threads, Triton kernels, memory.

No other module chooses them. Weights, trained tokens, distances, softmaxes, losses and statistics are
float32 (covariances float64). Only the arithmetic of the image and text towers may be bfloat16: on a GPU by default; on
the CPU if asked for, and by default for frozen features of full-size towers if the processor has instructions for it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.errors import UserError
from dca.core.hints import choose_device, choose_precision

PRECISIONS = ("auto", "fp32", "bf16")
# Where Linux describes the processors.
CPU_INFO = Path("/proc/cpuinfo")
# Multiplications of a matrix product from which on several threads share it.
SHARED_FROM = 2**26
# Types that the Triton kernels know.
KERNEL_DTYPES = (torch.uint8, torch.float32, torch.bfloat16)
# Bytes. The C library gives blocks above the first back to the system, and keeps at most the second of freed memory.
_LARGEST_KEPT, _MOST_KEPT = 2**25, 2**29
# Parameters of mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


# Device and precision


def resolve_device(name: str) -> torch.device:
    """The device of this name; "auto" is a CUDA GPU if there is one, else Apple's (MPS), else the CPU.

    Raises:
        UserError: There is no such device, or it does not work.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        if name.startswith("cuda") and not torch.cuda.is_available():
            reason, usable = _explain_missing_cuda(), ["auto", "cpu"]
        else:
            reason, usable = str(error).splitlines()[0], ["auto", "cpu", "cuda"]
        raise UserError(f"device '{name}' cannot be used: {reason}", hint=choose_device(*usable)) from None
    return device


def _explain_missing_cuda() -> str:
    """The reason why there is no CUDA device."""
    if torch.version.cuda is None:
        return "no CUDA device here (this build of torch has no CUDA)"
    return "no CUDA device here (torch finds no GPU with a working driver)"


def split_device(device: torch.device) -> tuple[torch.device, torch.device]:
    """Where methods compute, and where frozen features are made: the same device, but for Apple's GPU.

    It has no float64, in which statistics of features and their solvers compute, so methods stay on the CPU.
    """
    return (torch.device("cpu") if device.type == "mps" else device), device


def compute_dtype(device: torch.device, precision: str) -> torch.dtype:
    """The dtype in which the towers compute; raises UserError for an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision '{precision}'", hint=choose_precision(*PRECISIONS))
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def feature_dtype(device: torch.device, precision: str) -> torch.dtype:
    """The dtype in which full-size towers compute frozen features; raises UserError for an unknown precision."""
    if precision == "auto" and device.type == "cpu" and multiplies_bf16():
        return torch.bfloat16
    return compute_dtype(device, precision)


@cache
def multiplies_bf16() -> bool:
    """Whether this processor has instructions for products in bfloat16 (AVX-512 BF16 or AMX), and torch uses them.

    Without them torch computes such products in float32 after converting all values, which is slower than float32.
    """
    if not has_onednn():
        return False
    # Older versions of torch lack these functions; Linux knows, too.
    probes = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    if all(probes):
        return any(probe() for probe in probes if probe)
    return bool({"avx512_bf16", "amx_bf16"} & _read_cpu_flags(CPU_INFO))


def _read_cpu_flags(path: Path) -> set[str]:
    """Names of the instruction sets of the first processor, as Linux lists them; empty elsewhere."""
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, values = line.partition(":")
            if name.strip() == "flags":
                return set(values.split())
    return set()


def has_onednn() -> bool:
    """Whether this torch was built with oneDNN, which computes convolutions and products in bfloat16 on CPUs."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def compute_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """A context in which towers on a device compute in `dtype`; autocast is local to the thread."""
    if dtype == torch.float32:
        # Nothing to switch off in the usual case: traced programs stay free of autocast regions.
        enabled = torch.is_autocast_enabled(device.type)
        return torch.autocast(device.type, enabled=False) if enabled else nullcontext()
    # No cache of cast weights: it is shared by all threads, and frozen weights never enter it.
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def require_device(device: str, precision: str) -> None:
    """Raise a UserError if the device or the precision cannot be used: a check before anything is loaded."""
    compute_dtype(resolve_device(device), precision)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; to a GPU it is copied while the GPU goes on with earlier work."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


# Threads


@contextmanager
def limit_threads(multiplications: int) -> Iterator[None]:
    """One CPU thread where matrix products are small, as many as before where they are not.

    The threads of an operation wait for each other. Where other programs use the cores this takes milliseconds, and
    thousands of small operations, one after the other, become ten times slower by it.
    """
    before = torch.get_num_threads()
    if multiplications >= SHARED_FROM or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Triton kernels

# Not a context variable: gradients are computed in threads of their own.
_triton_enabled = True


@contextmanager
def without_triton() -> Iterator[None]:
    """Use the plain implementations inside, in all threads. Every kernel has one that it equals."""
    global _triton_enabled
    before, _triton_enabled = _triton_enabled, False
    try:
        yield
    finally:
        _triton_enabled = before


@cache
def triton_installed() -> bool:
    """Whether Triton, which compiles the kernels, is installed; CUDA builds of torch bring it along."""
    return find_spec("triton") is not None


def triton_usable(x: Tensor) -> bool:
    """Whether the kernels run for this tensor: on a GPU, in a type they know, and not while a program is traced."""
    if not x.is_cuda or x.dtype not in KERNEL_DTYPES or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return _triton_enabled and triton_installed() and not torch.compiler.is_compiling()


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least `n` and `least`."""
    return max(least, 1 << (n - 1).bit_length())


# Memory of the CPU


def keep_freed_memory() -> bool:
    """Keep freed memory for the next allocation instead of giving it back to the system, in the whole process.

    The layers of a tower allocate and free the same megabytes for every batch. Memory that comes back from the system
    is mapped and cleared page by page: the tower of the embedded model took 14.7 ms of one core per image instead of
    11.3 ms where that happened most. Meant for commands that do one thing: the process does not shrink.

    Returns:
        Whether the C library (glibc) can do that; other libraries keep what they like.
    """
    mallopt = _c_function("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _MOST_KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT))


def share_freed_memory() -> bool:
    """Let what one thread has freed be taken by any other, in the whole process; before it starts threads.

    The C library gives threads heaps of their own, up to eight per core, and a new thread takes any that is free. A
    server starts threads for every batch and every process, so in time each of the heaps would hold tens of megabytes
    of freed activations. One heap for all costs no time: in towers the blocks are few and large.

    Returns:
        Whether the C library (glibc) can do that.
    """
    mallopt = _c_function("mallopt")
    return mallopt is not None and bool(mallopt(_ARENA_MAX, 1))


def return_freed_memory() -> bool:
    """Give memory that the process no longer uses back to the system.

    Where small blocks stay and large ones between them go, the C library keeps the pages. Takes some milliseconds.

    Returns:
        Whether the C library (glibc) can do that.
    """
    malloc_trim = _c_function("malloc_trim")
    if malloc_trim is None:
        return False
    malloc_trim(0)
    return True


def _c_function(name: str) -> Callable[..., int] | None:
    """A function of glibc; None on other systems."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


# Libraries of the GPU

_starting: Thread | None = None


def start_gpu_libraries(device: torch.device) -> None:
    """Start the libraries of a GPU in the background, once per process; does nothing on other devices.

    The first matrix product, factorisation and attention of a process load the library that computes them, which takes
    some tenths of a second each. Meanwhile a program can read its data.
    """
    global _starting
    if device.type == "cuda" and _starting is None:
        # No daemon: the interpreter waits for it at its end, so that no library is started while others are ended.
        _starting = Thread(target=call_gpu_libraries, args=(device,), name="dca-warm-up")
        _starting.start()


def wait_for_gpu_libraries() -> None:
    """Return when the libraries have started: another thread must not allocate memory while a graph is recorded."""
    if _starting is not None:
        _starting.join()


def call_gpu_libraries(device: torch.device) -> None:
    """Call each library once; whoever needs one that cannot be used meets its error again."""
    with suppress(Exception), torch.inference_mode():
        x = torch.eye(64, device=device)
        torch.linalg.eigh(torch.linalg.qr(x @ x).Q)
        half = (x.bfloat16() @ x.bfloat16())[None, None]
        F.scaled_dot_product_attention(half, half, half)
        if triton_installed():
            import_module("triton.language")
