"""Small images and folders of them, for the data tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def photo(seed: int = 0, size: tuple[int, int] = (32, 24), mode: str = "RGB") -> Image.Image:
    """A smooth random image (width, height)."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC).convert(mode)


def make_folder(root: Path, counts: dict[str, int], suffix: str = ".png") -> Path:
    """Class folders with that many different images each."""
    for k, (name, n) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            photo(1000 * k + i).save(root / name / f"{i}{suffix}")
    return root
