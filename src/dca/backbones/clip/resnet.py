"""The image tower of RN50, RN101, RN50x4, ...: a ResNet whose last layer is attention.

    image -> three 3x3 convolutions -> mean over 2x2 -> four stages of bottlenecks -> attention pooling -> feature

It differs from an ordinary ResNet (He et al., 2016) in three ways (Radford et al., 2021, section 2.4): the stem has
three convolutions, every step to half the size is a mean over 2x2 positions and no stride, and in the place of the mean
over positions one query, the mean itself, attends to all positions:

    x_0 = mean x_p,    feature = c_proj softmax(q(x_0 + e_0) k(x_p + e_p)ᵀ / √d) v(x_p + e_p),    p = 0 .. P

Batch norms are parts of the convolutions (`fold_batch_norm`): frozen, they are a scale and a shift per channel.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.blocks import Linear, TowerUpdates, attention, autocast_dtype, cast_weight
from dca.backbones.clip.config import ResNetConfig
from dca.backbones.dual_encoder import BlockCallback, ExtraTokens, ImageTower
from dca.backbones.encoder import Ability

# ε of the batch norms: torch's default, which OpenAI's code does not change.
EPS = 1e-5
# Width of a stage's output in widths of its filters.
EXPANSION = 4


class Convolution(nn.Conv2d):
    """A convolution with bias and without change of size; with autocast, its weights are converted once."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W')."""
        dtype = autocast_dtype(x)
        assert self.bias is not None
        weight, bias = cast_weight(self.weight, dtype), cast_weight(self.bias, dtype)
        return F.conv2d(x.to(dtype), weight, bias, self.stride, self.padding)


class Bottleneck(nn.Module):
    """Narrow (1x1), filter (3x3), halve the size by a mean, widen (1x1), and add to the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.stride = stride
        self.conv1 = Convolution(inputs, width, 1)
        self.conv2 = Convolution(width, width, 3)
        self.conv3 = Convolution(width, outputs, 1)
        self.shortcut = Convolution(inputs, outputs, 1) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        y = F.relu(self.conv2(F.relu(self.conv1(x), inplace=True)), inplace=True)
        if self.stride > 1:
            x, y = F.avg_pool2d(x, self.stride), F.avg_pool2d(y, self.stride)
        if self.shortcut is not None:
            x = self.shortcut(x)
        return F.relu(self.conv3(y) + x, inplace=True)


class AttentionPooling(nn.Module):
    """One query, the mean of all positions, attends to them; see the head of this file."""

    def __init__(self, side: int, width: int, heads: int, embed_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.positions = nn.Parameter(torch.empty(1 + side**2, width))
        self.q, self.k, self.v = (Linear(width, width) for _ in range(3))
        self.projection = Linear(width, embed_dim)

    def embed(self, maps: Tensor) -> Tensor:
        """Maps (B, W, H, H) -> their mean and the positions, with position embeddings, (B, 1 + P, W)."""
        rows = maps.flatten(2).transpose(1, 2)
        return torch.cat([rows.mean(dim=1, keepdim=True), rows], dim=1) + self.positions.to(rows.dtype)

    def pool(self, rows: Tensor) -> Tensor:
        """Rows (B, 1 + P, W) -> vectors (B, W) before the projection."""
        heads = [self._split_heads(part) for part in (self.q(rows[:, :1]), self.k(rows), self.v(rows))]
        return attention(*heads).transpose(1, 2).flatten(2)[:, 0]

    def _split_heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, W, H, H) -> features (B, D), not normalised."""
        features: Tensor = self.projection(self.pool(self.embed(maps)))
        return features


class ResNetTower(ImageTower):
    """Stem, four stages and attention pooling. It has no rows to put tokens beside, and no layer norms to change."""

    abilities: ClassVar[frozenset[Ability]] = frozenset({Ability.IMAGE_END, Ability.PROJECTION, Ability.PATCHES})
    layers = 0
    # A quarter of its time are convolutions over few channels, which bfloat16 makes no faster on a CPU.
    is_full_size = False

    def __init__(self, config: ResNetConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
        self.width, self.patch_size, self.patches = config.features, config.reduction, config.patches
        # The first stage's output is the largest: a quarter of the side, 4 times its width.
        self.floats_per_image = EXPANSION * config.width * (config.image_size // 4) ** 2
        width = config.width
        self.stem = nn.ModuleList([
            Convolution(3, width // 2, 3, stride=2), Convolution(width // 2, width // 2, 3),
            Convolution(width // 2, width, 3),
        ])  # fmt: skip
        stages, inputs = [], width
        for number, blocks in enumerate(config.stages):
            own = width * 2**number
            strides = [1 if number == 0 else 2, *[1] * (blocks - 1)]
            stages.append(nn.Sequential())
            for stride in strides:
                stages[-1].append(Bottleneck(inputs, own, stride))
                inputs = EXPANSION * own
        self.stages = nn.ModuleList(stages)
        self.end = AttentionPooling(config.image_size // config.reduction, config.features, config.heads, embed_dim)

    @property
    def projection(self) -> nn.Linear:  # type: ignore[override]
        """The last layer of attention pooling, which has a bias."""
        return self.end.projection

    def run_until_end(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> the maps (B, W, H, H) that enter attention pooling."""
        # With the channels of a position side by side, convolutions on a CPU take two thirds of the time.
        x = pixels.contiguous(memory_format=torch.channels_last)
        for convolution in self.stem:
            x = F.relu(convolution(x), inplace=True)
        x = F.avg_pool2d(x, 2)
        for stage in self.stages:
            x = stage(x)
        return x

    def forward(
        self,
        pixels: Tensor,
        tokens: ExtraTokens | None = None,
        updates: TowerUpdates | None = None,
        on_block: BlockCallback | None = None,
    ) -> Tensor:
        """Pixels (B, 3, S, S) -> features (B, D), not normalised; methods that change a tower ask its `abilities`."""
        if (tokens is not None and tokens.layers) or updates or on_block is not None:
            raise TypeError("a ResNet takes no tokens and no updates, and has no blocks of rows")
        features: Tensor = self.end(self.run_until_end(pixels))
        return features

    def copy_end(self) -> AttentionPooling:
        """A copy of attention pooling, which the authors of cross-modal adaptation train as the end of a ResNet."""
        return copy.deepcopy(self.end)

    def encode_unprojected(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> the vectors (B, W) that the projection maps to features."""
        return self.end.pool(self.end.embed(self.run_until_end(pixels)))

    def encode_with_patches(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, D), not normalised, and positions (B, P, W) before the projection: each with its own value."""
        rows = self.end.embed(self.run_until_end(pixels))
        return self.end.projection(self.end.pool(rows)), self.end.v(rows[:, 1:])


def fold_batch_norm(weight: Tensor, norm: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that does what a convolution without bias and a frozen batch norm do.

    Computed in float64: the only rounding is that of the result. weight: (O, I, k, k). norm: weight, bias, running_mean
    and running_var, each (O,).
    """
    gain, shift, mean, variance = (norm[n].double() for n in ("weight", "bias", "running_mean", "running_var"))
    scale = gain / (variance + EPS).sqrt()
    return (weight.double() * scale[:, None, None, None]).float(), (shift - mean * scale).float()
