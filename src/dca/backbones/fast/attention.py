"""Attention of packed text rows to their own sequence and to a shared prefix, without padding.

Rows are packed end to end: prefixes first, then the names of each prompt (`clip/text.py`, whose layouts hold the plain
implementation). A sequence attends to itself, causally, and to all rows of its prefix. One program of the kernel
handles one block of whole sequences, with the prefix they share, and one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dca.core.device import power_of_two, triton_usable

# Sizes of a head that the kernel handles.
HEAD_SIZES = (16, 32, 64, 128)
# Rows of a block, unless one sequence is longer.
BLOCK_ROWS = 64


def fused_attention_usable(x: Tensor, heads: int) -> bool:
    """Whether `fused_attention` runs for packed rows x (R, W)."""
    return x.dim() == 2 and triton_usable(x) and x.shape[-1] // heads in HEAD_SIZES


def fused_attention(queries: Tensor, keys_values: Tensor | None, blocks: RowBlocks, heads: int) -> Tensor:
    """Every query attends to its sequence up to its own row, and to the prefix of its block.

    Args:
        queries: Queries (N, W); or with `keys_values` None, queries, keys and values (R, 3W) of all rows.
        keys_values: Keys and values (R, 2W).
        blocks: Which rows belong together.
        heads: Number of heads.

    Returns:
        Mixtures of values (N, W), heads side by side.
    """
    mixed: Tensor = FusedAttention.apply(queries, keys_values, blocks, heads)  # type: ignore[no-untyped-call]
    return mixed


def _split_qkv(queries: Tensor, keys_values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Views of queries (N, W), keys (R, W) and values (R, W)."""
    if keys_values is None:
        q, k, v = queries.chunk(3, dim=-1)
        return q, k, v
    k, v = keys_values.chunk(2, dim=-1)
    return queries, k, v


class FusedAttention(torch.autograd.Function):
    """`fused_attention`; the gradients of queries, keys and values of one linear layer come out in one tensor."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys_values: Tensor | None, blocks: RowBlocks, heads: int) -> Tensor:
        """queries: (N, W) or (R, 3W); keys_values: (R, 2W) or None."""
        from dca.backbones.fast import attention_triton

        queries = queries.contiguous()
        keys_values = None if keys_values is None else keys_values.contiguous()
        mixed, sums = attention_triton.forward(*_split_qkv(queries, keys_values), blocks, heads)
        ctx.save_for_backward(queries, *([] if keys_values is None else [keys_values]), sums)
        ctx.blocks, ctx.heads = blocks, heads
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of the mixtures -> those of queries, keys and values."""
        from dca.backbones.fast import attention_triton

        queries, *rest, sums = ctx.saved_tensors
        keys_values = rest[0] if rest else None
        to_queries = torch.empty_like(queries)
        to_others = None if keys_values is None else torch.empty_like(keys_values)
        attention_triton.backward(
            gradients[0].contiguous(),
            _split_qkv(queries, keys_values),
            _split_qkv(to_queries, to_others),
            sums,
            ctx.blocks,
            ctx.heads,
        )
        return to_queries, to_others, None, None


@dataclass(frozen=True)
class SequenceGroup:
    """Sequences of these lengths from row `start` on, and the rows of the prefix they share (empty for none)."""

    start: int
    lengths: tuple[int, ...]
    prefix: range = range(0)


@dataclass(frozen=True)
class RowBlocks:
    """Tables of the kernel, on a device, int32.

    blocks: (B, 6), of each block its first query and their number, its first row and their number, the first row of
        its prefix and their number. row_of: row of each query. sequence_of: first row of the sequence of each row.
    prefixes: (M, 4), of each shared prefix its first row, their number, its first block and their number.
    most: most blocks that share one prefix; queries, rows, prefix: sizes of the largest block and prefix; all are
        padded to powers of two, so that few kernels are compiled. prefix_queries: whether the rows of the prefixes are
        queries of this call, too.
    """

    blocks: Tensor
    row_of: Tensor
    sequence_of: Tensor
    prefixes: Tensor
    most: int
    queries: int
    rows: int
    prefix: int
    prefix_queries: bool


def divide_into_blocks(groups: Sequence[SequenceGroup], device: torch.device, *, last: bool) -> RowBlocks:
    """Divide packed sequences into blocks of the kernel.

    Args:
        groups: All sequences with queries, and the rows that they attend to.
        device: Where the tables go.
        last: Whether only the last row of each sequence is a query; else all rows are.

    Returns:
        The tables.
    """
    most = power_of_two(max(n for group in groups for n in group.lengths), BLOCK_ROWS)
    blocks: list[tuple[int, ...]] = []
    row_of: list[int] = []
    prefixes: dict[tuple[int, int], list[int]] = {}
    total = max(group.start + sum(group.lengths) for group in groups)
    sequence_of = [0] * total
    for group in groups:
        first_block = len(blocks)
        for start, lengths in _split_group(group, most):
            queries: list[int] = []
            for begin, n in zip(accumulate(lengths, initial=start), lengths, strict=False):
                sequence_of[begin : begin + n] = [begin] * n
                queries += [begin + n - 1] if last else range(begin, begin + n)
            blocks.append((len(row_of), len(queries), start, sum(lengths), group.prefix.start, len(group.prefix)))
            row_of += queries
        if group.prefix:
            prefixes[group.prefix.start, len(group.prefix)] = [first_block, len(blocks) - first_block]
    prefix_queries = any(not group.prefix for group in groups)
    return RowBlocks(
        _table(blocks, device).view(-1, 6),
        _table(row_of, device),
        _table(sequence_of, device),
        _table([(*prefix, *blocks_of_prefix) for prefix, blocks_of_prefix in prefixes.items()], device).view(-1, 4),
        power_of_two(max((number for _, number in prefixes.values()), default=1)),
        power_of_two(max(block[1] for block in blocks), 16),
        most,
        power_of_two(max((len(group.prefix) for group in groups), default=1) or 1, 16),
        prefix_queries,
    )


def _split_group(group: SequenceGroup, most: int) -> list[tuple[int, tuple[int, ...]]]:
    """First row and lengths of consecutive sequences with at most `most` rows together."""
    parts: list[tuple[int, tuple[int, ...]]] = []
    start, lengths = group.start, list[int]()
    for n in group.lengths:
        if sum(lengths) + n > most:
            parts.append((start, tuple(lengths)))
            start, lengths = start + sum(lengths), []
        lengths.append(n)
    return [*parts, (start, tuple(lengths))]


def _table(values: Sequence[object], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
