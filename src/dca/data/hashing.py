"""What a picture holds, as numbers to compare: exact hashes, and thumbnails for near-copies."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dca.core.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

THUMB = 16
# On Flowers102 and Caltech101, copies at 60 % of the size and JPEG quality 70 correlate by 0.992 or
# more with their originals, different pictures by 0.991 or less.
_SAME = 0.992
_SAME_LEVELS = 20.0
_FLAT = 8.0
_CELLS = 2**24  # of the table of pairs, at a time


def sha256_of(picture: Path | Image.Image) -> str:
    """Hash of a picture's content: the file's bytes, or mode, size and pixels of an image in memory."""
    if isinstance(picture, Path):
        try:
            with picture.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"cannot read {picture}: {error.strerror}.") from error
    header = f"{picture.mode} {picture.width}x{picture.height}\n".encode()
    return hashlib.sha256(header + picture.tobytes()).hexdigest()


def thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    """A picture at 16 x 16 pixels, (16, 16, 3): enough to recognise a copy."""
    return np.asarray(image.resize((THUMB, THUMB), Image.Resampling.BILINEAR))


def near_copies(thumbnails: NDArray[np.uint8], block: int | None = None) -> list[tuple[int, int]]:
    """Pairs of pictures that are the same but for size, compression or brightness.

    thumbnails: (N, 16, 16, 3). Two are copies if their grey levels correlate by 0.992 or more and
    their colours differ by less than 20 levels on average. Pictures with hardly any contrast are
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
