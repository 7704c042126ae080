"""The device and the precision of all computations; no other module chooses them.

Weights, trained tokens, distances, softmaxes, losses and statistics are float32 (covariances
float64). Only the arithmetic of the image and text towers may be bfloat16: on a GPU by default, on
the CPU only if asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dca.core.actions import choose_device, choose_precision
from dca.core.errors import UserError

PRECISIONS = ("auto", "fp32", "bf16")
# Multiplications of a matrix product from which on several threads share it.
SHARED = 2**26


def resolve_device(name: str) -> torch.device:
    """The device of this name; "auto" is a CUDA GPU if there is one, else the CPU.

    Raises:
        UserError: There is no such device, or it does not work.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        if name.startswith("cuda") and not torch.cuda.is_available():
            reason, usable = _no_cuda(), ["auto", "cpu"]
        else:
            reason, usable = str(error).splitlines()[0], ["auto", "cpu", "cuda"]
        raise UserError(f"device '{name}' cannot be used: {reason}", hint=choose_device(*usable)) from None
    return device


def _no_cuda() -> str:
    """Why there is no CUDA device."""
    if torch.version.cuda is None:
        return "no CUDA device here (this build of torch has no CUDA)"
    return "no CUDA device here (torch finds no GPU with a working driver)"


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; to a GPU it is copied while the GPU goes on with earlier work."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def compute_dtype(device: torch.device, precision: str) -> torch.dtype:
    """The dtype in which the towers compute; raises UserError for an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision '{precision}'", hint=choose_precision(*PRECISIONS))
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def require_usable(device: str, precision: str) -> None:
    """Raise a UserError if the device or the precision cannot be used: a check before anything is loaded."""
    compute_dtype(resolve_device(device), precision)


@contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """One CPU thread where matrix products are small, as many as before where they are not.

    The threads of an operation wait for each other. Where other programs use the cores this takes milliseconds, and
    thousands of small operations, one after the other, become ten times slower by it.
    """
    before = torch.get_num_threads()
    if multiplications >= SHARED or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
