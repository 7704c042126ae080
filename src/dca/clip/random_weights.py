"""Random weights for a CLIP that is trained from scratch, as in the CLIP paper."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from dca.clip.blocks import Block
from dca.clip.model import CLIP

Normal = Callable[[torch.Tensor, float], None]


@torch.no_grad()
def initialize(clip: CLIP, generator: torch.Generator) -> CLIP:
    """Fill every weight in place from `generator`; returns clip."""

    def normal(tensor: torch.Tensor, std: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

    for tower in (clip.visual, clip.text):
        width = tower.config.width
        for block in tower.blocks:
            _fill_block(block, width, tower.config.layers, normal)
        normal(tower.projection.weight, width**-0.5)
    normal(clip.visual.patch_embed.weight, clip.config.vision.width**-0.5)
    normal(clip.visual.cls, clip.config.vision.width**-0.5)
    normal(clip.visual.positions, clip.config.vision.width**-0.5)
    normal(clip.text.embedding.weight, 0.02)
    normal(clip.text.positions, 0.01)
    for module in clip.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.fill_(1)
            module.bias.zero_()
    clip.logit_scale.fill_(math.log(1 / 0.07))
    return clip


def _fill_block(block: Block, width: int, layers: int, normal: Normal) -> None:
    """Attention and MLP of one block; residual outputs are scaled down with depth."""
    residual = width**-0.5 * (2 * layers) ** -0.5
    normal(block.attn.qkv.weight, width**-0.5)
    normal(block.attn.out.weight, residual)
    first, last = block.mlp[0], block.mlp[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    normal(first.weight, (2 * width) ** -0.5)
    normal(last.weight, residual)
    for linear in (block.attn.qkv, block.attn.out, first, last):
        linear.bias.zero_()
