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
        dtype: Type of the normed rows; the type of x by default.

    Returns:
        x + y in the type of x, and norm(x + y).
    """
    frozen = not norm.weight.requires_grad and not norm.bias.requires_grad
    if triton_usable(x) and frozen and x.dtype == torch.float32:
        found: tuple[Tensor, Tensor] = AddNorm.apply(x, y, norm.weight, norm.bias, norm.eps, dtype or x.dtype)  # type: ignore[no-untyped-call]
        return found
    x = x if y is None else x + y
    normed = F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return x, normed if dtype is None else normed.to(dtype)


class AddNorm(torch.autograd.Function):
    """`add_norm` with kernels; what is kept for the gradient is the normed row before scale and shift."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """x: (..., W) float32; y: (..., W) or None."""
        from dca.backbones.fast import norm_triton

        ctx.set_materialize_grads(False)
        keep = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        added = None if y is None else y.contiguous()
        found = norm_triton.forward(x.contiguous(), added, weight, bias, eps, dtype, keep)
        ctx.save_for_backward(weight, *found.kept)
        ctx.added = None if y is None else y.dtype
        return (x if y is None else found.rows), found.normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of x + y and of the normed rows -> those of x and y."""
        from dca.backbones.fast import norm_triton

        to_rows, to_normed = gradients
        if to_normed is None:
            to_y = to_rows if ctx.added is None or to_rows is None else to_rows.to(ctx.added)
            return to_rows, None if ctx.added is None else to_y, None, None, None, None
        weight, units, scales = ctx.saved_tensors
        to_rows = None if to_rows is None else to_rows.contiguous()
        to_x, to_y = norm_triton.backward(to_rows, to_normed.contiguous(), weight, units, scales, ctx.added)
        return to_x, to_y, None, None, None, None
