"""The name of the dominant colour of an image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Upper ends of hue ranges in degrees; red closes the circle.
HUES = ((15, "red"), (42, "orange"), (68, "yellow"), (165, "green"), (255, "blue"), (290, "purple"), (345, "pink"))
NAMES = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "white", "black")
SHARE = 0.4


def dominant_colour(pixels: NDArray[np.uint8]) -> str:
    """The colour of most of the middle of an image (3, S, S), or "" where none dominates."""
    side = pixels.shape[-1]
    edge = side // 4
    middle = pixels[:, edge : side - edge, edge : side - edge].reshape(3, -1).astype(np.float32) / np.float32(255)
    counts = np.bincount(_codes(middle), minlength=len(NAMES) + 1)[: len(NAMES)]
    best = int(counts.argmax())
    return NAMES[best] if counts[best] >= SHARE * middle.shape[1] else ""


def _codes(rgb: NDArray[np.float32]) -> NDArray[np.int64]:
    """Position in NAMES of each of the pixels (3, P); len(NAMES) for greys."""
    high, low = rgb.max(0), rgb.min(0)
    chroma = high - low
    r, g, b = rgb
    safe = np.maximum(chroma, 1e-6)
    sector = np.where(high == r, (g - b) / safe % 6, np.where(high == g, (b - r) / safe + 2, (r - g) / safe + 4))
    ends = np.array([end for end, _ in HUES])
    code = np.searchsorted(ends, sector * 60) % len(HUES)
    dark_orange = (code <= 1) & (high < 0.6) & (chroma > 0.12)
    code = np.where(dark_orange, NAMES.index("brown"), code)
    pale = chroma < 0.25 * np.maximum(high, 0.3)
    code = np.where(pale, len(NAMES), code)
    code = np.where(pale & (low > 0.8), NAMES.index("white"), code)
    return np.where(high < 0.12, NAMES.index("black"), code)
