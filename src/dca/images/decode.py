"""Open image files and decode them as RGB, one or many; the reason where one cannot be read.

This is the only module that opens or converts images, so that all code sees the same pixels, and so that the command
line, Python and the server refuse the same files: a file is opened in one of `FORMATS` only, its bytes, pixels and
aspect are limited before anything is allocated for them, and whatever a decoder raises is a reason, not a crash.

Many images are decoded in threads, or in processes where there are many files: much of the time that Pillow takes for a
small file is Python's own, so threads wait for each other, and sixteen cores read no faster than two. Forked processes
do not, and begin at once, since nothing is imported or sent to them. Systems that cannot fork use threads.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import struct
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from dca.core.errors import UserError
from dca.core.hints import check_data, raise_pixel_limit, skip_unreadable
from dca.core.parallel import map_in_order
from dca.core.processes import end_with_parent
from dca.core.text import format_bytes, pluralize, to_printable

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
# The formats that are opened, by Pillow's names, with the ends of the names of their files. Pillow knows more, and
# gives some of them to other programs: PostScript to Ghostscript, whatever the file is called.
FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
        "PNG": (".png",),
        "WEBP": (".webp",),
        "GIF": (".gif",),
        "BMP": (".bmp",),
        "DIB": (".dib",),
        "TIFF": (".tif", ".tiff"),
        "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
        "AVIF": (".avif",),
        "HEIF": (".heic", ".heif"),
    }
)
# Pillow's limit on pixels unless it is changed, those of 256 MiB of RGB.
USUAL_PIXELS = 2**30 // 4 // 3
# A file may have this many bytes per pixel of the largest image, and at least so many: some decoders read it whole.
BYTES_PER_PIXEL, LEAST_BYTES = 16, 2**26
# The longer side of an image may be this many times the shorter one. Its evaluation crop is cut out of the whole image
# with the shorter side resized, which takes 40 MB at 224 pixels then.
MOST_ASPECT = 200
# A JPEG may have this many times the pixels of other formats (Pillow's `Image.MAX_IMAGE_PIXELS`, 89 million unless it
# is changed): it is decoded at a half, a quarter or an eighth of its size, which needs little memory.
JPEG_FACTOR = 3
_JPEG = b"\xff\xd8\xff"
_SPECIAL = "not a regular file (a pipe, socket or device)"
_NO_PIXELS = "its pixels are not stored with the model"


class ImageRefusedError(Exception):
    """An image that is not opened, and why. too_large: it would be with a higher limit on pixels."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that could not be read, and why; too_large: it has more pixels or bytes than the limit."""

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
    except Exception as error:  # decoders raise almost anything on damaged files
        raise UserError(f"cannot read {_describe_image(image)}: {_explain_failure(image, error)}.") from error


def open_bytes(data: bytes) -> Image.Image:
    """The image in the bytes of a file, as `open_image` opens the file; raises UserError with the reason."""
    try:
        with open_header(io.BytesIO(data)) as opened:
            return load_rgb(opened)
    except Exception as error:  # decoders raise almost anything on damaged files
        reason = "there are none" if not data else _explain_failure(None, error)
        raise UserError(f"cannot read an image from {pluralize(len(data), 'byte')}: {reason}") from error


def open_header(file: BinaryIO) -> Image.Image:
    """Open an image of which only the header is read, if it has one of `FORMATS` and an acceptable size.

    Args:
        file: An open file that can be read again.

    Returns:
        The image, for `load_rgb`; its pixels may still be more than are loaded.

    Raises:
        ImageRefusedError: If the file has too many bytes, or the image no pixels or sides that differ too much.
        UnidentifiedImageError: If the file is in none of the formats.
        Exception: Whatever Pillow raises on a damaged file.
    """
    refuse_size(file.seek(0, os.SEEK_END))
    file.seek(0)
    image = _identify(file)
    _refuse_shape(*image.size)
    return image


def load_rgb(image: Image.Image, *, upright: bool = True) -> Image.Image:
    """An image that `open_header` has opened, as 8-bit RGB; not a copy, since nobody else has it.

    A large JPEG is decoded at a smaller size. Raises ImageRefusedError for images with too many pixels, and whatever
    Pillow raises on a damaged file.
    """
    _fit_into_limit(image)
    image.load()
    return _convert_to_rgb(_apply_rotation(image)) if upright else to_rgb(image, upright=False)


def refuse_size(count: int) -> None:
    """Raise ImageRefusedError for a file of so many bytes if that is more than are read."""
    most = _most_bytes(Image.MAX_IMAGE_PIXELS)
    if count > most:
        raise ImageRefusedError(f"the file is larger than {format_bytes(most)}", too_large=True)


def _most_bytes(pixels: int | None) -> float:
    """Most bytes of a file, for a limit on pixels."""
    return math.inf if pixels is None else max(LEAST_BYTES, BYTES_PER_PIXEL * pixels)


def depends_on_limit(image: ImageLike) -> bool:
    """Whether another limit on pixels than the usual one changes what is read of an image.

    It does where a file has more pixels, or bytes, than the lower of the two allows: the image is then refused, or
    decoded at another size.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if limit == USUAL_PIXELS or not isinstance(image, Path) or is_special(image):
        return False
    least = USUAL_PIXELS if limit is None else min(limit, USUAL_PIXELS)
    try:
        with image.open("rb") as file, open_header(file) as opened:
            return opened.width * opened.height > least or os.fstat(file.fileno()).st_size > _most_bytes(least)
    except Exception:  # decoders raise almost anything on damaged files
        return True


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
        with image.open("rb") as file, open_header(file) as opened:
            return opened.format != "JPEG" or opened.getexif().get(ExifTags.Base.Orientation, 1) != 1
    except Exception:  # decoders raise almost anything on damaged files
        return True


# Of a central crop: size, resize, resample and even, as `center_crop` takes them.
Crop = tuple[int, int | None, int, bool]


def center_crop(
    image: Image.Image, size: int, resize: int | None, resample: int, even: bool = False
) -> NDArray[np.uint8]:
    """The square that an image tower takes: uint8 (3, size, size).

    Args:
        image: An image in memory.
        size: Side of the square, cut from the middle.
        resize: Length of the short side before cutting; None squeezes the image to a square.
        resample: Pillow's filter number.
        even: Where the margins cannot be equal, the left and upper one is the even number of the two, as torchvision
            rounds; otherwise it is the smaller one.

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
    margins = ((image.width - size) / 2, (image.height - size) / 2)
    left, top = (round(margin) if even else math.floor(margin) for margin in margins)
    image = image.crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def thumbnail_or_image(image: ImageLike) -> ImageLike:
    """The thumbnail of a stored image, any other image as it is: enough to recognise a copy."""
    return open_bytes(image.thumbnail) if isinstance(image, StoredImage) else image


def is_image(file: Path) -> bool:
    """Whether a file is an image by its first bytes, whatever its name is."""
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened, open_header(opened):
            return True
    except Exception:  # decoders raise almost anything on bytes that are no image
        return False


def decode_image(image: Decodable, apply: Callable[[Image.Image], T], *, data: bytes | None = None) -> T | Unreadable:
    """Open an image as RGB and return `apply(image)`, or an `Unreadable` with the reason.

    data: the content of the file, if it has been read; the file is then not opened. Errors of `apply` that an image
    causes, such as one that does not fit into memory, are reasons, too; all others are raised.
    """
    try:
        rgb = _open(image, data)
    except Exception as error:  # decoders raise almost anything on damaged files
        return _describe_failure(image, error)
    try:
        return apply(rgb)
    except _FAILED_TRANSFORM as error:
        return _describe_failure(image, error)


def _describe_failure(image: Decodable, error: Exception) -> Unreadable:
    inner = unwrap(image)
    return Unreadable(inner, _explain_failure(inner, error), _exceeds_limit(error))


def unwrap(image: Decodable) -> ImageLike:
    """The image itself, however it is to be read."""
    return image.image if isinstance(image, AsStored) else image


# What Pillow and NumPy raise where they cannot transform an image; other errors are ours.
_FAILED_TRANSFORM = (MemoryError, ArithmeticError, ValueError, struct.error, Image.DecompressionBombError)


def _open(image: Decodable, data: bytes | None = None) -> Image.Image:
    upright, image = not isinstance(image, AsStored), unwrap(image)
    if isinstance(image, StoredImage):
        raise ImageRefusedError(_NO_PIXELS)
    if not isinstance(image, Path):
        _refuse_shape(*image.size)
        return to_rgb(image, upright=upright)
    if data is None and is_special(image):
        raise ImageRefusedError(_SPECIAL)  # opening a pipe would wait for a writer, perhaps for ever
    with image.open("rb") if data is None else io.BytesIO(data) as file, open_header(file) as opened:
        return load_rgb(opened, upright=upright)


def _identify(file: BinaryIO) -> Image.Image:
    """The image of an open file in one of `FORMATS`.

    A JPEG is opened without Pillow's check of its size, which is global and would warn of, or refuse, images that
    `_fit_into_limit` makes small enough.
    """
    is_jpeg = file.read(len(_JPEG)) == _JPEG
    file.seek(0)
    if is_jpeg:
        with suppress(Exception):  # Pillow's own opener has the better message
            return JpegImageFile(file)
        file.seek(0)
    enable_heif()
    Image.init()
    return Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])


def _refuse_shape(width: int, height: int) -> None:
    """Raise ImageRefusedError for an image without pixels, or with one side very much longer than the other."""
    short, long = min(width, height), max(width, height)
    if short < 1:
        raise ImageRefusedError("it has no pixels")
    if long > MOST_ASPECT * short:
        raise ImageRefusedError(f"{width:,} x {height:,} pixels: one side is more than {MOST_ASPECT:,} times the other")


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
    image.draft(image.mode, (max(image.width // scale, 1), max(image.height // scale, 1)))


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
    except MemoryError:
        raise
    except Exception:  # readers of EXIF data raise almost anything where it is damaged
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


def _exceeds_limit(error: Exception) -> bool:
    """Whether an image was refused for its number of pixels or bytes."""
    bomb = isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning))
    return bomb or (isinstance(error, ImageRefusedError) and error.too_large)


def _explain_failure(image: ImageLike | None, error: Exception) -> str:
    """Why an image cannot be read. image: None where its bytes were given."""
    if isinstance(error, ImageRefusedError):
        return str(error)
    if _exceeds_limit(error):
        most = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        return f"more than {most} million pixels, or {JPEG_FACTOR * most} in a plain JPEG (a decompression bomb?)"
    if isinstance(image, Path) and (reason := _explain_file(image, error)):
        return reason
    if isinstance(error, MemoryError):
        return "decoding it takes more memory than there is"
    if isinstance(error, UnidentifiedImageError):
        if isinstance(image, Path) and image.suffix.lower() in FORMATS["HEIF"] and find_spec("pillow_heif") is None:
            return "a phone photo (HEIC), for which pip install 'dca-prompt[heif]' is needed"
        return "not an image, or in a format that is not opened"
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return "the file is truncated"
    return f"damaged ({to_printable(str(error)) or type(error).__name__})"


def _explain_file(path: Path, error: Exception) -> str:
    """What is wrong with a file, whatever is in it; empty if nothing."""
    if os.path.isdir(path):  # unlike the methods of Path, these functions raise for no name, however long
        return "a folder, not a file"
    if is_special(path):
        return _SPECIAL
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if not os.path.exists(path):
        return "a broken link" if os.path.islink(path) else "no such file"
    return "" if os.stat(path).st_size else "the file is empty (0 bytes)"


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
