"""Images as tensors: a few-shot set in memory, augmented views of one image, batches of a large set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dca.core import seeds
from dca.core.kernels import usable
from dca.data.augment import LOW, Draws, crop_resize, crop_resize_by_kernel, crops_of, random_crops
from dca.data.dataset import ImageLike
from dca.data.decode import Unreadable
from dca.data.decode_many import Count, decode, unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUDGET = 4 * 2**30
# Short side of a stored image, in multiples of the model's image size.
_LARGEST, _SMALLEST = 4.0, 2.0


def in_batches(
    outcomes: Iterable[Tensor | Unreadable],
    total: int,
    batch_size: int,
    progress: Count | None = None,
    *,
    pin: bool = False,
) -> Iterator[Tensor]:
    """Batches of crops of any number of images that are being decoded.

    After the first unreadable file nothing more is yielded; the other files are only checked, and one UserError lists
    all that cannot be read.

    Args:
        outcomes: Per image its crops, uint8 (V, 3, S, S), or why it cannot be read.
        total: Number of images.
        batch_size: Least number of crops per batch; the last one may have fewer.
        progress: Called with (images done, images in all).
        pin: Put the batches in page-locked memory, for faster copies to a GPU.

    Yields:
        uint8 (B, 3, S, S).
    """
    faults: list[Unreadable] = []
    batch: list[Tensor] = []
    crops = 0
    for done, outcome in enumerate(outcomes, 1):
        if progress is not None:
            progress(done, total)
        if isinstance(outcome, Unreadable):
            faults.append(outcome)
        elif not faults:
            batch.append(outcome)
            crops += len(batch[-1])
        if batch and not faults and (crops >= batch_size or done == total):
            pixels = torch.cat(batch)
            yield pixels.pin_memory() if pin else pixels
            batch, crops = [], 0
    if faults:
        raise unreadable(faults, total)


def view_crops(image: Image.Image, size: int, views: Sequence[int], content: str, low: float = LOW) -> Tensor:
    """Augmented views of one image: random resized crops, half of them mirrored.

    A view depends on its number, on the content of the image, on the size and on `low` only, so it is the
    same in every run, for every seed and on every machine, and its features can be stored.

    Args:
        image: RGB image; it is shrunk to at most four times `size` first.
        size: side of a view in pixels.
        views: numbers of the views.
        content: sha256 of the image, see `dca.data.hashing.sha256_of`.
        low: smallest share of the image in a view.

    Returns:
        uint8 (V, 3, size, size).

    >>> view_crops(Image.new("RGB", (40, 30)), 8, range(3), "00ff").shape
    torch.Size([3, 3, 8, 8])
    """
    image = _shrunk(image, round(_LARGEST * size))
    height, width = torch.tensor([image.height]), torch.tensor([image.width])
    rows = []
    for view in views:
        box = random_crops(height, width, seeds.generator(0, "view", content, view), low)
        left, top = int(box.left), int(box.top)
        cut = image.crop((left, top, left + int(box.width), top + int(box.height)))
        # Pillow rather than `crop_resize`: integer arithmetic, so equal everywhere and in any batch.
        pixels = _chw(cut.resize((size, size), Image.Resampling.BICUBIC))
        rows.append(pixels.flip(2) if box.flip else pixels)
    return torch.stack(rows) if rows else torch.zeros(0, 3, size, size, dtype=torch.uint8)


class ImageStore:
    """A few-shot set, decoded once and kept as uint8.

    Two things are kept of each image: its pixels, for augmented batches, and its evaluation crop.
    Pixels are stored with a short side of at most four times the model's image size. The smallest
    random crop (8 % of the area) then still has more pixels than the model takes, and what `augment`
    returns differs from a crop of the original by less than 2 of 255 levels, even on noise
    (tests/data). Large sets of large images are stored smaller, see `stored_side`.

    Args:
        images: files, or images in memory.
        image_size: side S of the model's input.
        crop: the model's evaluation crop, RGB image -> uint8 (3, S, S); applied to the original image.
        workers: number of threads; one per core by default.
        progress: called with (images done, images in all).
        upright: apply EXIF rotations.

    Attributes:
        crops: uint8 (N, 3, S, S), the evaluation crops.
    """

    def __init__(
        self,
        images: Sequence[ImageLike],
        image_size: int,
        crop: Callable[[Image.Image], NDArray[np.uint8]],
        *,
        workers: int | None = None,
        progress: Count | None = None,
        upright: bool = True,
    ) -> None:
        limit = stored_side(len(images), image_size)

        def keep(image: Image.Image) -> tuple[Tensor, NDArray[np.uint8]]:
            return _chw(_shrunk(image, limit)), crop(image)

        kept = decode(images, keep, workers=workers, progress=progress, upright=upright)
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
        positions, draws = torch.cat(list(steps)).cpu(), Draws.of_steps([len(rows) for rows in steps], generator)
        crops = crops_of(self._heights[positions], self._widths[positions], draws, low)
        if self._joined is not None and usable(self._joined):
            found = crop_resize_by_kernel(self._joined, self._places[positions], crops, size)
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


def _shrunk(image: Image.Image, limit: int) -> Image.Image:
    """The image, its short side at most `limit`."""
    short = min(image.size)
    if short <= limit:
        return image
    width, height = (max(1, round(side * limit / short)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _chw(image: Image.Image) -> Tensor:
    """Pixels (3, H, W), uint8."""
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
