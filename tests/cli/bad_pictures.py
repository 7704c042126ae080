"""Small class folders, and the files that must never get through."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: int = 40) -> Image.Image:
    """Coloured noise."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))


def class_folders(root: Path, names: tuple[str, ...] = ("cat", "dog"), count: int = 2) -> Path:
    """root/<name>/0.jpg ..."""
    for c, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for n in range(count):
            picture(10 * c + n).save(root / name / f"{n}.jpg")
    return root


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG of a hundred bytes that declares 3.6 billion pixels, or so many."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def bad_files(folder: Path) -> list[str]:
    """Write one file of each kind that cannot be read; returns their names."""
    whole = io.BytesIO()
    picture(99, 200).save(whole, "JPEG")
    contents = {
        "bomb.png": bomb(),
        "empty.jpg": b"",
        "postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n",
        "text.png": b"this is not a picture",
        "thin.png": bomb(1, 300_000),
        "thinner.png": bomb(80_000_000, 1),
        "truncated.jpg": whole.getvalue()[: len(whole.getvalue()) // 2],
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return list(contents)
