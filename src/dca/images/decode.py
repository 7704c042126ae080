"""Open image files and decode them as RGB, one or many; the reason where one cannot be read.

This is the only module that opens or converts images, so that all code sees the same pixels.

Many images are decoded in threads, or in processes where there are many files: much of the time that Pillow takes for a
small file is Python's own, so threads wait for each other, and sixteen cores read no faster than two. Forked processes
do not, and begin at once, since nothing is imported or sent to them. Systems that cannot fork use threads.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from dca.core.errors import UserError
from dca.core.hints import check_data, raise_pixel_limit, skip_unreadable
from dca.core.parallel import map_in_order
from dca.core.processes import end_with_parent
from dca.core.text import pluralize, to_printable

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image whose features are stored and whose pixels are not at hand.

    Frozen features of its evaluation view are found by its hash; anything else that opens the image fails.

    Args:
        sha256: Hash of its content, 64 hexadecimal digits.
        name: What to call it in records and messages.
        thumbnail: A small JPEG of it, for finding near-copies and for showing it.

    Example:
        >>> from dca.images.decode import StoredImage
        >>> StoredImage("0a" * 32, "cat/1.jpg", b"").name
        'cat/1.jpg'
    """

    sha256: str
    name: str
    thumbnail: bytes


ImageLike = Path | Image.Image | StoredImage


@dataclass(frozen=True, slots=True)
class AsStored:
    """An image that is read as its pixels are stored; all other images are turned by their EXIF rotation."""

    image: Path | Image.Image


# What the functions of this module open.
Decodable = ImageLike | AsStored

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
        return f"{_describe_image(self.image)}: {self.reason}"


def open_image(image: ImageLike) -> Image.Image:
    """Open an image as 8-bit RGB, the way an image viewer shows it; see `to_rgb`.

    Raises UserError with the reason if the image cannot be read.
    """
    try:
        return _open(image)
    except _UNREADABLE as error:
        raise UserError(f"cannot read {_describe_image(image)}: {_explain_failure(image, error)}.") from error


def open_bytes(data: bytes) -> Image.Image:
    """The image in the bytes of a file, as `open_image` opens the file; raises UserError with the reason."""
    try:
        enable_heif()
        with _open_lazily(io.BytesIO(data)) as opened:
            return _load_pixels(opened)
    except _UNREADABLE as error:
        reason = "there are none" if not data else _explain_failure(Image.new("RGB", (1, 1)), error)
        raise UserError(f"cannot read an image from {pluralize(len(data), 'byte')}: {reason}") from error


def to_rgb(image: Image.Image, *, upright: bool = True) -> Image.Image:
    """An image in memory as 8-bit RGB.

    The EXIF rotation is applied unless `upright` is false, transparent parts become white, and 16-bit grey is scaled
    to 8 bits. The result has no EXIF rotation left, and is never the argument, which is not changed.

    >>> to_rgb(Image.new("RGBA", (1, 1), (0, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if upright:
        found = _convert_to_rgb(_apply_rotation(image))
        return found.copy() if found is image else found
    stored = _convert_to_rgb(image).copy()
    stored.info = {}  # so that no later call turns it
    return stored


def may_have_rotation(image: ImageLike) -> bool:
    """Whether EXIF data may turn an image; false only where the header of a JPEG file has no rotation.

    Other formats may hold EXIF data behind the pixels, and images in memory are cheap to read twice.
    """
    if not isinstance(image, Path) or is_special(image):
        return True
    try:
        with image.open("rb") as file, _open_lazily(file) as opened:
            return opened.format != "JPEG" or opened.getexif().get(ExifTags.Base.Orientation, 1) != 1
    except _UNREADABLE:
        return True


def center_crop(image: Image.Image, size: int, resize: int | None, resample: int) -> NDArray[np.uint8]:
    """The square that an image tower takes: uint8 (3, size, size).

    Args:
        image: An image in memory.
        size: Side of the square, cut from the middle.
        resize: Length of the short side before cutting; None squeezes the image to a square.
        resample: Pillow's filter number.

    >>> center_crop(Image.new("RGB", (40, 30)), 8, 8, 3).shape
    (3, 8, 8)
    """
    image = _convert_to_rgb(_apply_rotation(image))
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


def thumbnail_or_image(image: ImageLike) -> ImageLike:
    """The thumbnail of a stored image, any other image as it is: enough to recognise a copy."""
    return open_bytes(image.thumbnail) if isinstance(image, StoredImage) else image


def is_image(file: Path) -> bool:
    """Whether Pillow recognises a file as an image by its first bytes, whatever its name is."""
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened, _open_lazily(opened):
            return True
    except Exception:  # decoders raise almost anything on bytes that are no image
        return False


def decode_image(image: Decodable, apply: Callable[[Image.Image], T], *, data: bytes | None = None) -> T | Unreadable:
    """Open an image as RGB and return `apply(image)`, or an `Unreadable` with the reason.

    data: the content of the file, if it has been read; the file is then not opened.
    """
    try:
        rgb = _open(image, data)
    except _UNREADABLE as error:
        inner = unwrap(image)
        return Unreadable(inner, _explain_failure(inner, error), _exceeds_limit(error))
    return apply(rgb)


def unwrap(image: Decodable) -> ImageLike:
    """The image itself, however it is to be read."""
    return image.image if isinstance(image, AsStored) else image


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


def _open(image: Decodable, data: bytes | None = None) -> Image.Image:
    upright, image = not isinstance(image, AsStored), unwrap(image)
    if isinstance(image, StoredImage):
        raise OSError(_NO_PIXELS)
    if not isinstance(image, Path):
        return to_rgb(image, upright=upright)
    if data is None and is_special(image):
        raise OSError(_SPECIAL)  # opening a pipe would wait for a writer, perhaps for ever
    if image.suffix.lower() in _HEIF:
        enable_heif()
    with image.open("rb") if data is None else io.BytesIO(data) as file, _open_lazily(file) as opened:
        return _load_pixels(opened, upright)


def _load_pixels(image: Image.Image, upright: bool = True) -> Image.Image:
    """An image of which the header was read, as 8-bit RGB; not a copy, since nobody else has it."""
    _fit_into_limit(image)
    image.load()
    return _convert_to_rgb(_apply_rotation(image)) if upright else to_rgb(image, upright=False)


def _open_lazily(file: BinaryIO) -> Image.Image:
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


def _apply_rotation(image: Image.Image) -> Image.Image:
    """The image with its EXIF rotation applied; the same object where there is none, or the EXIF data is damaged.

    Pillow's function copies an image that needs no rotation, which takes a fifth of the time to decode a small one.
    """
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except (ValueError, SyntaxError, TypeError, KeyError, ZeroDivisionError, OverflowError, Warning):
        return image


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    """Eight-bit RGB of any Pillow mode; the same object where it is that already."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_scale_to_8_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _scale_to_8_bits(values: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
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


def _describe_image(image: ImageLike) -> str:
    if isinstance(image, StoredImage):
        return image.name
    if isinstance(image, Path):
        return to_printable(str(image))
    return f"{image.mode} image {image.width}x{image.height}"


def _exceeds_limit(error: BaseException) -> bool:
    """Whether an image was refused for its number of pixels."""
    return isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning))


def _explain_failure(image: ImageLike, error: BaseException) -> str:
    """Why an image cannot be read."""
    if _exceeds_limit(error):
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


# Called with (images done, images in all).
Count = Callable[[int, int], None]
# What to do with an RGB image: one function, or one function per image.
Apply = Callable[[Image.Image], T] | Sequence[Callable[[Image.Image], T]]
_AHEAD = 64
# Files and workers from which on processes are started, and files that one of them reads at a time.
MANY_FILES, MANY_WORKERS, CHUNK = 1000, 4, 32


def decode_all(
    images: Sequence[Decodable],
    apply: Apply[T],
    *,
    workers: int | None = None,
    progress: Count | None = None,
) -> list[T]:
    """Open every image and return `apply` of each RGB image, in order.

    apply: one function, or one function per image. Raises one UserError that lists
    every unreadable file.
    """
    outcomes = try_decode_all(images, apply, workers=workers, progress=progress)
    if faults := [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]:
        raise unreadable_error(faults, len(images))
    return [outcome for outcome in outcomes if not isinstance(outcome, Unreadable)]


def try_decode_all(
    images: Sequence[Decodable],
    apply: Apply[T],
    *,
    workers: int | None = None,
    progress: Count | None = None,
) -> list[T | Unreadable]:
    """Like `decode_all`, with an `Unreadable` in the place of each image that cannot be read."""
    outcomes: list[T | Unreadable] = []
    for outcome in iter_decode(images, apply, workers=workers, ahead=_AHEAD):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(images))
    return outcomes


def iter_decode(
    images: Iterable[Decodable], apply: Apply[T], *, workers: int | None = None, ahead: int
) -> Iterator[T | Unreadable]:
    """Open images at most `ahead` of the consumer, and yield the outcomes in order.

    workers: number of threads or processes; by default as many as torch uses threads.
    """
    count = workers or worker_count()
    if isinstance(images, Sequence) and processes_are_faster(images, count):
        return decode_in_processes(images, apply, workers=count, ahead=ahead)
    return decode_in_threads(images, apply, workers=count, ahead=ahead)


def processes_are_faster(images: Sequence[Decodable], workers: int) -> bool:
    """Whether processes read these images sooner than threads, and can."""
    enough = len(images) >= MANY_FILES and workers >= MANY_WORKERS
    able = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    # A process that is itself a worker of this kind may not start others.
    return enough and able and not _is_daemon() and all(isinstance(unwrap(image), Path) for image in images)


def _is_daemon() -> bool:
    return bool(multiprocessing.current_process().daemon)


def worker_count() -> int:
    """As many as torch uses threads, so that several processes on one machine share its cores; else one per core."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else os.cpu_count() or 1


def decode_in_threads(
    images: Iterable[Decodable], apply: Apply[T], *, workers: int, ahead: int
) -> Iterator[T | Unreadable]:
    """`iter_decode` by threads."""
    pairs = zip(images, repeat(apply), strict=False) if callable(apply) else zip(images, apply, strict=True)

    def decode(pair: tuple[Decodable, Callable[[Image.Image], T]]) -> T | Unreadable:
        return decode_image(*pair)

    return map_in_order(decode, pairs, workers=workers, ahead=ahead, name="dca-decode")


def decode_in_processes(
    images: Sequence[Decodable], apply: Apply[T], *, workers: int, ahead: int
) -> Iterator[T | Unreadable]:
    """`iter_decode` by forked processes, which read some files at a time."""
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, _start_worker, (images, apply))
    waiting: deque[Future[list[T | Unreadable]]] = deque()
    try:
        for first in range(0, len(images), CHUNK):
            with warnings.catch_warnings():
                # The processes only read images, so locks that threads of this one hold are no matter.
                warnings.simplefilter("ignore", DeprecationWarning)
                waiting.append(pool.submit(_decode_positions, range(first, min(first + CHUNK, len(images)))))
            if len(waiting) > max(ahead // CHUNK, 2 * workers):
                yield from waiting.popleft().result()
        for future in waiting:
            yield from future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a process that read images was ended from outside",
            hint="if memory ran out, fewer read at once with OMP_NUM_THREADS=2",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# In a process that reads: all images, and what to do with them.
_task: tuple[Sequence[Decodable], Apply[Any]]


def _start_worker(images: Sequence[Decodable], apply: Apply[Any]) -> None:
    """The start of a process that reads; a fork shares its arguments, so nothing is copied."""
    global _task
    _task = images, apply
    end_with_parent()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # threads of the first process do not exist in a fork


def _decode_positions(places: range) -> list[Any]:
    """The outcomes of the images at these places."""
    images, apply = _task
    return [decode_image(images[n], apply if callable(apply) else apply[n]) for n in places]


def unreadable_error(faults: Sequence[Unreadable], total: int) -> UserError:
    """One error for all images that could not be read."""
    larger = [raise_pixel_limit()] if any(fault.too_large for fault in faults) else []
    return UserError(
        f"{pluralize(len(faults), 'image', of=total)} cannot be read.",
        details=[str(fault) for fault in faults],
        hint=["replace or remove these files", check_data(), skip_unreadable(), *larger],
    )
