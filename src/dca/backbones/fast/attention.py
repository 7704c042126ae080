"""Attention of packed text rows to their own sequence and to a shared prefix, without padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dca.backbones.fast.blocks_of_rows import RowBlocks
from dca.core.device import triton_usable

# Sizes of a head that the kernel handles.
HEADS = (16, 32, 64, 128)


def attends(x: Tensor, heads: int) -> bool:
    """Whether the kernel runs for packed rows x (R, W)."""
    return x.dim() == 2 and triton_usable(x) and x.shape[-1] // heads in HEADS


def attend(queries: Tensor, keys_values: Tensor | None, blocks: RowBlocks, heads: int) -> Tensor:
    """Every query attends to its sequence up to its own row, and to the prefix of its block.

    Args:
        queries: Queries (N, W); or with `keys_values` None, queries, keys and values (R, 3W) of all rows.
        keys_values: Keys and values (R, 2W).
        blocks: Which rows belong together.
        heads: Number of heads.

    Returns:
        Mixtures of values (N, W), heads side by side.
    """
    found: Tensor = Attend.apply(queries, keys_values, blocks, heads)  # type: ignore[no-untyped-call]
    return found


def _parts(queries: Tensor, keys_values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Views of queries (N, W), keys (R, W) and values (R, W)."""
    if keys_values is None:
        q, k, v = queries.chunk(3, dim=-1)
        return q, k, v
    k, v = keys_values.chunk(2, dim=-1)
    return queries, k, v


class Attend(torch.autograd.Function):
    """`attend`; the gradients of queries, keys and values of one linear layer come out in one tensor."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys_values: Tensor | None, blocks: RowBlocks, heads: int) -> Tensor:
        """queries: (N, W) or (R, 3W); keys_values: (R, 2W) or None."""
        from dca.backbones.fast import attention_triton

        queries = queries.contiguous()
        keys_values = None if keys_values is None else keys_values.contiguous()
        mixed, sums = attention_triton.forward(*_parts(queries, keys_values), blocks, heads)
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
            _parts(queries, keys_values),
            _parts(to_queries, to_others),
            sums,
            ctx.blocks,
            ctx.heads,
        )
        return to_queries, to_others, None, None
