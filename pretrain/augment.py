"""Crops, flips, colours, blur and mixing for a whole batch at once, on its device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pretrain.captions import STYLES
from pretrain.config import AugmentConfig

GREY, BLURRY = STYLES.index("grey"), STYLES.index("blurry")
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Mix:
    """Rectangles taken from other images. partner: (B,), which image. share: (B,), area that the image itself keeps."""

    partner: Tensor
    share: Tensor


def pick_styles(batch: int, config: AugmentConfig, device: torch.device) -> Tensor:
    """A style for each position of the batch: (B,). Batches are in random order, so the positions may be fixed."""
    counts = [round(config.grey * batch), round(config.blurry * batch)]
    styles = torch.zeros(batch, dtype=torch.long, device=device)
    styles[: counts[0]] = GREY
    styles[counts[0] : sum(counts)] = BLURRY
    return styles


def crop(
    images: Tensor, aspects: Tensor, turns: Tensor, size: int, scale: float, ratio: float, rng: torch.Generator
) -> Tensor:
    """Random crops, flipped half the time: (B, 3, S, S) uint8 -> (B, 3, size, size) in [0, 1].

    aspects: (B,) width / height of the image before it was squeezed to a square; crops are
    chosen in the unsqueezed image. turns: (B,), images that may also be rotated by multiples of 90°.
    """
    device, batch = images.device, len(images)
    u = torch.rand(7, batch, generator=rng, device=device)
    area = (scale + (1 - scale) * u[0]) * aspects
    shape = torch.exp((2 * u[1] - 1) * torch.log(torch.tensor(ratio, device=device)))
    width = (area * shape).sqrt().minimum(aspects) / aspects
    height = (area / shape).sqrt().clamp(max=1)
    centre = torch.stack([(2 * u[2] - 1) * (1 - width), (2 * u[3] - 1) * (1 - height)], dim=-1)
    flip = torch.where(u[4] < 0.5, -1.0, 1.0)
    swap = turns & (u[5] < 0.5)
    down = torch.where(turns & (u[6] < 0.5), -1.0, 1.0)
    line = (torch.arange(size, device=device) + 0.5) * 2 / size - 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    x, y = torch.where(swap[:, None, None], y, x), torch.where(swap[:, None, None], x, y)
    grid = torch.stack([x * (flip * width)[:, None, None], y * (down * height)[:, None, None]], dim=-1)
    grid = grid + centre[:, None, None]
    pixels = F.grid_sample(images.float(), grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return pixels.mul_(1 / 255)


def colour_change(means: Tensor, config: AugmentConfig, grey: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random brightness, channel gains, contrast and saturation as one map x -> Mx + b per image.

    means: (B, 3) channel means. grey: (B,), images that lose their colour. Returns M (B, 3, 3)
    and b (B, 3). Contrast scales about the image's mean, which the later maps do not change.
    """
    batch, device = len(means), means.device
    u = 2 * torch.rand(6, batch, generator=rng, device=device) - 1
    gains = (1 + config.balance * u[3:].T) * (1 + config.colour * u[0])[:, None]
    contrast, saturation = 1 + config.colour * u[1], 1 + config.colour * u[2]
    saturation = torch.where(grey, 0.0, saturation)[:, None, None]
    luma = torch.tensor(LUMA, device=device).expand(3, 3)
    mixing = saturation * torch.eye(3, device=device) + (1 - saturation) * luma
    middle = (means * gains).mean(1)
    return contrast[:, None, None] * mixing * gains[:, None, :], ((1 - contrast) * middle)[:, None].expand(-1, 3)


def recolour(pixels: Tensor, styles: Tensor, config: AugmentConfig, rng: torch.Generator) -> Tensor:
    """Pixels (B, 3, S, S) in [0, 1] with changed colours; grey where the style (B,) is grey."""
    matrix, shift = colour_change(pixels.mean((2, 3)), config, styles == GREY, rng)
    changed = torch.baddbmm(shift[..., None], matrix, pixels.flatten(2))
    return changed.clamp_(0, 1).view_as(pixels)


def blur(pixels: Tensor, config: AugmentConfig) -> Tensor:
    """Blur the images of the batch whose style is blurry, in place."""
    start = round(config.grey * len(pixels))
    rows = pixels[start : start + round(config.blurry * len(pixels))]
    if len(rows):
        small = F.avg_pool2d(rows, 4)
        rows.copy_(F.interpolate(small, size=rows.shape[-2:], mode="bilinear", align_corners=False))
    return pixels


def cutmix(pixels: Tensor, chance: float, rng: torch.Generator) -> tuple[Tensor, Mix]:
    """Put a rectangle of another image of the batch into some of the images."""
    batch, _, size, _ = pixels.shape
    device = pixels.device
    u = torch.rand(5, batch, generator=rng, device=device)
    # At most half of the area is replaced, so the image's own caption keeps the larger share.
    side = torch.where(u[0] < chance, (0.5 * u[1]).sqrt() * size, 0.0).round()
    left, top = (u[2] * (size - side)).floor(), (u[3] * (size - side)).floor()
    line = torch.arange(size, device=device)
    inside_x = (line >= left[:, None]) & (line < (left + side)[:, None])
    inside_y = (line >= top[:, None]) & (line < (top + side)[:, None])
    inside = (inside_y[:, :, None] & inside_x[:, None, :])[:, None]
    partner = torch.randperm(batch, generator=rng, device=device)
    return torch.where(inside, pixels[partner], pixels), Mix(partner, 1 - (side / size) ** 2)
