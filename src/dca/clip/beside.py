"""The text tower beside the image tower: on a GPU, its kernels run while those of the image tower do.

What a prompt method gives to the text tower are its own parameters, which are there before a step begins; so the text
tower need not wait for the image tower, although a step calls it later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Side:
    stream: torch.cuda.Stream
    began: torch.cuda.Event


_SIDE: ContextVar[_Side | None] = ContextVar("side", default=None)


@contextmanager
def towers_beside() -> Iterator[None]:
    """Let the text tower begin where this context began, instead of where it is called; on a GPU only.

    Parameters must not be changed inside.
    """
    began = torch.cuda.Event()  # type: ignore[no-untyped-call]
    began.record()
    token = _SIDE.set(_Side(torch.cuda.Stream(), began))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        _SIDE.reset(token)


def beside(inputs: Iterable[Tensor], work: Callable[[], Tensor]) -> Tensor:
    """`work()`, on a stream of its own inside `towers_beside`, if all its inputs were there when that began.

    inputs: all tensors with gradients that `work` reads. One that is no leaf was computed since.
    """
    side = _SIDE.get()
    if side is None or not all(tensor.is_leaf for tensor in inputs):
        return work()
    main = torch.cuda.current_stream()
    side.stream.wait_event(side.began)
    with torch.cuda.stream(side.stream):
        found = work()
    main.wait_stream(side.stream)
    found.record_stream(main)
    return found
