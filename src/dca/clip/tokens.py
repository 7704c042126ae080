"""Extra tokens for the image tower: where they are inserted and what replaces them in deeper blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Place = Literal["after_first", "end"]


@dataclass(frozen=True)
class ExtraTokens:
    """Tokens that a method adds to those of the image.

    layers: block index -> (V, W), or (B, V, W) with tokens for each image. The tokens of block l
        are part of its input; they replace the rows that an earlier block inserted.
    place: after the first row (CLS), or behind the last one.
    before_norm: the tokens of block 0 pass through ln_pre with the other rows.
    """

    layers: Mapping[int, Tensor] = field(default_factory=dict)
    place: Place = "after_first"
    before_norm: bool = False

    def insert(self, x: Tensor, layer: int, present: int) -> tuple[Tensor, int]:
        """Insert the tokens of `layer` into x (B, T, W); returns x and its number of extra rows.

        present: number of extra rows inserted by earlier blocks, which these tokens replace.
        """
        tokens = self.layers.get(layer)
        if tokens is None:
            return x, present
        tokens = tokens.to(x.dtype).expand(*x.shape[:-2], -1, -1)
        if self.place == "end":
            return torch.cat([x[..., : x.shape[-2] - present, :], tokens], dim=-2), tokens.shape[-2]
        return torch.cat([x[..., :1, :], tokens, x[..., 1 + present :, :]], dim=-2), tokens.shape[-2]
