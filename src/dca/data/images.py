"""Opening pictures, keeping a few-shot set in memory, streaming a large one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from dca.data.augment import crop_resize, random_crops
from dca.data.content import sha256_of as sha256_of
from dca.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Picture = Path | Image.Image
Progress = Callable[[int, int], None]
T = TypeVar("T")

STORED_PER_MODEL_PIXEL = 4
_BATCHES_AHEAD = 2


def open_image(picture: Picture) -> Image.Image:
    """Open a picture as 8-bit RGB, the way a viewer shows it.

    EXIF rotation is applied, transparency laid on white, 16-bit grey scaled to 8 bits, the first
    frame of an animation taken. Raises UserError with the reason when that cannot be done.
    """
    try:
        return _open(picture)
    except _UNREADABLE as error:
        raise UserError(f"cannot read {_name(picture)}: {_reason(picture, error)}.") from error


def decode(
    pictures: Sequence[Picture],
    apply: Callable[[Image.Image], T],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[T]:
    """Open every picture in threads and return what `apply` makes of each, in order.

    progress: called with (done, total). Raises one UserError that lists every unreadable file.
    """
    results: list[T] = []
    faults: list[str] = []
    for picture, outcome in _in_order(pictures, apply, workers=workers, ahead=64):
        if isinstance(outcome, _Fault):
            faults.append(f"{_name(picture)}: {outcome.reason}")
        else:
            results.append(outcome)
        if progress is not None:
            progress(len(results) + len(faults), len(pictures))
    if faults:
        raise unreadable(faults, len(pictures))
    return results


def unreadable_pictures(pictures: Sequence[Picture], *, workers: int | None = None) -> list[tuple[int, str]]:
    """Position of every picture that cannot be read, with the reason."""
    outcomes = _in_order(pictures, lambda image: None, workers=workers, ahead=64)
    return [(i, out.reason) for i, (_, out) in enumerate(outcomes) if isinstance(out, _Fault)]


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
    faults: list[str] = []
    batch: list[NDArray[np.uint8]] = []
    ahead = _BATCHES_AHEAD * batch_size
    for done, (picture, outcome) in enumerate(_in_order(pictures, crop, workers=workers, ahead=ahead), 1):
        if progress is not None:
            progress(done, len(pictures))
        if isinstance(outcome, _Fault):
            faults.append(f"{_name(picture)}: {outcome.reason}")
        elif not faults:
            batch.append(outcome)
        if batch and not faults and (len(batch) == batch_size or done == len(pictures)):
            pixels = torch.from_numpy(np.stack(batch))
            yield pixels.pin_memory() if pin else pixels
            batch = []
    if faults:
        raise unreadable(faults, len(pictures))


def unreadable(faults: Sequence[str], total: int) -> UserError:
    """The one error for all pictures that could not be read."""
    return UserError(
        f"{len(faults):,} of {total:,} images cannot be read.",
        details=faults,
        hint="replace or remove these files; `dca datasets check DATA` lists all of them",
    )


class ImageStore:
    """A few-shot set, decoded once and kept as uint8.

    Images are stored at their own size, the short side at most four times the model's: the
    smallest crop (8 % of the area) then still has more pixels than the model takes, so what is
    seen through `augment` differs from the original by less than rounding (tests/data).
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        image_size: int,
        *,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        limit = STORED_PER_MODEL_PIXEL * image_size
        self._pixels = decode(pictures, lambda image: _chw(_shrunk(image, limit)), workers=workers, progress=progress)
        sizes = torch.tensor([pixels.shape[1:] for pixels in self._pixels]).reshape(-1, 2)
        self._heights, self._widths = sizes.unbind(1)

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def nbytes(self) -> int:
        """Memory that the pixels take."""
        return sum(pixels.nbytes for pixels in self._pixels)

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


class _Fault:
    """A picture that could not be read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    Image.DecompressionBombError,
    Warning,  # where the caller has turned warnings into errors
)


def _open(picture: Picture) -> Image.Image:
    if not isinstance(picture, Path):
        return _rgb(ImageOps.exif_transpose(picture))
    with Image.open(picture) as image:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise Image.DecompressionBombError
        image.load()
        _rotate(image)
        return _rgb(image)


def _rotate(image: Image.Image) -> None:
    """Apply the EXIF rotation in place; a picture whose EXIF is damaged stays as it is."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except (ValueError, SyntaxError, TypeError, KeyError, ZeroDivisionError, OverflowError, Warning):
        return


def _rgb(image: Image.Image) -> Image.Image:
    """Eight-bit RGB of any Pillow mode."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image if image.__class__ is Image.Image else image.copy()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_eight_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    """Scale wide grey values to 0..255 without clipping.

    16-bit files use their full range; 32-bit integers and floats have no stated range, so it is
    the smallest of [0, 1] (floats), [0, 255] and [0, 65535] that holds them, else their own.
    """
    wide = np.nan_to_num(values.astype(np.float64))
    low, high = float(wide.min()), float(wide.max())
    ranges = (65535.0,) if mode.startswith("I;16") else (1.0, 255.0, 65535.0)[mode == "I" :]
    top = next((top for top in ranges if low >= 0 and high <= top), None)
    if top is not None:
        low, high = 0.0, top
    return np.rint((wide - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def _shrunk(image: Image.Image, limit: int) -> Image.Image:
    """The image, its short side at most `limit`."""
    short = min(image.size)
    if short <= limit:
        return image
    width, height = (max(1, round(side * limit / short)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _chw(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


def _in_order(
    pictures: Sequence[Picture], apply: Callable[[Image.Image], T], *, workers: int | None, ahead: int
) -> Iterator[tuple[Picture, T | _Fault]]:
    """Open pictures in threads, at most `ahead` of the consumer, and yield the outcomes in order."""

    def work(picture: Picture) -> T | _Fault:
        try:
            image = _open(picture)
        except _UNREADABLE as error:
            return _Fault(_reason(picture, error))
        return apply(image)

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="dca-decode")
    waiting: deque[tuple[Picture, Future[T | _Fault]]] = deque()
    try:
        for picture in pictures:
            waiting.append((picture, pool.submit(work, picture)))
            if len(waiting) > ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _name(picture: Picture) -> str:
    return str(picture) if isinstance(picture, Path) else f"{picture.mode} image {picture.width}x{picture.height}"


def _reason(picture: Picture, error: BaseException) -> str:
    """Why a picture cannot be read, in the user's words."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"more than {(Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels (a decompression bomb?)"
    if isinstance(picture, Path):
        if not picture.exists():
            return "a broken link" if picture.is_symlink() else "no such file"
        if picture.is_dir():
            return "a folder, not a file"
        if picture.stat().st_size == 0:
            return "the file is empty (0 bytes)"
        if isinstance(error, PermissionError):
            return "no permission to read it"
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or a format Pillow does not know"
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return "the file is truncated"
    return f"damaged ({str(error) or type(error).__name__})"
