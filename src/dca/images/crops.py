"""Random crops of images, and a few-shot set of images in memory.

Random resized crops of many images at once, on any device, equal Pillow's: a crop followed by Pillow's bicubic resize
is linear in the pixels along each axis, so a batch is two batched matrix products; the matrices hold Pillow's own
antialiased weights. All random numbers come from a CPU generator: the same seed gives the same crops on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dca.core import seeds
from dca.core.device import to_device, triton_usable
from dca.images.decode import Count, Decodable, decode_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOW = 0.08  # smallest share of the image that a crop covers; the largest is 1
RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10
# Bytes of a decoded set.
BUDGET = 4 * 2**30
# Short side of a stored image, in multiples of the model's image size.
_LARGEST, _SMALLEST = 4.0, 2.0


@dataclass(frozen=True)
class CropBoxes:
    """The box to cut out of each image, and whether to mirror it; every field is (B,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor


@dataclass(frozen=True)
class CropNumbers:
    """Random numbers from 0 to 1 that decide the crops of B images.

    area, aspect: (B, 10), one per attempt. place: (B, 2). flip: (B,).
    """

    area: Tensor
    aspect: Tensor
    place: Tensor
    flip: Tensor

    @classmethod
    def draw(cls, count: int, generator: torch.Generator) -> CropNumbers:
        """The random numbers of so many images."""
        area, aspect = torch.rand(2, count, _ATTEMPTS, generator=generator, dtype=torch.float64)
        place = torch.rand(count, 2, generator=generator, dtype=torch.float64)
        return cls(area, aspect, place, torch.rand(count, generator=generator, dtype=torch.float64))

    @classmethod
    def draw_steps(cls, counts: Sequence[int], generator: torch.Generator) -> CropNumbers:
        """Those of several batches, as if each were drawn by itself."""
        each = [cls.draw(count, generator) for count in counts]
        parts = zip(*((one.area, one.aspect, one.place, one.flip) for one in each), strict=True)
        return cls(*map(torch.cat, parts))


def random_crops(heights: Tensor, widths: Tensor, generator: torch.Generator, low: float = LOW) -> CropBoxes:
    """Choose the boxes of a random resized crop, and mirror half of the images. heights, widths: (B,)."""
    return boxes_from_numbers(heights, widths, CropNumbers.draw(len(heights), generator), low)


def boxes_from_numbers(heights: Tensor, widths: Tensor, draws: CropNumbers, low: float = LOW) -> CropBoxes:
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
    return CropBoxes(top.long(), left.long(), height.long(), width.long(), flip)


def _largest_box(H: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width of the largest box whose aspect ratio is in RATIO."""
    ratio = W / H
    height = torch.where(ratio < RATIO[0], (W / RATIO[0]).round(), H)
    width = torch.where(ratio > RATIO[1], (H * RATIO[1]).round(), W)
    return height, width


def crop_resize(images: Sequence[Tensor], crops: CropBoxes, size: int, device: torch.device | str) -> Tensor:
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


def crop_resize_triton(pixels: Tensor, places: Tensor, crops: CropBoxes, size: int) -> Tensor:
    """`crop_resize` of images that are in one piece of memory on a GPU.

    pixels: all images end to end, uint8. places: (B, 3) on the CPU, where each begins there, its height and width.
    """
    from dca.images.crop_triton import crop_resize as kernel

    signed = torch.where(crops.flip, -crops.width, crops.width)
    table = torch.cat([places, torch.stack([crops.top, crops.left, crops.height, signed], 1)], dim=1)
    return kernel(pixels, to_device(table, pixels.device), size, int(crops.height.max()), int(crops.width.max()))


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


def view_crops(image: Image.Image, size: int, views: Sequence[int], content: str, low: float = LOW) -> Tensor:
    """Augmented views of one image: random resized crops, half of them mirrored.

    A view depends on its number, on the content of the image, on the size and on `low` only, so it is the
    same in every run, for every seed and on every machine, and its features can be stored.

    Args:
        image: RGB image; it is shrunk to at most four times `size` first.
        size: side of a view in pixels.
        views: numbers of the views.
        content: sha256 of the image, see `dca.images.hashing.sha256_of`.
        low: smallest share of the image in a view.

    Returns:
        uint8 (V, 3, size, size).

    >>> view_crops(Image.new("RGB", (40, 30)), 8, range(3), "00ff").shape
    torch.Size([3, 3, 8, 8])
    """
    image = _shrink(image, round(_LARGEST * size))
    height, width = torch.tensor([image.height]), torch.tensor([image.width])
    rows = []
    for view in views:
        box = random_crops(height, width, seeds.generator(0, "view", content, view), low)
        left, top = int(box.left), int(box.top)
        cut = image.crop((left, top, left + int(box.width), top + int(box.height)))
        # Pillow rather than `crop_resize`: integer arithmetic, so equal everywhere and in any batch.
        pixels = _to_channels_first(cut.resize((size, size), Image.Resampling.BICUBIC))
        rows.append(pixels.flip(2) if box.flip else pixels)
    return torch.stack(rows) if rows else torch.zeros(0, 3, size, size, dtype=torch.uint8)


class DecodedImages:
    """A few-shot set, decoded once and kept as uint8.

    Two things are kept of each image: its pixels, for augmented batches, and its evaluation crop.
    Pixels are stored with a short side of at most four times the model's image size. The smallest
    random crop (8 % of the area) then still has more pixels than the model takes, and what `augment`
    returns differs from a crop of the original by less than 2 of 255 levels, even on noise
    (tests/images/test_decoded_images.py). Large sets of large images are stored smaller, see `stored_side`.

    Args:
        images: files, or images in memory.
        image_size: side S of the model's input.
        crop: the model's evaluation crop, RGB image -> uint8 (3, S, S); applied to the original image.
        workers: number of threads; one per core by default.
        progress: called with (images done, images in all).

    Attributes:
        crops: uint8 (N, 3, S, S), the evaluation crops.
    """

    def __init__(
        self,
        images: Sequence[Decodable],
        image_size: int,
        crop: Callable[[Image.Image], NDArray[np.uint8]],
        *,
        workers: int | None = None,
        progress: Count | None = None,
    ) -> None:
        limit = stored_side(len(images), image_size)

        def keep(image: Image.Image) -> tuple[Tensor, NDArray[np.uint8]]:
            return _to_channels_first(_shrink(image, limit)), crop(image)

        kept = decode_all(images, keep, workers=workers, progress=progress)
        crops = [evaluation for _, evaluation in kept]
        empty = torch.zeros(0, 3, image_size, image_size, dtype=torch.uint8)
        self._fill([pixels for pixels, _ in kept], torch.from_numpy(np.stack(crops)) if crops else empty)

    def _fill(self, pixels: list[Tensor], crops: Tensor, joined: Tensor | None = None) -> None:
        """joined: all pixels end to end, of which `pixels` are parts."""
        self._pixels, self.crops, self._joined = pixels, crops, joined
        sizes = torch.tensor([image.shape[1:] for image in pixels]).reshape(-1, 2)
        self._heights, self._widths = sizes.unbind(1)
        lengths = torch.tensor([image.numel() for image in pixels], dtype=torch.long)
        self._places = torch.cat([(lengths.cumsum(0) - lengths)[:, None], sizes], dim=1)

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def nbytes(self) -> int:
        """Memory that the pixels and the evaluation crops take."""
        return sum(pixels.nbytes for pixels in self._pixels) + self.crops.nbytes

    def to(self, device: torch.device | str) -> Self:
        """A store with its tensors on a device, its images in one piece of memory; this one stays as it is."""
        store = object.__new__(type(self))
        joined = torch.cat([pixels.flatten() for pixels in self._pixels] or [self.crops.new_empty(0)]).to(device)
        parts = torch.split(joined, [pixels.numel() for pixels in self._pixels])
        moved = [part.view(pixels.shape) for part, pixels in zip(parts, self._pixels, strict=True)]
        store._fill(moved, self.crops.to(device), joined)
        return store

    def augment(
        self,
        steps: Sequence[Tensor],
        size: int,
        generator: torch.Generator,
        device: torch.device | str,
        low: float = LOW,
    ) -> Tensor:
        """Random resized crop and mirror of the images of several steps: (ΣB, 3, size, size) in [0, 1].

        steps: the indices of each step's images, (B,). generator: on the CPU. It alone decides boxes and mirrors, so
        they are the same on every device, and the same as if each step were made by itself. low: smallest share of
        the image in a crop.
        """
        positions, draws = (
            torch.cat(list(steps)).cpu(),
            CropNumbers.draw_steps([len(rows) for rows in steps], generator),
        )
        crops = boxes_from_numbers(self._heights[positions], self._widths[positions], draws, low)
        if self._joined is not None and triton_usable(self._joined):
            found = crop_resize_triton(self._joined, self._places[positions], crops, size)
        else:
            found = crop_resize([self._pixels[i] for i in positions.tolist()], crops, size, device)
        return found.div_(255)


def stored_side(count: int, image_size: int) -> int:
    """Longest short side at which to store `count` images for a model of that image size.

    Four times the image size; less, down to twice, if images of shape 4:3 would otherwise take
    more than 4 GiB together.
    """
    bytes_at_one = count * image_size**2 * 4  # three channels, and a third more for the longer side
    factor = math.sqrt(BUDGET / max(1, bytes_at_one))
    return round(image_size * min(_LARGEST, max(_SMALLEST, factor)))


def _shrink(image: Image.Image, limit: int) -> Image.Image:
    """The image, its short side at most `limit`."""
    short = min(image.size)
    if short <= limit:
        return image
    width, height = (max(1, round(side * limit / short)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _to_channels_first(image: Image.Image) -> Tensor:
    """Pixels (3, H, W), uint8."""
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
