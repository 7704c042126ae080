"""Extra tokens for a tower: where they enter and what replaces them at deeper layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Place = Literal["after_first", "end"]


@dataclass(frozen=True)
class ExtraTokens:
    """Tokens that a method puts beside a tower's own.

    layers: block index -> (V, W), or (B, V, W) for tokens of each sequence. The tokens of
        block l stand in the input of block l; rows that an earlier layer inserted are
        replaced. Block 0 is the tower's input.
    place: after the first row (CLS), or behind the last one.
    before_norm: block 0's tokens pass through the image tower's ln_pre with the rest.
    """

    layers: Mapping[int, Tensor] = field(default_factory=dict)
    place: Place = "after_first"
    before_norm: bool = False

    def insert(self, x: Tensor, layer: int, present: int) -> tuple[Tensor, int]:
        """Put the tokens of `layer` into x (B, T, W); returns x and how many extra rows it now has.

        present: extra rows inserted by earlier layers, which these tokens replace.
        """
        tokens = self.layers.get(layer)
        if tokens is None:
            return x, present
        tokens = tokens.to(x.dtype).expand(*x.shape[:-2], -1, -1)
        if self.place == "end":
            return torch.cat([x[..., : x.shape[-2] - present, :], tokens], dim=-2), tokens.shape[-2]
        return torch.cat([x[..., :1, :], tokens, x[..., 1 + present :, :]], dim=-2), tokens.shape[-2]
