"""One pass per image: a file is opened once and decoded once, for everything that a fit needs of it.

A fit wants the hash of an image, its evaluation crop, a thumbnail to find near-copies with, and a preview to show. Made
one after the other, each would open and decode the file again.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from dca.core.errors import UserError
from dca.core.parallel import map_in_order
from dca.images.decode import (
    Decodable,
    Unreadable,
    decode_image,
    is_special,
    iter_decode,
    processes_are_faster,
    unwrap,
    worker_count,
)
from dca.images.hashing import make_thumbnail, sha256_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Pixels of a preview's longer side, and its JPEG quality: about 3 kB per image.
PREVIEW_SIDE, PREVIEW_QUALITY = 128, 80
# Files whose bytes are in memory at a time, and images that are decoded ahead of the consumer.
CHUNK, AHEAD = 64, 256
# Bytes of the largest file that is kept in memory between hashing and decoding; a larger one is opened again.
MOST_KEPT = 2**24

Crop = Callable[[Image.Image], "NDArray[np.uint8]"]
# Images and their hashes, "" where a file cannot be opened -> hashes of those that need not be decoded.
Known = Callable[[Sequence[Decodable], Sequence[str]], Collection[str]]


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """What is kept of a decoded image.

    crop: the evaluation crop, uint8 (3, S, S). thumbnail: uint8 (16, 16, 3). preview: a small JPEG file.
    """

    crop: NDArray[np.uint8]
    thumbnail: NDArray[np.uint8]
    preview: bytes


@dataclass(frozen=True, slots=True)
class ReadImage:
    """The outcome of one pass. sha256: of its content; "" where the file cannot be opened.

    summary: None for an image that need not be decoded.
    """

    sha256: str
    summary: ImageSummary | Unreadable | None


def encode_jpeg(image: Image.Image, *, side: int = PREVIEW_SIDE) -> bytes:
    """An RGB image as a JPEG file whose longer side has at most `side` pixels, without the original's metadata."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=PREVIEW_QUALITY, exif=b"", icc_profile=None, comment=b"")
    return file.getvalue()


def summarize_image(image: Image.Image, crop: Crop) -> ImageSummary:
    """Everything that is kept of an RGB image."""
    return ImageSummary(crop(image), make_thumbnail(image), encode_jpeg(image))


def read_images(
    images: Sequence[Decodable],
    crop: Crop,
    *,
    known: Known = lambda images, hashes: (),
) -> Iterator[ReadImage]:
    """Read every image once: hash it, and decode it unless its content is known.

    Files are read in chunks: the bytes that are hashed are those that are decoded. Where processes decode sooner
    (`processes_are_faster`), files are hashed by threads and those that must be decoded are opened again by processes.

    Args:
        images: Files, or images in memory.
        crop: Makes the evaluation crop of an RGB image.
        known: Gets images with their hashes and returns the hashes of those that need not be decoded.

    Yields:
        One outcome per image, in order.
    """
    summarize, workers = partial(summarize_image, crop=crop), worker_count()
    if processes_are_faster(images, workers):
        yield from _hash_first(images, summarize, known)
        return
    remaining = iter(images)
    while chunk := list(islice(remaining, CHUNK)):
        loaded = list(map_in_order(_load, chunk, workers=workers, ahead=CHUNK))
        hashes = ["" if isinstance(one, Unreadable) else one[0] for one in loaded]
        skipped = known(chunk, hashes)

        decode = partial(_decode_loaded, skipped=skipped, summarize=summarize)
        yield from map_in_order(decode, zip(chunk, loaded, strict=True), workers=workers, ahead=CHUNK)


# The hash of an image and the content of its file; None for an image in memory, and for a file that is opened again.
Loaded = tuple[str, "bytes | None"]


def _load(image: Decodable) -> Loaded | Unreadable:
    """Read a file, or hash an image in memory."""
    file = unwrap(image)
    if not isinstance(file, Path):
        return sha256_of(file), None
    if not is_special(file):
        with suppress(OSError, ValueError), file.open("rb") as opened:  # the reason is that of the decoder
            size = os.fstat(opened.fileno()).st_size
            if size <= MOST_KEPT and len(data := opened.read(size + 1)) <= size:
                return hashlib.sha256(data).hexdigest(), data
        with suppress(UserError):
            return sha256_of(file), None
    outcome = decode_image(image, lambda rgb: rgb)
    assert isinstance(outcome, Unreadable)
    return outcome


def _decode_loaded(
    pair: tuple[Decodable, Loaded | Unreadable],
    skipped: Collection[str],
    summarize: Callable[[Image.Image], ImageSummary],
) -> ReadImage:
    """The outcome of an image whose file is read."""
    image, loaded = pair
    if isinstance(loaded, Unreadable):
        return ReadImage("", loaded)
    sha256, data = loaded
    if sha256 in skipped:
        return ReadImage(sha256, None)
    return ReadImage(sha256, decode_image(image, summarize, data=data))


def _hash_first(
    images: Sequence[Decodable],
    summarize: Callable[[Image.Image], ImageSummary],
    known: Known,
) -> Iterator[ReadImage]:
    """`read_images` of very many files: hashed by threads, then decoded by processes."""
    hashes = list(map_in_order(_hash_or_empty, images, workers=worker_count(), ahead=AHEAD))
    skipped = set(known(images, hashes))
    todo = [image for image, sha256 in zip(images, hashes, strict=True) if sha256 not in skipped]
    decoded = iter_decode(todo, summarize, ahead=AHEAD)
    for sha256 in hashes:
        yield ReadImage(sha256, None if sha256 in skipped else next(decoded))


def _hash_or_empty(image: Decodable) -> str:
    """The hash of an image; "" where the file cannot be opened."""
    try:
        return sha256_of(unwrap(image))
    except UserError:
        return ""
