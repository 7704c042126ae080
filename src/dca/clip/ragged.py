"""Sequences of unequal lengths: packed end to end for linear layers, padded for attention alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")
Maker = Callable[[tuple[int, ...], torch.device], Made]


def cached_tensors(maxsize: int) -> Callable[[Maker[Made]], Maker[Made]]:
    """An `lru_cache` for functions that create tensors.

    It is bypassed while a program is traced (torch.export, torch.compile, fake tensors): a tensor that
    is created then belongs to that program and must not be returned to later callers.
    """

    def decorate(make: Maker[Made]) -> Maker[Made]:
        kept = lru_cache(maxsize=maxsize)(make)

        @wraps(make)
        def call(numbers: tuple[int, ...], device: torch.device) -> Made:
            if torch.compiler.is_compiling() or type(torch.empty(0)) is not Tensor:
                return make(numbers, device)
            # A tensor created in inference mode could not be used in a later training step.
            with torch.inference_mode(False):
                return kept(numbers, device)

        return call

    return decorate


@cached_tensors(maxsize=256)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Integers on a device, created once, so that a training step copies none of them from the host."""
    return torch.tensor(values, dtype=torch.long, device=device)


class Ragged:
    """S sequences of given lengths, R rows in all, T the longest.

    Packed tensors are (..., R, d), sequence after sequence; padded ones (..., S, T, d), with zeros
    behind each sequence. empty: (S, T), true for padding; None if no sequence is padded.
    """

    empty: Tensor | None = None

    def __init__(self, lengths: tuple[int, ...], device: torch.device) -> None:
        longest = max(lengths)
        self.lengths, self.shape = lengths, (len(lengths), longest)
        if min(lengths) == longest:
            return
        # From Python numbers: `nonzero` would have no known length in a traced program.
        slots = [s * longest + t for s, n in enumerate(lengths) for t in range(n)]
        self._slots = torch.tensor(slots, device=device)
        self._ends = torch.tensor([end - 1 for end in accumulate(lengths)], device=device)
        self.empty = torch.tensor([[t >= n for t in range(longest)] for n in lengths], device=device)

    def pad(self, x: Tensor) -> Tensor:
        """(..., R, d) -> (..., S, T, d)."""
        if self.empty is None:
            return torch.unflatten(x, -2, self.shape)
        room = x.new_zeros(*x.shape[:-2], self.empty.numel(), x.shape[-1])
        return torch.unflatten(room.index_copy(-2, self._slots, x), -2, self.shape)

    def pack(self, x: Tensor) -> Tensor:
        """(..., S, T, d) -> (..., R, d), leaving the padding out."""
        flat = x.flatten(-3, -2)
        return flat if self.empty is None else flat.index_select(-2, self._slots)

    def last(self, x: Tensor) -> Tensor:
        """Last rows of the sequences: (..., R, d) -> (..., S, d)."""
        if self.empty is None:
            return torch.unflatten(x, -2, self.shape)[..., -1, :]
        return x.index_select(-2, self._ends)

    def places(self, first: int = 0) -> tuple[int, ...]:
        """Position of every row in its sequence, counted from `first`."""
        return tuple(first + t for n in self.lengths for t in range(n))


@cached_tensors(maxsize=64)
def ragged(lengths: tuple[int, ...], device: torch.device) -> Ragged:
    """The layout of sequences of these lengths; a run asks for the same few many times."""
    return Ragged(lengths, device)
