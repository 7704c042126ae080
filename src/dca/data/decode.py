"""An image file -> an RGB image, and the reason where it cannot be read; `decode_many` reads many at a time.

The only module that opens or converts images, so that all code sees the same pixels.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from dca.core.errors import UserError
from dca.core.wording import counted, printable
from dca.data.dataset import ImageLike, StoredImage

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
# A JPEG may have this many times the pixels of other formats (Pillow's `Image.MAX_IMAGE_PIXELS`, 89 million unless it
# is changed): it is decoded at a half, a quarter or an eighth of its size, which needs little memory.
JPEG_FACTOR = 3
_JPEG = b"\xff\xd8\xff"
_HEIF = (".heic", ".heif")
_SPECIAL = "not a regular file (a pipe, socket or device)"
_NO_PIXELS = "its pixels are not stored with the model"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that could not be read, and why; too_large: it has more pixels than the limit."""

    image: ImageLike
    reason: str
    too_large: bool = False

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


def open_bytes(data: bytes) -> Image.Image:
    """The image in the bytes of a file, as `open_image` opens the file; raises UserError with the reason."""
    try:
        enable_heif()
        with _lazy(io.BytesIO(data)) as opened:
            return _loaded(opened)
    except _UNREADABLE as error:
        reason = "there are none" if not data else _reason(Image.new("RGB", (1, 1)), error)
        raise UserError(f"cannot read an image from {counted(len(data), 'byte')}: {reason}") from error


def to_rgb(image: Image.Image, *, upright: bool = True) -> Image.Image:
    """An image in memory as 8-bit RGB.

    The EXIF rotation is applied unless `upright` is false, transparent parts become white, and 16-bit grey is scaled
    to 8 bits. The result has no EXIF rotation left, and is never the argument, which is not changed.

    >>> to_rgb(Image.new("RGBA", (1, 1), (0, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if upright:
        found = _rgb(_upright(image))
        return found.copy() if found is image else found
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
        with image.open("rb") as file, _lazy(file) as opened:
            return opened.format != "JPEG" or opened.getexif().get(ExifTags.Base.Orientation, 1) != 1
    except _UNREADABLE:
        return True


def square(image: Image.Image, size: int, resize: int | None, resample: int) -> NDArray[np.uint8]:
    """The square that an image tower takes: uint8 (3, size, size).

    Args:
        image: An image in memory.
        size: Side of the square, cut from the middle.
        resize: Length of the short side before cutting; None squeezes the image to a square.
        resample: Pillow's filter number.

    >>> square(Image.new("RGB", (40, 30)), 8, 8, 3).shape
    (3, 8, 8)
    """
    image = _rgb(_upright(image))
    width, height = image.size
    if resize is None:
        image = image.resize((size, size), Image.Resampling(resample))
    else:
        short, long = min(width, height), max(width, height)
        scaled = int(resize * long / short)
        target = (resize, scaled) if width <= height else (scaled, resize)
        image = image.resize(target, Image.Resampling(resample))
    left, top = (image.width - size) // 2, (image.height - size) // 2
    image = image.crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def small_version(image: ImageLike) -> ImageLike:
    """The thumbnail of a stored image, any other image as it is: enough to recognise a copy."""
    return Image.open(io.BytesIO(image.thumbnail)) if isinstance(image, StoredImage) else image


def is_image(file: Path) -> bool:
    """Whether Pillow recognises a file as an image by its first bytes, whatever its name is."""
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened, _lazy(opened):
            return True
    except Exception:  # decoders raise almost anything on bytes that are no image
        return False


def opened(image: ImageLike, apply: Callable[[Image.Image], T], *, upright: bool = True) -> T | Unreadable:
    """`apply` of an image as RGB, or why it cannot be read. upright: apply EXIF rotations."""
    try:
        rgb = _open(image, upright)
    except _UNREADABLE as error:
        return Unreadable(image, _reason(image, error), _is_bomb(error))
    return apply(rgb)


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
    if isinstance(image, StoredImage):
        raise OSError(_NO_PIXELS)
    if not isinstance(image, Path):
        return to_rgb(image, upright=upright)
    if is_special(image):
        raise OSError(_SPECIAL)  # opening a pipe would wait for a writer, perhaps for ever
    if image.suffix.lower() in _HEIF:
        enable_heif()
    with image.open("rb") as file, _lazy(file) as opened:
        return _loaded(opened, upright)


def _loaded(image: Image.Image, upright: bool = True) -> Image.Image:
    """An image of which the header was read, as 8-bit RGB; not a copy, since nobody else has it."""
    _fit_into_limit(image)
    image.load()
    return _rgb(_upright(image)) if upright else to_rgb(image, upright=False)


def _lazy(file: BinaryIO) -> Image.Image:
    """The image of an open file, of which only the header is read.

    A JPEG is opened without Pillow's check of its size, which is global and would warn of, or refuse, images that
    `_fit_into_limit` makes small enough.
    """
    is_jpeg = file.read(len(_JPEG)) == _JPEG
    file.seek(0)
    if is_jpeg:
        with suppress(*_UNREADABLE):  # Pillow's own opener has the better message
            return JpegImageFile(file)
        file.seek(0)
    return Image.open(file)


def _fit_into_limit(image: Image.Image) -> None:
    """Make a large JPEG decode at a smaller size; raises for images with too many pixels.

    A progressive JPEG keeps all its coefficients in memory whatever the size, so its limit is that of other formats.
    """
    limit, pixels = Image.MAX_IMAGE_PIXELS, image.width * image.height
    if limit is None or pixels <= limit:
        return
    reducible = isinstance(image, JpegImageFile) and not image.info.get("progressive")
    if not reducible or pixels > JPEG_FACTOR * limit:
        raise Image.DecompressionBombError
    scale = next(scale for scale in (2, 4, 8) if pixels <= limit * scale**2)
    image.draft(image.mode, (image.width // scale, image.height // scale))


@contextmanager
def pixel_limit(millions: float | None) -> Iterator[None]:
    """Open images of at most so many million pixels (JPEGs: three times as many); None changes nothing.

    The limit is Pillow's own, `PIL.Image.MAX_IMAGE_PIXELS`, and holds for the whole process.
    """
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = before if millions is None else int(millions * 1_000_000)
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def is_special(path: Path | str) -> bool:
    """Whether something exists at the path that is neither a regular file nor a folder."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@cache
def enable_heif() -> None:
    """Register the HEIC format of phone photos with Pillow, if its package is installed."""
    try:
        import pillow_heif
    except ImportError:
        return
    pillow_heif.register_heif_opener()


def _upright(image: Image.Image) -> Image.Image:
    """The image with its EXIF rotation applied; the same object where there is none, or the EXIF data is damaged.

    Pillow's function copies an image that needs no rotation, which takes a fifth of the time to decode a small one.
    """
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except (ValueError, SyntaxError, TypeError, KeyError, ZeroDivisionError, OverflowError, Warning):
        return image


def _rgb(image: Image.Image) -> Image.Image:
    """Eight-bit RGB of any Pillow mode; the same object where it is that already."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
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
    if isinstance(image, StoredImage):
        return image.name
    if isinstance(image, Path):
        return printable(str(image))
    return f"{image.mode} image {image.width}x{image.height}"


def _is_bomb(error: BaseException) -> bool:
    """Whether an image was refused for its number of pixels."""
    return isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning))


def _reason(image: ImageLike, error: BaseException) -> str:
    """Why an image cannot be read."""
    if _is_bomb(error):
        most = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        return f"more than {most} million pixels, or {JPEG_FACTOR * most} in a plain JPEG (a decompression bomb?)"
    if isinstance(image, StoredImage):
        return _NO_PIXELS
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
