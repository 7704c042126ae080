"""Kernels of `activation.py`; they compute in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


def forward(h: Tensor, quick: bool) -> Tensor:
    """Contiguous h -> the activation."""
    result = torch.empty_like(h)
    if h.numel():
        _forward[(triton.cdiv(h.numel(), BLOCK),)](h, result, h.numel(), QUICK=quick, BLOCK=BLOCK, num_warps=8)
    return result


def backward(gradient: Tensor, h: Tensor, quick: bool) -> Tensor:
    """Contiguous gradient of the activation of h -> that of h."""
    result = torch.empty_like(h)
    if h.numel():
        grid = (triton.cdiv(h.numel(), BLOCK),)
        _backward[grid](gradient, h, result, h.numel(), QUICK=quick, BLOCK=BLOCK, num_warps=8)
    return result


@triton.jit
def _forward(H, OUT, count, QUICK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(H + at, at < count, 0.0).to(tl.float32)
    result = h / (1 + tl.exp(-1.702 * h)) if QUICK else 0.5 * h * (1 + tl.erf(h * 0.7071067811865476))
    tl.store(OUT + at, result.to(OUT.dtype.element_ty), at < count)


@triton.jit
def _backward(G, H, OUT, count, QUICK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(H + at, at < count, 0.0).to(tl.float32)
    if QUICK:
        share = 1 / (1 + tl.exp(-1.702 * h))
        slope = share + 1.702 * h * share * (1 - share)
    else:
        slope = 0.5 * (1 + tl.erf(h * 0.7071067811865476)) + h * 0.3989422804014327 * tl.exp(-0.5 * h * h)
    gradient = tl.load(G + at, at < count, 0.0).to(tl.float32)
    tl.store(OUT + at, (gradient * slope).to(OUT.dtype.element_ty), at < count)
