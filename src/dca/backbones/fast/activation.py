"""The activation of the MLPs in one pass, and its gradient in another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.device import triton_usable


def activate(h: Tensor, *, quick: bool) -> Tensor:
    """QuickGELU, h · sigmoid(1.702 h), or GELU, h · Φ(h).

    Args:
        h: Any shape.
        quick: QuickGELU, the activation of OpenAI's checkpoints, rather than GELU.

    Returns:
        The same shape and type.
    """
    if triton_usable(h):
        result: Tensor = FusedActivation.apply(h, quick)  # type: ignore[no-untyped-call]
        return result
    if not quick:
        return F.gelu(h)
    if h.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        trained: Tensor = QuickGELU.apply(h)  # type: ignore[no-untyped-call]
        return trained
    # QuickGELU(h) = SiLU(1.702 h) / 1.702, and SiLU is one pass.
    return F.silu(1.702 * h) / 1.702


class QuickGELU(torch.autograd.Function):
    """QuickGELU without kernels. Its gradient is that of SiLU at 1.702 h: one pass instead of three."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        """h: any shape."""
        scaled = 1.702 * h
        ctx.save_for_backward(scaled)
        return F.silu(scaled).div_(1.702)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Gradient of the result -> that of h."""
        (scaled,) = ctx.saved_tensors
        result: Tensor = torch.ops.aten.silu_backward(gradients[0], scaled)
        return result


class FusedActivation(torch.autograd.Function):
    """`activate` with kernels; only h is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, quick: bool) -> Tensor:
        """h: any shape."""
        from dca.backbones.fast import activation_triton

        h = h.contiguous()
        ctx.save_for_backward(h)
        ctx.quick = quick
        return activation_triton.forward(h, quick)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Gradient of the result -> that of h."""
        from dca.backbones.fast import activation_triton

        (h,) = ctx.saved_tensors
        return activation_triton.backward(gradients[0].contiguous(), h, ctx.quick), None
