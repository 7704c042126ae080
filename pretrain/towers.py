"""Training passes through the backbone's towers: some patches only, padded texts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.blocks import Residual
from dca.backbones.clip.text import CausalTextTower
from dca.backbones.clip.vision import CLS, VisionTower


def encode_patches(tower: VisionTower, pixels: Tensor, keep: float, rng: torch.Generator) -> Tensor:
    """Features (B, D) of pixels (B, 3, S, S) from a random share of the patches.

    Half the patches cost half the time and keep the tower from relying on any one of them.
    """
    x = tower.embed(pixels)
    batch, rows, width = x.shape
    kept = count_patches(rows - 1, keep)
    if kept < rows - 1:
        order = torch.rand(batch, rows - 1, generator=rng, device=x.device).argsort(1)[:, :kept]
        chosen = x[:, 1:].gather(1, order[..., None].expand(-1, -1, width))
        x = torch.cat([x[:, :1], chosen], dim=1)
    x = tower.ln_pre(x)
    last = len(tower.blocks) - 1
    for layer, block in enumerate(tower.blocks):
        x = block(Residual(x), only=CLS if layer == last else None).total()
    feature: Tensor = tower.projection(tower.ln_post(x[:, 0]))
    return feature.float()


def count_patches(patches: int, keep: float) -> int:
    """Number of patches used; one fewer than a round number, because CLS adds a row."""
    return patches if keep >= 1 else max(1, round(patches * keep) - 1)


def encode_padded(tower: CausalTextTower, ids: Tensor, eot: Tensor) -> Tensor:
    """Features (B, D), unit length, of padded ids (B, T) with EOT at position eot (B,)."""
    x = tower.embedding(ids)
    x = x + tower.positions[: ids.shape[1]].to(x.dtype)
    for block in tower.blocks:
        x = block(Residual(x), causal=True).total()
    end = x[torch.arange(len(x), device=x.device), eot]
    return F.normalize(tower.projection(tower.ln_final(end)).float(), dim=-1)
