"""Opening pictures as a viewer shows them, many at a time, and saying why one cannot be read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dca.core.errors import UserError, counted
from dca.data.dataset import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

Picture = Path | Image.Image
Progress = Callable[[int, int], None]
T = TypeVar("T")
_AHEAD = 64
_HEIF = (".heic", ".heif")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A picture that could not be read, and why."""

    picture: Picture
    reason: str

    def __str__(self) -> str:
        return f"{_name(self.picture)}: {self.reason}"


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
    outcomes = attempt(pictures, apply, workers=workers, progress=progress)
    if faults := [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]:
        raise unreadable(faults, len(pictures))
    return [outcome for outcome in outcomes if not isinstance(outcome, Unreadable)]


def attempt(
    pictures: Sequence[Picture],
    apply: Callable[[Image.Image], T],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[T | Unreadable]:
    """Like `decode`, with an `Unreadable` in the place of each picture that cannot be read."""
    outcomes: list[T | Unreadable] = []
    for outcome in in_order(pictures, apply, workers=workers, ahead=_AHEAD):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(pictures))
    return outcomes


def in_order(
    pictures: Sequence[Picture], apply: Callable[[Image.Image], T], *, workers: int | None, ahead: int
) -> Iterator[T | Unreadable]:
    """Open pictures in threads, at most `ahead` of the consumer, and yield the outcomes in order."""

    def work(picture: Picture) -> T | Unreadable:
        try:
            image = _open(picture)
        except _UNREADABLE as error:
            return Unreadable(picture, _reason(picture, error))
        return apply(image)

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="dca-decode")
    waiting: deque[Future[T | Unreadable]] = deque()
    try:
        for picture in pictures:
            waiting.append(pool.submit(work, picture))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def unreadable(faults: Sequence[Unreadable], total: int) -> UserError:
    """The one error for all pictures that could not be read."""
    return UserError(
        f"{counted(len(faults), 'image', of=total)} cannot be read.",
        details=[str(fault) for fault in faults],
        hint="replace or remove these files; `dca datasets check DATA` lists all, `dca predict --skip-bad` skips them",
    )


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
    if picture.suffix.lower() in _HEIF:
        _enable_heif()
    with Image.open(picture) as image:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise Image.DecompressionBombError
        image.load()
        _rotate(image)
        return _rgb(image)


@cache
def _enable_heif() -> None:
    """Teach Pillow the format of phone photos, if the package for it is there."""
    try:
        import pillow_heif
    except ImportError:
        return
    pillow_heif.register_heif_opener()


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


def _name(picture: Picture) -> str:
    if isinstance(picture, Path):
        return printable(str(picture))
    return f"{picture.mode} image {picture.width}x{picture.height}"


def _reason(picture: Picture, error: BaseException) -> str:
    """Why a picture cannot be read, in the user's words."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"more than {(Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels (a decompression bomb?)"
    if isinstance(picture, Path):
        if not os.path.exists(picture):  # os.path bears names that are too long, a Path does not
            return "a broken link" if os.path.islink(picture) else "no such file"
        if picture.is_dir():
            return "a folder, not a file"
        if picture.stat().st_size == 0:
            return "the file is empty (0 bytes)"
        if isinstance(error, PermissionError):
            return "no permission to read it"
    if isinstance(error, UnidentifiedImageError):
        if isinstance(picture, Path) and picture.suffix.lower() in _HEIF and find_spec("pillow_heif") is None:
            return "a phone photo (HEIC), for which pip install 'dca-prompt[heif]' is needed"
        return "not an image, or a format Pillow does not know"
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return "the file is truncated"
    return f"damaged ({str(error) or type(error).__name__})"
