"""The few numbers the pictures compute themselves: intervals and calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Z95 = 1.959963984540054


def wilson(right: float, count: float) -> tuple[float, float]:
    """95 % interval of a share (Wilson score), honest near 0 and 1 and for few images.

    >>> low, high = wilson(10, 10)
    >>> round(low, 3), high
    (0.722, 1.0)
    """
    if count <= 0:
        return 0.0, 1.0
    share, slack = right / count, _Z95**2 / count
    middle = (share + slack / 2) / (1 + slack)
    half = _Z95 * np.sqrt(share * (1 - share) / count + slack / (4 * count)) / (1 + slack)
    # Rounding must not push an end past the share itself.
    return max(0.0, min(share, float(middle - half))), min(1.0, max(share, float(middle + half)))


@dataclass(frozen=True)
class Bins:
    """Predictions sorted by confidence into equal steps of [0, 1]; empty ones hold zeros."""

    count: NDArray[np.int64]
    right: NDArray[np.float64]
    confidence: NDArray[np.float64]

    @property
    def ece(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy, weighted by count."""
        gaps = np.abs(self.right - self.confidence * self.count)
        return float(gaps.sum() / max(1, self.count.sum()))


def binned(probabilities: ArrayLike, correct: ArrayLike, bins: int) -> Bins:
    """Sort N predictions by the probability of what was said.

    probabilities, correct: (N,). Returns per bin the count, the number right and the mean confidence.
    """
    p, hit = np.asarray(probabilities, dtype=float), np.asarray(correct, dtype=float)
    if p.shape != hit.shape or p.ndim != 1:
        raise ValueError(f"need two lists of one length, got shapes {p.shape} and {hit.shape}")
    index = np.clip((p * bins).astype(int), 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    total = np.bincount(index, weights=p, minlength=bins)
    right = np.bincount(index, weights=hit, minlength=bins).astype(float)
    return Bins(count, right, total / np.maximum(1, count))
