"""The activation of the MLPs in one pass, and its gradient in another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.kernels import usable


def activate(h: Tensor, *, quick: bool) -> Tensor:
    """QuickGELU, h · sigmoid(1.702 h), or GELU, h · Φ(h).

    Args:
        h: Any shape.
        quick: QuickGELU, the activation of OpenAI's checkpoints, rather than GELU.

    Returns:
        The same shape and type.
    """
    if usable(h):
        found: Tensor = Activate.apply(h, quick)  # type: ignore[no-untyped-call]
        return found
    # QuickGELU(h) = SiLU(1.702 h) / 1.702, and SiLU is one pass in both directions.
    return F.silu(1.702 * h) / 1.702 if quick else F.gelu(h)


class Activate(torch.autograd.Function):
    """`activate` with kernels; only h is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, quick: bool) -> Tensor:
        """h: any shape."""
        from dca.clip.kernels import activation_triton

        h = h.contiguous()
        ctx.save_for_backward(h)
        ctx.quick = quick
        return activation_triton.forward(h, quick)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Gradient of the result -> that of h."""
        from dca.clip.kernels import activation_triton

        (h,) = ctx.saved_tensors
        return activation_triton.backward(gradients[0].contiguous(), h, ctx.quick), None
