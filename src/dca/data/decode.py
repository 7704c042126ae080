"""Image files -> RGB images, many at a time, and the reason where one cannot be read.

The only module that opens or converts images, so that all code sees the same pixels.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from dca.core.actions import check_data, skip_unreadable
from dca.core.errors import UserError
from dca.core.wording import counted, printable
from dca.data.dataset import ImageLike

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Called with (images done, images in all).
Count = Callable[[int, int], None]
T = TypeVar("T")
_AHEAD = 64
_HEIF = (".heic", ".heif")
_SPECIAL = "not a regular file (a pipe, socket or device)"
# What to do with an RGB image: one function, or one function per image.
Apply = Callable[[Image.Image], T] | Sequence[Callable[[Image.Image], T]]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that could not be read, and why."""

    image: ImageLike
    reason: str

    def __str__(self) -> str:
        return f"{_name(self.image)}: {self.reason}"


def open_image(image: ImageLike) -> Image.Image:
    """Open an image as 8-bit RGB, the way an image viewer shows it; see `to_rgb`.

    Raises UserError with the reason if the image cannot be read.
    """
    try:
        return _open(image)
    except _UNREADABLE as error:
        raise UserError(f"cannot read {_name(image)}: {_reason(image, error)}.") from error


def to_rgb(image: Image.Image, *, upright: bool = True) -> Image.Image:
    """An image in memory as 8-bit RGB.

    The EXIF rotation is applied unless `upright` is false, transparent parts become white, and 16-bit grey is scaled
    to 8 bits. The result has no EXIF rotation left, and the argument is not changed.

    >>> to_rgb(Image.new("RGBA", (1, 1), (0, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if upright:
        return _rgb(_upright(image))
    stored = _rgb(image).copy()
    stored.info = {}  # so that no later call turns it
    return stored


def may_turn(image: ImageLike) -> bool:
    """Whether EXIF data may turn an image; false only where the header of a JPEG file has no rotation.

    Other formats may hold EXIF data behind the pixels, and images in memory are cheap to read twice.
    """
    if not isinstance(image, Path) or is_special(image):
        return True
    try:
        with Image.open(image) as opened:
            return opened.format != "JPEG" or opened.getexif().get(ExifTags.Base.Orientation, 1) != 1
    except _UNREADABLE:
        return True


def is_image(file: Path) -> bool:
    """Whether Pillow recognises a file as an image by its first bytes, whatever its name is."""
    if not file.is_file():
        return False
    try:
        with Image.open(file):
            return True
    except Exception:  # decoders raise almost anything on bytes that are no image
        return False


def decode(
    images: Sequence[ImageLike],
    apply: Apply[T],
    *,
    workers: int | None = None,
    progress: Count | None = None,
    upright: bool = True,
) -> list[T]:
    """Open every image in threads and return `apply` of each RGB image, in order.

    apply: one function, or one function per image. upright: apply EXIF rotations. Raises one UserError that lists
    every unreadable file.
    """
    outcomes = attempt(images, apply, workers=workers, progress=progress, upright=upright)
    if faults := [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]:
        raise unreadable(faults, len(images))
    return [outcome for outcome in outcomes if not isinstance(outcome, Unreadable)]


def attempt(
    images: Sequence[ImageLike],
    apply: Apply[T],
    *,
    workers: int | None = None,
    progress: Count | None = None,
    upright: bool = True,
) -> list[T | Unreadable]:
    """Like `decode`, with an `Unreadable` in the place of each image that cannot be read."""
    outcomes: list[T | Unreadable] = []
    for outcome in in_order(images, apply, workers=workers, ahead=_AHEAD, upright=upright):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(images))
    return outcomes


def in_order(
    images: Sequence[ImageLike], apply: Apply[T], *, workers: int | None, ahead: int, upright: bool = True
) -> Iterator[T | Unreadable]:
    """Open images in threads, at most `ahead` of the consumer, and yield the outcomes in order.

    upright: apply EXIF rotations.
    """

    def work(image: ImageLike, function: Callable[[Image.Image], T]) -> T | Unreadable:
        try:
            opened = _open(image, upright)
        except _UNREADABLE as error:
            return Unreadable(image, _reason(image, error))
        return function(opened)

    functions = repeat(apply, len(images)) if callable(apply) else apply
    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="dca-decode")
    waiting: deque[Future[T | Unreadable]] = deque()
    try:
        for image, function in zip(images, functions, strict=True):
            waiting.append(pool.submit(work, image, function))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def unreadable(faults: Sequence[Unreadable], total: int) -> UserError:
    """One error for all images that could not be read."""
    return UserError(
        f"{counted(len(faults), 'image', of=total)} cannot be read.",
        details=[str(fault) for fault in faults],
        hint=["replace or remove these files", check_data(), skip_unreadable()],
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


def _open(image: ImageLike, upright: bool = True) -> Image.Image:
    if not isinstance(image, Path):
        return to_rgb(image, upright=upright)
    if is_special(image):
        raise OSError(_SPECIAL)  # opening a pipe would wait for a writer, perhaps for ever
    if image.suffix.lower() in _HEIF:
        _enable_heif()
    with Image.open(image) as opened:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and opened.width * opened.height > limit:
            raise Image.DecompressionBombError
        opened.load()
        return to_rgb(opened, upright=upright)


def is_special(path: Path | str) -> bool:
    """Whether something exists at the path that is neither a regular file nor a folder."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@cache
def _enable_heif() -> None:
    """Register the HEIC format of phone photos with Pillow, if its package is installed."""
    try:
        import pillow_heif
    except ImportError:
        return
    pillow_heif.register_heif_opener()


def _upright(image: Image.Image) -> Image.Image:
    """The image with its EXIF rotation applied; as it is where the EXIF data is damaged."""
    try:
        return ImageOps.exif_transpose(image)
    except (ValueError, SyntaxError, TypeError, KeyError, ZeroDivisionError, OverflowError, Warning):
        return image


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
    """Scale grey values of more than 8 bits to 0..255 without clipping.

    16-bit files use their full range. 32-bit integers and floats have no stated range: it is the
    smallest of [0, 1] (floats only), [0, 255] and [0, 65535] that holds all values, else [min, max].
    """
    wide = np.nan_to_num(values.astype(np.float64))
    low, high = float(wide.min()), float(wide.max())
    ranges = (65535.0,) if mode.startswith("I;16") else (1.0, 255.0, 65535.0)[mode == "I" :]
    top = next((top for top in ranges if low >= 0 and high <= top), None)
    if top is not None:
        low, high = 0.0, top
    return np.rint((wide - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def _name(image: ImageLike) -> str:
    if isinstance(image, Path):
        return printable(str(image))
    return f"{image.mode} image {image.width}x{image.height}"


def _reason(image: ImageLike, error: BaseException) -> str:
    """Why an image cannot be read."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"more than {(Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels (a decompression bomb?)"
    if isinstance(image, Path):
        if not os.path.exists(image):  # Path.exists raises on names that are too long
            return "a broken link" if os.path.islink(image) else "no such file"
        if image.is_dir():
            return "a folder, not a file"
        if is_special(image):
            return _SPECIAL
        if image.stat().st_size == 0:
            return "the file is empty (0 bytes)"
        if isinstance(error, PermissionError):
            return "no permission to read it"
    if isinstance(error, UnidentifiedImageError):
        if isinstance(image, Path) and image.suffix.lower() in _HEIF and find_spec("pillow_heif") is None:
            return "a phone photo (HEIC), for which pip install 'dca-prompt[heif]' is needed"
        return "not an image, or a format Pillow does not know"
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return "the file is truncated"
    return f"damaged ({str(error) or type(error).__name__})"
