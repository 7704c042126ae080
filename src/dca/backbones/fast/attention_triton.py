"""Kernels of `attention.py`.

One program handles one block of rows and one head: the scores of its queries with the rows of the block, of which
those outside a query's own sequence are masked, and with the rows of the shared prefix. The gradient of a prefix is
the sum over all blocks that share it; each block stores its part and a second kernel adds them in a fixed order, so
that results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from dca.backbones.fast.attention import RowBlocks

CHUNK, AT_ONCE = 256, 16
NEVER = tl.constexpr(-1e30)


def forward(q: Tensor, k: Tensor, v: Tensor, blocks: RowBlocks, heads: int) -> tuple[Tensor, Tensor]:
    """Views q (N, W), k, v (R, W) -> mixtures (N, W), and the logarithms of the sums of weights (heads, N)."""
    mixed = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sums = torch.empty(heads, len(q), dtype=torch.float32, device=q.device)
    size = q.shape[-1] // heads
    _forward[(len(blocks.blocks), heads)](
        q, k, v, mixed, sums, blocks.blocks, blocks.row_of, blocks.sequence_of,
        q.stride(0), k.stride(0), mixed.stride(0), len(q), size**-0.5,
        **_sizes(blocks, size, q),
    )  # fmt: skip
    return mixed, sums


def backward(
    gradient: Tensor,
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    sums: Tensor,
    blocks: RowBlocks,
    heads: int,
) -> None:
    """Fill `gradients` (views like `inputs`: q, k, v); sums: as `forward` returned them."""
    (q, k, v), (to_q, to_k, to_v) = inputs, gradients
    size, shared = q.shape[-1] // heads, len(blocks.prefixes) > 0
    shape = (len(blocks.blocks), heads, 2, blocks.prefix, size) if shared else (1,)
    parts = torch.empty(shape, dtype=torch.float32, device=q.device)
    _backward[(len(blocks.blocks), heads)](
        q, k, v, sums, gradient, to_q, to_k, to_v, parts,
        blocks.blocks, blocks.row_of, blocks.sequence_of,
        q.stride(0), k.stride(0), gradient.stride(0), to_q.stride(0), to_k.stride(0), len(q), heads, size**-0.5,
        **_sizes(blocks, size, q),
    )  # fmt: skip
    if shared:
        grid = (len(blocks.prefixes), 2 * heads, triton.cdiv(blocks.prefix * size, CHUNK))
        _gather[grid](
            parts, to_k, to_v, blocks.prefixes, to_k.stride(0), heads, MOST=blocks.most,
            ADD=blocks.prefix_queries, PREFIX=blocks.prefix, SIZE=size, CHUNK=CHUNK, AT_ONCE=AT_ONCE, num_warps=4,
        )  # fmt: skip


def _sizes(blocks: RowBlocks, size: int, q: Tensor) -> dict[str, object]:
    return {
        "QUERIES": blocks.queries,
        "ROWS": blocks.rows,
        "PREFIX": blocks.prefix,
        "SHARED": len(blocks.prefixes) > 0,
        "SIZE": size,
        # Exact products for float32; the default of the matrix units would round to 10 bits.
        "EXACT": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": 4 if blocks.rows <= 64 else 8,
    }


@triton.jit
def _tile(X, first, count, stride, head, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """Rows first .. first + count of one head: (BLOCK, SIZE), zeros behind them."""
    row = tl.arange(0, BLOCK)
    at = (first + row).to(tl.int64)[:, None] * stride + head * SIZE + tl.arange(0, SIZE)[None, :]
    return tl.load(X + at, (row < count)[:, None], 0.0)


@triton.jit
def _store_rows(X, values, first, count, stride, head, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    row = tl.arange(0, BLOCK)
    at = (first + row).to(tl.int64)[:, None] * stride + head * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(X + at, values.to(X.dtype.element_ty), (row < count)[:, None])


@triton.jit
def _find_attended_row(ROW_OF, SEQUENCE_OF, q0, qn, k0, kn, QUERIES: tl.constexpr, ROWS: tl.constexpr):
    """Which row of the block each query attends to: (QUERIES, ROWS)."""
    query, row = tl.arange(0, QUERIES), tl.arange(0, ROWS)
    own = tl.load(ROW_OF + q0 + query, query < qn, 0)
    asked = tl.load(SEQUENCE_OF + own, query < qn, -1)
    held = tl.load(SEQUENCE_OF + k0 + row, row < kn, -2)
    return (asked[:, None] == held[None, :]) & (k0 + row[None, :] <= own[:, None])


@triton.jit
def _forward(
    Q, K, V, OUT, SUMS, BLOCKS, ROW_OF, SEQUENCE_OF, q_stride, k_stride, out_stride, count, scale,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, PREFIX: tl.constexpr, SHARED: tl.constexpr, SIZE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    q0, qn = tl.load(BLOCKS + block * 6), tl.load(BLOCKS + block * 6 + 1)
    k0, kn = tl.load(BLOCKS + block * 6 + 2), tl.load(BLOCKS + block * 6 + 3)
    p0, pn = tl.load(BLOCKS + block * 6 + 4), tl.load(BLOCKS + block * 6 + 5)
    q = _tile(Q, q0, qn, q_stride, head, QUERIES, SIZE)
    k = _tile(K, k0, kn, k_stride, head, ROWS, SIZE)
    seen = _find_attended_row(ROW_OF, SEQUENCE_OF, q0, qn, k0, kn, QUERIES, ROWS)
    own = tl.where(seen, tl.dot(q, tl.trans(k), input_precision=EXACT) * scale, NEVER)
    top = tl.max(own, 1)
    if SHARED:
        before = tl.dot(q, tl.trans(_tile(K, p0, pn, k_stride, head, PREFIX, SIZE)), input_precision=EXACT) * scale
        before = tl.where(tl.arange(0, PREFIX)[None, :] < pn, before, NEVER)
        top = tl.maximum(top, tl.max(before, 1))
    # A padded query sees no row: its weights are all zero, its sum is set to one.
    weights = tl.where(seen, tl.exp(own - top[:, None]), 0.0)
    total = tl.sum(weights, 1)
    mixed = tl.dot(weights.to(Q.dtype.element_ty), _tile(V, k0, kn, k_stride, head, ROWS, SIZE), input_precision=EXACT)
    if SHARED:
        weights = tl.where(tl.arange(0, PREFIX)[None, :] < pn, tl.exp(before - top[:, None]), 0.0)
        total += tl.sum(weights, 1)
        values = _tile(V, p0, pn, k_stride, head, PREFIX, SIZE)
        mixed += tl.dot(weights.to(Q.dtype.element_ty), values, input_precision=EXACT)
    query = tl.arange(0, QUERIES)
    total = tl.where(query < qn, total, 1.0)
    _store_rows(OUT, mixed / total[:, None], q0, qn, out_stride, head, QUERIES, SIZE)
    tl.store(SUMS + head * count + q0 + query, top + tl.log(total), query < qn)


@triton.jit
def _backward(
    Q, K, V, SUMS, G, TO_Q, TO_K, TO_V, PARTS, BLOCKS, ROW_OF, SEQUENCE_OF,
    q_stride, k_stride, g_stride, to_q_stride, to_k_stride, count, heads, scale,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, PREFIX: tl.constexpr, SHARED: tl.constexpr, SIZE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    q0, qn = tl.load(BLOCKS + block * 6), tl.load(BLOCKS + block * 6 + 1)
    k0, kn = tl.load(BLOCKS + block * 6 + 2), tl.load(BLOCKS + block * 6 + 3)
    p0, pn = tl.load(BLOCKS + block * 6 + 4), tl.load(BLOCKS + block * 6 + 5)
    q = _tile(Q, q0, qn, q_stride, head, QUERIES, SIZE)
    g = _tile(G, q0, qn, g_stride, head, QUERIES, SIZE)
    query = tl.arange(0, QUERIES)
    total = tl.load(SUMS + head * count + q0 + query, query < qn, 0.0)
    k = _tile(K, k0, kn, k_stride, head, ROWS, SIZE)
    v = _tile(V, k0, kn, k_stride, head, ROWS, SIZE)
    seen = _find_attended_row(ROW_OF, SEQUENCE_OF, q0, qn, k0, kn, QUERIES, ROWS)
    scores = tl.where(seen, tl.dot(q, tl.trans(k), input_precision=EXACT) * scale, NEVER)
    weights = tl.exp(scores - total[:, None])
    along = tl.dot(g, tl.trans(v), input_precision=EXACT)
    # The gradient along a query's own mixture, Σ_j w_j g·v_j: so the mixture itself need not be kept.
    centre = tl.sum(weights * along, 1)
    to_v = tl.dot(tl.trans(weights.to(Q.dtype.element_ty)), g, input_precision=EXACT)
    _store_rows(TO_V, to_v, k0, kn, to_k_stride, head, ROWS, SIZE)
    if SHARED:
        before = _tile(K, p0, pn, k_stride, head, PREFIX, SIZE)
        inside = (tl.arange(0, PREFIX)[None, :] < pn) & (query < qn)[:, None]
        shared = tl.where(inside, tl.dot(q, tl.trans(before), input_precision=EXACT) * scale, NEVER)
        shared = tl.exp(shared - total[:, None])
        across = tl.dot(g, tl.trans(_tile(V, p0, pn, k_stride, head, PREFIX, SIZE)), input_precision=EXACT)
        centre += tl.sum(shared * across, 1)
        own = PARTS + (block.to(tl.int64) * heads + head) * 2 * PREFIX * SIZE
        to_v = tl.dot(tl.trans(shared.to(Q.dtype.element_ty)), g, input_precision=EXACT)
        _store_rows(own + PREFIX * SIZE, to_v, 0, PREFIX, SIZE, 0, PREFIX, SIZE)
    change = (weights * (along - centre[:, None]) * scale).to(Q.dtype.element_ty)
    to_q = tl.dot(change, k, input_precision=EXACT)
    _store_rows(TO_K, tl.dot(tl.trans(change), q, input_precision=EXACT), k0, kn, to_k_stride, head, ROWS, SIZE)
    if SHARED:
        change = (shared * (across - centre[:, None]) * scale).to(Q.dtype.element_ty)
        to_q += tl.dot(change, before, input_precision=EXACT)
        _store_rows(own, tl.dot(tl.trans(change), q, input_precision=EXACT), 0, PREFIX, SIZE, 0, PREFIX, SIZE)
    _store_rows(TO_Q, to_q, q0, qn, to_q_stride, head, QUERIES, SIZE)


@triton.jit
def _gather(
    PARTS, TO_K, TO_V, PREFIXES, stride, heads,
    MOST: tl.constexpr, ADD: tl.constexpr, PREFIX: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add the parts of all blocks of a prefix to the gradients of its keys (even programs) and values (odd ones)."""
    prefix, head, which = tl.program_id(0), tl.program_id(1) // 2, tl.program_id(1) % 2
    p0, pn = tl.load(PREFIXES + prefix * 4), tl.load(PREFIXES + prefix * 4 + 1)
    first, count = tl.load(PREFIXES + prefix * 4 + 2), tl.load(PREFIXES + prefix * 4 + 3)
    at = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], dtype=tl.float32)
    for start in range(0, MOST, AT_ONCE):
        block = start + tl.arange(0, AT_ONCE)
        home = (((first + block).to(tl.int64) * heads + head) * 2 + which) * PREFIX * SIZE
        inside = (block < count)[:, None] & (at < PREFIX * SIZE)[None, :]
        total += tl.sum(tl.load(PARTS + home[:, None] + at[None, :], inside, 0.0), 0)
    row, column = at // SIZE, at % SIZE
    place = (p0 + row).to(tl.int64) * stride + head * SIZE + column
    kept = row < pn
    if which == 0:
        if ADD:
            total += tl.load(TO_K + place, kept, 0.0).to(tl.float32)
        tl.store(TO_K + place, total.to(TO_K.dtype.element_ty), kept)
    else:
        if ADD:
            total += tl.load(TO_V + place, kept, 0.0).to(tl.float32)
        tl.store(TO_V + place, total.to(TO_V.dtype.element_ty), kept)
