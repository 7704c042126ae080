"""A frozen convolution and the ReLU6 behind it, in one pass on x86 CPUs."""

from __future__ import annotations

import platform
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.core.device import has_onednn


def convolve_relu6(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """min(max(layer(x), 0), 6).

    Args:
        x: (B, C, H, W).
        layer: A convolution with bias and equal padding on all sides.

    Returns:
        (B, C', H', W').
    """
    if not _fusion_usable(x, layer):
        return F.relu6(layer(x), inplace=True)
    # The operation that torch's compiler makes of the two; "hardtanh" clamps to the two scalars.
    result: Tensor = torch.ops.mkldnn._convolution_pointwise(
        x, layer.weight, layer.bias, layer.padding, layer.stride, layer.dilation, layer.groups, "hardtanh", [0, 6], ""
    )
    return result


def _fusion_usable(x: Tensor, layer: nn.Conv2d) -> bool:
    """Whether the fused operation runs: in float32 on the CPU, without gradients, and not while a program is traced."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or layer.weight.dtype != torch.float32:
        return False
    if torch.is_grad_enabled() and (x.requires_grad or layer.weight.requires_grad):
        return False
    if type(x) is not Tensor or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    return fusion_built()


@cache
def fusion_built() -> bool:
    """Whether this torch has the fused operation: builds for x86 with oneDNN."""
    if platform.machine() not in ("x86_64", "AMD64") or not has_onednn():
        return False
    return hasattr(torch.ops.mkldnn, "_convolution_pointwise")
