"""The image tower: a ViT whose CLS row becomes the image feature.

Methods may insert tokens of their own (`ExtraTokens`) and add to the outputs of layers (`Update`).
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn

from dca.backbones.blocks import (
    NO_UPDATES,
    OUTSIDE,
    Block,
    Blocks,
    Linear,
    Residual,
    TowerUpdates,
    apply_with_update,
    embed_patches,
)
from dca.backbones.clip.config import VIT_B_16, VisionConfig
from dca.backbones.dual_encoder import NO_TOKENS, BlockCallback, ExtraTokens, ImageTower
from dca.backbones.encoder import Ability

CLS = slice(0, 1)


class VisionTower(ImageTower):
    """Patches and CLS through ln_pre, the blocks, ln_post and the projection."""

    abilities: ClassVar[frozenset[Ability]] = frozenset({
        Ability.IMAGE_TOKENS, Ability.IMAGE_LAYERS, Ability.IMAGE_END, Ability.PROJECTION, Ability.PATCHES,
    })  # fmt: skip
    outside_norms = ("ln_pre", "ln_post")

    def __init__(self, config: VisionConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
        self.layers, self.width, self.patch_size, self.patches = (
            config.layers, config.width, config.patch_size, config.patches
        )  # fmt: skip
        self.floats_per_image = (1 + config.patches) * config.hidden
        # As wide as ViT-B or wider: matrix products take nearly all its time.
        self.is_full_size = config.width >= VIT_B_16.vision.width
        size, width = config.patch_size, config.width
        self.patch_embed = nn.Conv2d(3, width, kernel_size=size, stride=size, bias=False)
        self.cls = nn.Parameter(torch.empty(width))
        self.positions = nn.Parameter(torch.empty(1 + config.patches, width))
        self.ln_pre = nn.LayerNorm(width, eps=config.eps)
        self.blocks = Blocks(config)
        self.ln_post = nn.LayerNorm(width, eps=config.eps)
        self.projection = Linear(width, embed_dim, bias=False)

    def embed(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> CLS and patches with positions (B, 1 + P, W), before ln_pre."""
        patches = embed_patches(pixels, self.patch_embed)
        cls = self.cls.to(patches.dtype).expand(patches.shape[0], 1, -1)
        return torch.cat([cls, patches], dim=1) + self.positions.to(patches.dtype)

    def run_until_end(
        self,
        pixels: Tensor,
        tokens: ExtraTokens | None = None,
        updates: TowerUpdates | None = None,
        on_block: BlockCallback | None = None,
    ) -> Tensor:
        """Pixels (B, 3, S, S) -> the rows (B, T, W) that enter the last block."""
        tokens, updates = tokens or NO_TOKENS, updates or {}
        x, present = self.embed(pixels), 0
        if tokens.before_norm:
            x, present = tokens.insert(x, 0, present)
        x = apply_with_update(self.ln_pre, x, updates.get(OUTSIDE, NO_UPDATES).get("ln_pre"))
        residual, last = Residual(x), len(self.blocks) - 1
        for layer, block in enumerate(self.blocks):
            if layer in tokens.layers and (layer or not tokens.before_norm):
                x, present = tokens.insert(residual.total(), layer, present)
                residual = Residual(x)
            if layer < last:
                residual = block(residual, updates=updates.get(layer, NO_UPDATES))
                if on_block is not None:
                    on_block(f"visual.{layer}", residual.total())
        return residual.total()

    def copy_end(self) -> TowerEnd:
        """A copy of the last block, the last norm and the projection."""
        return TowerEnd(self)

    def encode_unprojected(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> the vectors (B, W) that the projection maps to features."""
        *_, last = self.blocks
        return apply_last_block(self.run_until_end(pixels), last, self.ln_post, nn.Identity())

    def forward(
        self,
        pixels: Tensor,
        tokens: ExtraTokens | None = None,
        updates: TowerUpdates | None = None,
        on_block: BlockCallback | None = None,
    ) -> Tensor:
        """Pixels (B, 3, S, S) -> features (B, D), not normalised."""
        updates = updates or {}
        x = self.run_until_end(pixels, tokens, updates, on_block)
        *_, last = self.blocks
        index = len(self.blocks) - 1
        # All rows for the callback, which may read any of them.
        only = CLS if on_block is None else None
        x = last(Residual(x), only=only, updates=updates.get(index, NO_UPDATES)).total()
        if on_block is not None:
            on_block(f"visual.{index}", x)
        feature: Tensor = self.projection(
            apply_with_update(self.ln_post, x[:, 0], updates.get(OUTSIDE, NO_UPDATES).get("ln_post"))
        )
        return feature

    def encode_with_patches(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels (B, 3, S, S) -> features (B, D), not normalised, and `local_features` (B, P, W)."""
        x = self.run_until_end(pixels)
        *_, last = self.blocks
        return apply_last_block(x, last, self.ln_post, self.projection), local_features(x, last, self.ln_post)


class TowerEnd(nn.Module):
    """A copy of the last block, the last norm and the projection of an image tower."""

    def __init__(self, tower: VisionTower) -> None:
        super().__init__()
        *_, last = tower.blocks
        self.block, self.ln_post, self.projection = copy.deepcopy((last, tower.ln_post, tower.projection))

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (B, T, W) that enter the last block -> features (B, D), not normalised."""
        return apply_last_block(rows, self.block, self.ln_post, self.projection)


def apply_last_block(x: Tensor, last: Block, ln_post: nn.Module, projection: nn.Module) -> Tensor:
    """The end of the tower: rows (B, T, W) that enter the last block -> features (B, D), not normalised."""
    feature: Tensor = projection(ln_post(last(Residual(x), only=CLS).total()[:, 0]))
    return feature


def local_features(x: Tensor, last: Block, ln_post: nn.Module) -> Tensor:
    """Rows (B, 1 + P, W) that enter the last block -> patches (B, P, W) that pass it unmixed, after ln_post."""
    patches: Tensor = ln_post(last.forward_without_mixing(x[:, 1:]))
    return patches
