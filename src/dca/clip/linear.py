"""Linear layers whose frozen weights are kept in the compute type."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

# Weight -> ((its version, another type), the weight in that type). Not part of the layer: copies, checkpoints and
# digests of the backbone hold the weights alone.
_CAST: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def compute_type(x: Tensor) -> torch.dtype:
    """The type in which layers calculate for x: that of autocast where it is on, else the type of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def in_type(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A frozen weight in a type, converted once; a weight that is trained is converted at every call."""
    if weight.dtype == dtype:
        return weight
    traced = type(torch.empty(0)) is not Tensor or torch.compiler.is_compiling()
    if weight.requires_grad or weight.is_inference() or traced:  # inference tensors have no version
        return weight.to(dtype)
    kept = _CAST.get(weight)  # type: ignore[no-untyped-call]
    if kept is None or kept[0] != (weight._version, dtype):
        # A tensor created in inference mode could not be used in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            kept = _CAST[weight] = (weight._version, dtype), weight.to(dtype)
    cast: Tensor = kept[1]
    return cast


class Linear(nn.Linear):
    """`nn.Linear`; with autocast, its frozen weights are not converted again at every call."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., V) -> (..., W)."""
        dtype = compute_type(x)
        bias = None if self.bias is None else in_type(self.bias, dtype)
        return F.linear(x.to(dtype), in_type(self.weight, dtype), bias)

    def part(self, x: Tensor, rows: slice) -> Tensor:
        """Some of the outputs: (..., V) -> (..., n)."""
        dtype = compute_type(x)
        return F.linear(x.to(dtype), in_type(self.weight, dtype)[rows], in_type(self.bias, dtype)[rows])
