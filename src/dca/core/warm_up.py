"""Starting the libraries of a GPU in the background, while a program reads its data.

The first matrix product, factorisation and attention of a process load the library that computes them, which takes some
tenths of a second each.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from threading import Thread

import torch
from torch.nn import functional as F

from dca.core.kernels import installed

_begun: Thread | None = None


def begin(device: torch.device) -> None:
    """Start the libraries of a GPU, once per process; nothing on other devices."""
    global _begun
    if device.type == "cuda" and _begun is None:
        # No daemon: the interpreter waits for it at its end, so that no library is started while others are ended.
        _begun = Thread(target=first_calls, args=(device,), name="dca-warm-up")
        _begun.start()


def wait() -> None:
    """Return when the libraries have started: another thread must not allocate memory while a graph is recorded."""
    if _begun is not None:
        _begun.join()


def first_calls(device: torch.device) -> None:
    """Call each library once; whoever needs one that cannot be used meets its error again."""
    with suppress(Exception), torch.inference_mode():
        x = torch.eye(64, device=device)
        torch.linalg.eigh(torch.linalg.qr(x @ x).Q)
        half = (x.bfloat16() @ x.bfloat16())[None, None]
        F.scaled_dot_product_attention(half, half, half)
        if installed():
            import_module("triton.language")
