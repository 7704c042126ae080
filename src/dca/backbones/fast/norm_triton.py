"""Kernels of `norm.py`; one program handles one row."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dca.core.device import power_of_two


class AddNormResult(NamedTuple):
    """total: x + y. normalized: their layer norm. kept: the norm before scale and shift, and 1 / standard deviation."""

    total: Tensor
    normalized: Tensor
    kept: tuple[Tensor, ...]


def forward(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, keep: bool
) -> AddNormResult:
    """Contiguous x, y (..., W)."""
    width, count = x.shape[-1], x.numel() // x.shape[-1]
    rows = x if y is None else torch.empty_like(x)
    normalized = torch.empty(x.shape, dtype=dtype, device=x.device)
    units = torch.empty_like(normalized) if keep else normalized
    scales = torch.empty(count, dtype=torch.float32, device=x.device)
    if count:
        _forward[(count,)](
            x, x if y is None else y, weight, bias, rows, normalized, units, scales, width, eps,
            ADD=y is not None, KEEP=keep, BLOCK=power_of_two(width), num_warps=4,
        )  # fmt: skip
    return AddNormResult(rows, normalized, (units, scales) if keep else ())


def backward(
    to_rows: Tensor | None,
    to_normalized: Tensor,
    weight: Tensor,
    units: Tensor,
    scales: Tensor,
    added: torch.dtype | None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and, in the type `added`, of y; to_rows: of x + y, or None where only the norm is used."""
    width, count = units.shape[-1], len(scales)
    to_x = torch.empty(units.shape, dtype=torch.float32, device=units.device)
    to_y = None if added is None else torch.empty(units.shape, dtype=added, device=units.device)
    if count:
        _backward[(count,)](
            to_normalized if to_rows is None else to_rows, to_normalized, weight, units, scales,
            to_x, to_x if to_y is None else to_y, width,
            RESIDUAL=to_rows is not None, ADD=to_y is not None, BLOCK=power_of_two(width), num_warps=4,
        )  # fmt: skip
    return to_x, to_y


@triton.jit
def _forward(
    X, Y, W, B, ROWS, NORMED, UNITS, SCALES, width, eps,
    ADD: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(X + row * width + at, inside, 0.0)
    if ADD:
        x += tl.load(Y + row * width + at, inside, 0.0).to(tl.float32)
        tl.store(ROWS + row * width + at, x, inside)
    mean = tl.sum(x, 0) / width
    centred = tl.where(inside, x - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    unit = centred * scale
    weight, bias = tl.load(W + at, inside, 0.0), tl.load(B + at, inside, 0.0)
    tl.store(NORMED + row * width + at, (unit * weight + bias).to(NORMED.dtype.element_ty), inside)
    if KEEP:
        tl.store(UNITS + row * width + at, unit.to(UNITS.dtype.element_ty), inside)
        tl.store(SCALES + row, scale)


@triton.jit
def _backward(
    TO_ROWS, TO_NORMED, W, UNITS, SCALES, TO_X, TO_Y, width,
    RESIDUAL: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    unit = tl.load(UNITS + row * width + at, inside, 0.0).to(tl.float32)
    to_unit = tl.load(TO_NORMED + row * width + at, inside, 0.0).to(tl.float32) * tl.load(W + at, inside, 0.0)
    along = tl.sum(to_unit * unit, 0) / width
    to_x = (to_unit - tl.sum(to_unit, 0) / width - unit * along) * tl.load(SCALES + row)
    if RESIDUAL:
        to_x += tl.load(TO_ROWS + row * width + at, inside, 0.0).to(tl.float32)
    tl.store(TO_X + row * width + at, to_x, inside)
    if ADD:
        tl.store(TO_Y + row * width + at, to_x.to(TO_Y.dtype.element_ty), inside)
