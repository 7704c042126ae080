"""What a picture holds, as numbers to compare: exact hashes, and thumbnails for near-copies."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dca.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

THUMB = 16
_SAME_BITS = 0.96
_SAME_LEVELS = 6.0
_FLAT = 8.0


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
    """A picture at 17 x 16 pixels, (16, 17, 3): enough to recognise a copy."""
    return np.asarray(image.resize((THUMB + 1, THUMB), Image.Resampling.BOX, reducing_gap=2.0))


def near_copies(thumbnails: NDArray[np.uint8], block: int = 2048) -> list[tuple[int, int]]:
    """Pairs of pictures that are the same but for size, compression or small edits.

    thumbnails: (N, 16, 17, 3). Two are copies if the signs of their horizontal brightness steps
    agree in 96 % of the places and their colours differ by less than 6 levels on average. Pictures
    with hardly any contrast are left out: they all look alike.
    """
    grey = thumbnails.astype(np.float32).mean(3)
    busy = np.flatnonzero(grey.std((1, 2)) >= _FLAT)
    steps = np.where(np.diff(grey[busy], axis=2) > 0, 1, -1).reshape(len(busy), -1).astype(np.float32)
    least = (2 * _SAME_BITS - 1) * steps.shape[1] if len(busy) else 0.0
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(busy), block):
        agree = steps[start : start + block] @ steps[start:].T
        for i, j in np.argwhere(np.triu(agree, 1) >= least):
            a, b = int(busy[start + i]), int(busy[start + j])
            if np.abs(thumbnails[a].astype(np.int16) - thumbnails[b]).mean() < _SAME_LEVELS:
                pairs.append((a, b))
    return pairs
