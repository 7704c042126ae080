"""GPU kernels: where they run, and how to do without.

Every kernel has a plain implementation that it equals; `usable` says whether the kernel runs for a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

TYPES = (torch.uint8, torch.float32, torch.bfloat16)
# Not a context variable: gradients are computed in threads of their own.
_on = True


@contextmanager
def plain() -> Iterator[None]:
    """Use the plain implementations inside, in all threads; kernels are compared with them."""
    global _on
    before, _on = _on, False
    try:
        yield
    finally:
        _on = before


@cache
def installed() -> bool:
    """Whether Triton, which compiles the kernels, is installed; CUDA builds of torch bring it along."""
    return find_spec("triton") is not None


def usable(x: Tensor) -> bool:
    """Whether the kernels run for this tensor: on a GPU, in a type they know, and not while a program is traced."""
    if not x.is_cuda or x.dtype not in TYPES or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return _on and installed() and not torch.compiler.is_compiling()


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least `n` and `least`."""
    return max(least, 1 << (n - 1).bit_length())
