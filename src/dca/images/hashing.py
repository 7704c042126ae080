"""Comparing images by content: exact hashes, and thumbnails for near-copies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dca.core.errors import UserError
from dca.core.hints import raise_pixel_limit
from dca.images.decode import ImageLike, ImageRefusedError, StoredImage, is_special, refuse_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

THUMB = 16
# On Flowers102 and Caltech101, copies at 60 % of the size and JPEG quality 70 correlate by 0.992 or
# more with their originals, different images by 0.991 or less.
_SAME = 0.992
_SAME_LEVELS = 20.0
_FLAT = 8.0
_CELLS = 2**24  # pairs compared at a time


def sha256_of(image: ImageLike) -> str:
    """Hash of an image's content: the file's bytes, or mode, size and pixels of an image in memory.

    Raises UserError for a file that cannot be read, or is larger than any that is opened.
    """
    if isinstance(image, StoredImage):
        return image.sha256
    if isinstance(image, Path):
        if is_special(image):
            raise UserError(f"cannot read {image}: not a regular file.")
        try:
            with image.open("rb") as file:
                refuse_size(os.fstat(file.fileno()).st_size)
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"cannot read {image}: {error.strerror}.") from error
        except ImageRefusedError as error:
            raise UserError(f"cannot read {image}: {error}.", hint=raise_pixel_limit()) from error
    header = f"{image.mode} {image.width}x{image.height}\n".encode()
    return hashlib.sha256(header + image.tobytes()).hexdigest()


def make_thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    """An image at 16 x 16 pixels, (16, 16, 3): enough to recognise a copy."""
    return np.asarray(image.resize((THUMB, THUMB), Image.Resampling.BILINEAR))


def find_near_copies(thumbnails: NDArray[np.uint8], block: int | None = None) -> list[tuple[int, int]]:
    """Pairs of images that are the same but for size, compression or brightness.

    thumbnails: (N, 16, 16, 3). Two are copies if their grey levels correlate by 0.992 or more and
    their colours differ by less than 20 levels on average. Images with hardly any contrast are
    left out: they all look alike.
    """
    grey = thumbnails.astype(np.float32).mean(3).reshape(len(thumbnails), -1)
    busy = np.flatnonzero(grey.std(1) >= _FLAT)
    centred = grey[busy] - grey[busy].mean(1, keepdims=True)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    block = block or max(64, _CELLS // max(1, len(busy)))
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(busy), block):
        alike = np.triu(unit[start : start + block] @ unit[start:].T, 1)
        for i, j in np.argwhere(alike >= _SAME):
            a, b = int(busy[start + i]), int(busy[start + j])
            if np.abs(thumbnails[a].astype(np.int16) - thumbnails[b]).mean() < _SAME_LEVELS:
                pairs.append((a, b))
    return pairs


def find_copy_pairs(
    contents: Sequence[str], thumbnails: NDArray[np.uint8]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of exact copies, each with the first image of its content, and pairs of other near-copies, sorted.

    contents: N hashes. thumbnails: (N, 16, 16, 3).
    """
    first: dict[str, int] = {}
    exact = [(first.setdefault(content, image), image) for image, content in enumerate(contents)]
    near = sorted(find_near_copies(thumbnails)) if len(thumbnails) else []
    return [(a, b) for a, b in exact if a != b], [(a, b) for a, b in near if contents[a] != contents[b]]


def group_copies(contents: Sequence[str], thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """A number per image, (N,), that exact copies and near-copies share; copies of copies count as copies.

    contents: N hashes. thumbnails: (N, 16, 16, 3). Groups are numbered in the order of their first images.
    """
    parent = list(range(len(contents)))

    def root(image: int) -> int:
        while parent[image] != image:
            parent[image] = image = parent[parent[image]]
        return image

    exact, near = find_copy_pairs(contents, thumbnails)
    for one, other in [*exact, *near]:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    _, numbers = np.unique([root(image) for image in range(len(contents))], return_inverse=True)
    return numbers.astype(np.int64)
