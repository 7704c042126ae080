"""The image tower: a ViT without CLS, read out by attention pooling.

    image -> patches + positions -> blocks -> ln_post -> one learned query attends to all rows -> feature

The pooling head ("MAP", Zhai et al., Scaling Vision Transformers, CVPR 2022) is attention of one query and an MLP:

    y = attention(query, rows),    feature = y + mlp(norm(y))

Tokens of methods stand among the rows, so that blocks and pooling see them.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn

from dca.backbones.blocks import (
    NO_UPDATES,
    OUTSIDE,
    Activation,
    Attention,
    Blocks,
    BlockUpdates,
    Linear,
    Residual,
    TowerUpdates,
    apply_with_update,
    attention,
    embed_patches,
)
from dca.backbones.clip.config import VIT_B_16, VisionConfig
from dca.backbones.dual_encoder import NO_TOKENS, BlockCallback, ExtraTokens, ImageTower
from dca.backbones.encoder import Ability


class AttentionPooling(nn.Module):
    """One learned query attends to all rows; see the head of this file."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, 1, config.width))
        self.attn = Attention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = nn.Sequential(
            Linear(config.width, config.hidden), Activation(config.activation), Linear(config.hidden, config.width)
        )

    def forward(self, rows: Tensor, updates: BlockUpdates = NO_UPDATES) -> Tensor:
        """Rows (B, T, W) -> features (B, W), not normalised. updates: that of "pool.norm"."""
        query = self.query.to(rows.dtype).expand(rows.shape[0], -1, -1)
        pooled = self.attn.merge_heads(attention(*self.attn.project(rows, query)))[:, 0]
        feature: Tensor = pooled + self.mlp(apply_with_update(self.norm, pooled, updates.get("pool.norm")))
        return feature


class SigLIPEnd(nn.Module):
    """A copy of the last norm and of attention pooling."""

    def __init__(self, tower: SigLIPVisionTower) -> None:
        super().__init__()
        self.ln_post, self.pool = copy.deepcopy((tower.ln_post, tower.pool))

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (B, T, W) that leave the last block -> features (B, D), not normalised."""
        features: Tensor = self.pool(self.ln_post(rows))
        return features


class SigLIPVisionTower(ImageTower):
    """Patches through the blocks, ln_post and attention pooling."""

    abilities: ClassVar[frozenset[Ability]] = frozenset({
        Ability.IMAGE_TOKENS, Ability.IMAGE_LAYERS, Ability.IMAGE_END,
    })  # fmt: skip
    outside_norms = ("ln_post", "pool.norm")

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.layers, self.width, self.patch_size, self.patches = (
            config.layers, config.width, config.patch_size, config.patches
        )  # fmt: skip
        self.floats_per_image = config.patches * config.hidden
        self.is_full_size = config.width >= VIT_B_16.vision.width
        self.patch_embed = nn.Conv2d(3, config.width, kernel_size=config.patch_size, stride=config.patch_size)
        self.positions = nn.Parameter(torch.empty(config.patches, config.width))
        self.blocks = Blocks(config)
        self.ln_post = nn.LayerNorm(config.width, eps=config.eps)
        self.pool = AttentionPooling(config)

    def embed(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> patches with positions (B, P, W)."""
        patches = embed_patches(pixels, self.patch_embed)
        return patches + self.positions.to(patches.dtype)

    def run_blocks(
        self, pixels: Tensor, tokens: ExtraTokens, updates: TowerUpdates, on_block: BlockCallback | None
    ) -> Tensor:
        """Pixels (B, 3, S, S) -> the rows (B, T, W) that leave the last block."""
        residual, present = Residual(self.embed(pixels)), 0
        for layer, block in enumerate(self.blocks):
            if layer in tokens.layers:
                x, present = tokens.insert(residual.total(), layer, present, cls=0)
                residual = Residual(x)
            residual = block(residual, updates=updates.get(layer, NO_UPDATES))
            if on_block is not None:
                on_block(f"visual.{layer}", residual.total())
        return residual.total()

    def forward(
        self,
        pixels: Tensor,
        tokens: ExtraTokens | None = None,
        updates: TowerUpdates | None = None,
        on_block: BlockCallback | None = None,
    ) -> Tensor:
        """Pixels (B, 3, S, S) -> features (B, D), not normalised."""
        updates = updates or {}
        outside = updates.get(OUTSIDE, NO_UPDATES)
        rows = self.run_blocks(pixels, tokens or NO_TOKENS, updates, on_block)
        features: Tensor = self.pool(apply_with_update(self.ln_post, rows, outside.get("ln_post")), outside)
        return features

    def run_until_end(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> the rows (B, P, W) that leave the last block."""
        return self.run_blocks(pixels, NO_TOKENS, {}, None)

    def copy_end(self) -> SigLIPEnd:
        """A copy of the last norm and of attention pooling: of a ResNet, too, attention pooling is the end."""
        return SigLIPEnd(self)
