"""Random resized crops of many images at once, on any device, equal to Pillow's.

A crop followed by Pillow's bicubic resize is linear in the pixels along each axis, so a batch
is two batched matrix products; the matrices hold Pillow's own antialiased weights. All random
numbers come from a CPU generator: the same seed gives the same crops on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.core.device import send

LOW = 0.08  # smallest share of the image that a crop covers; the largest is 1
RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10


@dataclass(frozen=True)
class Crops:
    """The box to cut out of each image, and whether to mirror it; every field is (B,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor


@dataclass(frozen=True)
class Draws:
    """Random numbers from 0 to 1 that decide the crops of B images.

    area, aspect: (B, 10), one per attempt. place: (B, 2). flip: (B,).
    """

    area: Tensor
    aspect: Tensor
    place: Tensor
    flip: Tensor

    @classmethod
    def of(cls, count: int, generator: torch.Generator) -> Draws:
        """The random numbers of so many images."""
        area, aspect = torch.rand(2, count, _ATTEMPTS, generator=generator, dtype=torch.float64)
        place = torch.rand(count, 2, generator=generator, dtype=torch.float64)
        return cls(area, aspect, place, torch.rand(count, generator=generator, dtype=torch.float64))

    @classmethod
    def of_steps(cls, counts: Sequence[int], generator: torch.Generator) -> Draws:
        """Those of several batches, as if each were drawn by itself."""
        each = [cls.of(count, generator) for count in counts]
        parts = zip(*((one.area, one.aspect, one.place, one.flip) for one in each), strict=True)
        return cls(*map(torch.cat, parts))


def random_crops(heights: Tensor, widths: Tensor, generator: torch.Generator, low: float = LOW) -> Crops:
    """Choose the boxes of a random resized crop, and mirror half of the images. heights, widths: (B,)."""
    return crops_of(heights, widths, Draws.of(len(heights), generator), low)


def crops_of(heights: Tensor, widths: Tensor, draws: Draws, low: float = LOW) -> Crops:
    """The boxes that random numbers choose.

    heights, widths: (B,) sizes of the images. Up to ten pairs of an area share from `low` to 1 and an
    aspect ratio from RATIO (log-uniform) are tried until the box fits; after that the largest centred
    box with an allowed aspect ratio is taken.
    """
    H, W = heights.double(), widths.double()
    area, aspect, place, flip = draws.area, draws.aspect, draws.place, draws.flip < 0.5
    pixels = (H * W)[:, None] * (low + (1 - low) * area)
    low, high = torch.tensor(RATIO, dtype=torch.float64).log()
    ratio = (low + (high - low) * aspect).exp()
    w, h = (pixels * ratio).sqrt().round(), (pixels / ratio).sqrt().round()
    fits = (w > 0) & (h > 0) & (w <= W[:, None]) & (h <= H[:, None])
    first = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    fallback_h, fallback_w = _largest_box(H, W)
    height = torch.where(found, h.gather(1, first)[:, 0], fallback_h)
    width = torch.where(found, w.gather(1, first)[:, 0], fallback_w)
    # floor(u * n) is uniform on 0..n-1 since u < 1.
    top = torch.where(found, (place[:, 0] * (H - height + 1)).floor(), ((H - height) / 2).floor())
    left = torch.where(found, (place[:, 1] * (W - width + 1)).floor(), ((W - width) / 2).floor())
    return Crops(top.long(), left.long(), height.long(), width.long(), flip)


def _largest_box(H: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width of the largest box whose aspect ratio is in RATIO."""
    ratio = W / H
    height = torch.where(ratio < RATIO[0], (W / RATIO[0]).round(), H)
    width = torch.where(ratio > RATIO[1], (H * RATIO[1]).round(), W)
    return height, width


def crop_resize(images: Sequence[Tensor], crops: Crops, size: int, device: torch.device | str) -> Tensor:
    """Cut the boxes out of uint8 images and resize them as Pillow's BICUBIC does.

    images: B tensors (3, H_i, W_i), uint8. Returns (B, 3, size, size), float32 with whole values
    0..255: like Pillow, it rounds to 8 bits after each axis.
    """
    tallest, widest = int(crops.height.max()), int(crops.width.max())
    boxes = torch.stack([crops.top, crops.left, crops.height, crops.width], 1).tolist()
    cut = torch.zeros(len(images), 3, tallest, widest, dtype=torch.uint8, device=images[0].device)
    for row, image, (top, left, height, width) in zip(cut, images, boxes, strict=True):
        row[:, :height, :width] = image[:, top : top + height, left : left + width]
    pixels = cut.to(device, non_blocking=True).float()
    across = resize_weights(crops.width.to(device), size, widest)
    across = torch.where(crops.flip.to(device)[:, None, None], across.flip(1), across)
    down = resize_weights(crops.height.to(device), size, tallest)
    with torch.autocast(pixels.device.type, enabled=False):
        rows = (pixels.flatten(1, 2) @ across.mT).round_().clamp_(0, 255)
        rows = rows.view(-1, 3, tallest, size)
        return torch.matmul(down[:, None], rows).round_().clamp_(0, 255)


def crop_resize_by_kernel(pixels: Tensor, places: Tensor, crops: Crops, size: int) -> Tensor:
    """`crop_resize` of images that are in one piece of memory on a GPU.

    pixels: all images end to end, uint8. places: (B, 3) on the CPU, where each begins there, its height and width.
    """
    from dca.data.crop_triton import crop_resize as kernel

    signed = torch.where(crops.flip, -crops.width, crops.width)
    table = torch.cat([places, torch.stack([crops.top, crops.left, crops.height, signed], 1)], dim=1)
    return kernel(pixels, send(table, pixels.device), size, int(crops.height.max()), int(crops.width.max()))


def resize_weights(lengths: Tensor, size: int, longest: int) -> Tensor:
    """Pillow's antialiased bicubic weights along one axis.

    lengths: (B,) input lengths, none above `longest`. Returns (B, size, longest): row i holds the
    weights of output i on the inputs, zero beyond each length; every row sums to 1.
    """
    length = lengths.double()[:, None, None]
    scale = length / size  # (B, 1, 1)
    stretch = scale.clamp(min=1.0)
    centre = (torch.arange(size, dtype=torch.float64, device=lengths.device)[None, :, None] + 0.5) * scale
    first = (centre - 2 * stretch + 0.5).floor().clamp(min=0)
    last = torch.minimum((centre + 2 * stretch + 0.5).floor(), length)
    taps = min(longest, math.ceil(4 * max(1.0, longest / size)) + 1)
    x = first + torch.arange(taps, dtype=torch.float64, device=lengths.device)  # (B, size, taps)
    weight = torch.where(x < last, _bicubic((x + 0.5 - centre) / stretch), 0.0)
    weight = (weight / weight.sum(2, keepdim=True)).float()
    dense = torch.zeros(len(lengths), size, longest, device=lengths.device)
    return dense.scatter_add_(2, x.long().clamp_(max=longest - 1), weight)


def _bicubic(x: Tensor) -> Tensor:
    """Cubic convolution kernel with a = -1/2."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
