"""Keeping a few-shot set in memory, augmenting it in batches, streaming a large set."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dca.data.augment import crop_resize, random_crops
from dca.data.decode import Picture, Progress, Unreadable, decode, in_order, open_image, unreadable
from dca.data.hashing import sha256_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ImageStore", "decode", "open_image", "sha256_of", "stream"]

BUDGET = 4 * 2**30
_BATCHES_AHEAD = 2


def stream(
    pictures: Sequence[Picture],
    crop: Callable[[Image.Image], NDArray[np.uint8]],
    batch_size: int,
    progress: Progress | None = None,
    *,
    workers: int | None = None,
    pin: bool = False,
) -> Iterator[Tensor]:
    """Yield uint8 batches (B, 3, S, S) of any number of pictures, decoded ahead in threads.

    crop: RGB image -> (3, S, S) uint8, the backbone's evaluation crop. pin: put the batches in
    page-locked memory, for a GPU that takes them. At most a few batches are in memory at a time.
    After the first unreadable file nothing more is yielded; the rest is only checked, and one
    UserError lists all of them.
    """
    faults: list[Unreadable] = []
    batch: list[NDArray[np.uint8]] = []
    ahead = _BATCHES_AHEAD * batch_size
    for done, outcome in enumerate(in_order(pictures, crop, workers=workers, ahead=ahead), 1):
        if progress is not None:
            progress(done, len(pictures))
        if isinstance(outcome, Unreadable):
            faults.append(outcome)
        elif not faults:
            batch.append(outcome)
        if batch and not faults and (len(batch) == batch_size or done == len(pictures)):
            pixels = torch.from_numpy(np.stack(batch))
            yield pixels.pin_memory() if pin else pixels
            batch = []
    if faults:
        raise unreadable(faults, len(pictures))


class ImageStore:
    """A few-shot set, decoded once and kept as uint8.

    Images are stored at their own size, the short side at most four times the model's: the
    smallest crop (8 % of the area) then still has more pixels than the model takes, and what is
    seen through `augment` differs from the original by less than 2 of 255 levels, even on noise
    (tests/data). Large sets of large images are stored smaller, see `stored_side`.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        image_size: int,
        *,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        limit = stored_side(len(pictures), image_size)
        self._pixels = decode(pictures, lambda image: _chw(_shrunk(image, limit)), workers=workers, progress=progress)
        sizes = torch.tensor([pixels.shape[1:] for pixels in self._pixels]).reshape(-1, 2)
        self._heights, self._widths = sizes.unbind(1)

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def nbytes(self) -> int:
        """Memory that the pixels take."""
        return sum(pixels.nbytes for pixels in self._pixels)

    def digest(self) -> str:
        """sha256 of the pixels and their order."""
        digest = hashlib.sha256()
        for pixels in self._pixels:
            digest.update(repr(tuple(pixels.shape)).encode())
            digest.update(pixels.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def images(self) -> list[Image.Image]:
        """The stored images, for the evaluation transform."""
        return [Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy()) for pixels in self._pixels]

    def to(self, device: torch.device | str) -> ImageStore:
        """Keep the pixels on a device, so that a step moves nothing."""
        self._pixels = [pixels.to(device) for pixels in self._pixels]
        return self

    def augment(
        self, indices: Sequence[int] | Tensor, size: int, generator: torch.Generator, device: torch.device | str
    ) -> Tensor:
        """Random resized crop and mirror of the named images: (B, 3, size, size) in [0, 1].

        generator: on the CPU; it alone decides boxes and mirrors, on every device alike.
        """
        positions = torch.as_tensor(indices, dtype=torch.long).cpu()
        crops = random_crops(self._heights[positions], self._widths[positions], generator)
        batch = [self._pixels[i] for i in positions.tolist()]
        return crop_resize(batch, crops, size, device).div_(255)


def stored_side(count: int, image_size: int) -> int:
    """Longest short side at which to keep `count` images for a model of that size.

    Four times the model's; less, down to twice, where images of shape 4:3 would otherwise take
    more than 4 GiB together.
    """
    bytes_at_one = count * image_size**2 * 4  # three channels, and a third more for the longer side
    factor = math.sqrt(BUDGET / max(1, bytes_at_one))
    return round(image_size * min(4.0, max(2.0, factor)))


def _shrunk(image: Image.Image, limit: int) -> Image.Image:
    """The image, its short side at most `limit`."""
    short = min(image.size)
    if short <= limit:
        return image
    width, height = (max(1, round(side * limit / short)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _chw(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
