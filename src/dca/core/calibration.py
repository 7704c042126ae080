"""Calibration: how well the probability of an answer agrees with how often such answers are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 15


@dataclass(frozen=True)
class Bins:
    """Predictions in B equal bins of their confidence; empty bins hold zeros.

    count: (B,) predictions. right: (B,) correct ones. confidence: (B,) mean confidence.
    """

    count: NDArray[np.int64]
    right: NDArray[np.float64]
    confidence: NDArray[np.float64]


def binned(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> Bins:
    """Put N predictions into equal bins of [0, 1].

    Args:
        confidence: (N,) probability of the predicted class.
        right: (N,) whether the prediction is correct.
        bins: Number of bins.

    Returns:
        Counts and means of each bin.

    Raises:
        ValueError: If the two lists do not have one length.
    """
    sure, hit = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    if sure.shape != hit.shape or sure.ndim != 1:
        raise ValueError(f"need two lists of the same length, got shapes {sure.shape} and {hit.shape}")
    index = np.clip((sure * bins).astype(int), 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    total = np.bincount(index, weights=sure, minlength=bins)
    right_ones = np.bincount(index, weights=hit, minlength=bins).astype(float)
    return Bins(count, right_ones, total / np.maximum(1, count))


def calibration_error(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error, ECE = Σ_b (n_b / n) |accuracy_b - confidence_b|; arguments as for `binned`.

    >>> round(calibration_error([0.9, 0.9, 0.6, 0.6], [True, False, True, True]), 3)
    0.4
    """
    table = binned(confidence, right, bins)
    gaps = np.abs(table.right - table.confidence * table.count)
    return float(gaps.sum() / max(1, table.count.sum()))
