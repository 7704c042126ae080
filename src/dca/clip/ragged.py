"""Sequences of unequal lengths: packed end to end for linear layers, padded for attention alone."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Whole numbers on a device, made once: a training step copies none of them from the host."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.long, device=device)


class Ragged:
    """S sequences of given lengths, R rows in all, T the longest.

    Packed tensors are (..., R, d), sequence after sequence; padded ones (..., S, T, d), with zeros
    behind each sequence. empty: (S, T), true where padding stands; None where there is none.
    """

    empty: Tensor | None = None

    def __init__(self, lengths: tuple[int, ...], device: torch.device) -> None:
        self.lengths, self.shape = lengths, (len(lengths), max(lengths))
        if min(lengths) == max(lengths):
            return
        with torch.inference_mode(False):
            self.empty = torch.arange(max(lengths), device=device) >= torch.tensor(lengths, device=device)[:, None]
            self._slots = (~self.empty).flatten().nonzero()[:, 0]
            self._ends = torch.tensor(lengths, device=device).cumsum(0) - 1

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
        """Of every row: how far from the start of its sequence it stands, counted from `first`."""
        return tuple(first + t for n in self.lengths for t in range(n))


# A run asks for the same few again and again.
ragged = lru_cache(maxsize=64)(Ragged)
