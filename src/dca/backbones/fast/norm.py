"""Residual addition and layer norm in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.core.device import triton_usable


def add_norm(
    x: Tensor, y: Tensor | None, norm: nn.LayerNorm, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The sum x + y, and its layer norm.

    Args:
        x: Rows (..., W) of the residual stream.
        y: What is added to them, (..., W); None for nothing.
        norm: The layer norm; no gradient is computed for its weights by the kernel.
        dtype: Type of the normalized rows; the type of x by default.

    Returns:
        x + y in the type of x, and norm(x + y).
    """
    frozen = not norm.weight.requires_grad and not norm.bias.requires_grad
    if triton_usable(x) and frozen and x.dtype == torch.float32:
        result: tuple[Tensor, Tensor] = FusedAddNorm.apply(x, y, norm.weight, norm.bias, norm.eps, dtype or x.dtype)  # type: ignore[no-untyped-call]
        return result
    x = x if y is None else x + y
    normalized = F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return x, normalized if dtype is None else normalized.to(dtype)


class FusedAddNorm(torch.autograd.Function):
    """`add_norm` with kernels; what is kept for the gradient is the normalized row before scale and shift."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """x: (..., W) float32; y: (..., W) or None."""
        from dca.backbones.fast import norm_triton

        ctx.set_materialize_grads(False)
        keep = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        added = None if y is None else y.contiguous()
        result = norm_triton.forward(x.contiguous(), added, weight, bias, eps, dtype, keep)
        ctx.save_for_backward(weight, *result.kept)
        ctx.added = None if y is None else y.dtype
        return (x if y is None else result.total), result.normalized

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of x + y and of the normalized rows -> those of x and y."""
        from dca.backbones.fast import norm_triton

        to_rows, to_normalized = gradients
        if to_normalized is None:
            to_y = to_rows if ctx.added is None or to_rows is None else to_rows.to(ctx.added)
            return to_rows, None if ctx.added is None else to_y, None, None, None, None
        weight, units, scales = ctx.saved_tensors
        to_rows = None if to_rows is None else to_rows.contiguous()
        to_x, to_y = norm_triton.backward(to_rows, to_normalized.contiguous(), weight, units, scales, ctx.added)
        return to_x, to_y, None, None, None, None
