"""Attention of packed text rows: by the kernel where it runs, else by the plain implementation of the layout."""

from __future__ import annotations

from torch import Tensor

from dca.clip.blocks import Attention, BlockUpdates
from dca.clip.kernels import attention as kernel
from dca.clip.packing import Prompts, Sequences


def attend(attention: Attention, x: Tensor, layout: Sequences | Prompts, updates: BlockUpdates) -> Tensor:
    """Every row attends to its sequence up to itself. x: normed rows (..., R, W) -> (..., heads, R, W / heads)."""
    if not kernel.attends(x, attention.heads):
        return layout.attend(*attention.project(x, updates=updates))
    together = attention.together(x, updates)
    return attention.split(kernel.attend(together, None, layout.row_blocks(last=False), attention.heads))


def attend_last(attention: Attention, x: Tensor, layout: Sequences | Prompts, updates: BlockUpdates) -> Tensor:
    """Rows of EOT attend to their whole sequence. x: (..., R, W) -> (..., heads, N, W / heads)."""
    last = layout.last(x)
    if updates or not kernel.attends(x, attention.heads):
        return layout.attend_last(*attention.project(x, last, updates))
    width = x.shape[-1]
    queries, others = attention.qkv.part(last, slice(width)), attention.qkv.part(x, slice(width, None))
    return attention.split(kernel.attend(queries, others, layout.row_blocks(last=True), attention.heads))
