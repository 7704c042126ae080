"""How the attention kernel divides packed text rows: blocks of whole sequences, each with the prefix they share.

Rows are packed end to end: prefixes first, then the names of each prompt (`packing.py`). A sequence attends to itself,
causally, and to all rows of its prefix. One program of the kernel handles one block and one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from dca.core.device import power_of_two

# Rows of a block, unless one sequence is longer.
ROWS = 64


@dataclass(frozen=True)
class Span:
    """Sequences of these lengths from row `start` on; their prefix is rows `prefix` (empty for none)."""

    start: int
    lengths: tuple[int, ...]
    prefix: range = range(0)


@dataclass(frozen=True)
class RowBlocks:
    """Tables of the kernel, on a device, int32.

    blocks: (B, 6), of each block its first query and their number, its first row and their number, the first row of
        its prefix and their number. row_of: row of each query. sequence_of: first row of the sequence of each row.
    prefixes: (M, 4), of each shared prefix its first row, their number, its first block and their number.
    most: blocks that share one prefix, at most; queries, rows, prefix: sizes of the largest block and prefix; all are
        padded to powers of two, so that few kernels are compiled. begun: whether the rows of
        the prefixes are queries of this call, too.
    """

    blocks: Tensor
    row_of: Tensor
    sequence_of: Tensor
    prefixes: Tensor
    most: int
    queries: int
    rows: int
    prefix: int
    begun: bool


def divide(spans: Sequence[Span], device: torch.device, *, last: bool) -> RowBlocks:
    """The tables of packed sequences.

    Args:
        spans: All sequences that ask, and the rows that they attend to.
        device: Where the tables go.
        last: Only the last row of each sequence asks; otherwise all of them do.

    Returns:
        The tables.
    """
    most = power_of_two(max(n for span in spans for n in span.lengths), ROWS)
    blocks: list[tuple[int, ...]] = []
    row_of: list[int] = []
    prefixes: dict[tuple[int, int], list[int]] = {}
    total = max(span.start + sum(span.lengths) for span in spans)
    sequence_of = [0] * total
    for span in spans:
        first_block = len(blocks)
        for start, lengths in _groups(span, most):
            asking: list[int] = []
            for begin, n in zip(accumulate(lengths, initial=start), lengths, strict=False):
                sequence_of[begin : begin + n] = [begin] * n
                asking += [begin + n - 1] if last else range(begin, begin + n)
            blocks.append((len(row_of), len(asking), start, sum(lengths), span.prefix.start, len(span.prefix)))
            row_of += asking
        if span.prefix:
            prefixes[span.prefix.start, len(span.prefix)] = [first_block, len(blocks) - first_block]
    begun = any(not span.prefix for span in spans)
    return RowBlocks(
        _table(blocks, device).view(-1, 6),
        _table(row_of, device),
        _table(sequence_of, device),
        _table([(*prefix, *place) for prefix, place in prefixes.items()], device).view(-1, 4),
        power_of_two(max((number for _, number in prefixes.values()), default=1)),
        power_of_two(max(block[1] for block in blocks), 16),
        most,
        power_of_two(max((len(span.prefix) for span in spans), default=1) or 1, 16),
        begun,
    )


def _groups(span: Span, most: int) -> list[tuple[int, tuple[int, ...]]]:
    """First row and lengths of consecutive sequences with at most `most` rows together."""
    groups: list[tuple[int, tuple[int, ...]]] = []
    start, lengths = span.start, list[int]()
    for n in span.lengths:
        if sum(lengths) + n > most:
            groups.append((start, tuple(lengths)))
            start, lengths = start + sum(lengths), []
        lengths.append(n)
    return [*groups, (start, tuple(lengths))]


def _table(values: Sequence[object], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
