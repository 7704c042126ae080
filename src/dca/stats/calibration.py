"""Calibration: how well the probability of an answer agrees with how often such answers are right.

A temperature T makes probabilities milder or sharper, softmax(log p / T), and is fitted on predictions for images that
the model has not seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

BINS = 15
# Probabilities are raised to this before their logarithm is taken: the smallest normal float32.
FLOOR = 2.0**-126
COLDEST, HOTTEST = 0.05, 20.0


def suitable_bins(images: int) -> int:
    """Number of bins for a drawing of so many predictions: about √n, from 3 to 15.

    >>> suitable_bins(5), suitable_bins(50), suitable_bins(1000)
    (3, 7, 15)
    """
    return min(BINS, max(3, round(math.sqrt(images))))


@dataclass(frozen=True)
class Bins:
    """Predictions in B equal bins of their confidence; empty bins hold zeros.

    count: (B,) predictions. right: (B,) correct ones. confidence: (B,) mean confidence.
    """

    count: NDArray[np.int64]
    right: NDArray[np.float64]
    confidence: NDArray[np.float64]


def bin_predictions(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> Bins:
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
    """Expected calibration error, ECE = Σ_b (n_b / n) |accuracy_b - confidence_b|; arguments as for `bin_predictions`.

    >>> round(calibration_error([0.9, 0.9, 0.6, 0.6], [True, False, True, True]), 3)
    0.4
    """
    table = bin_predictions(confidence, right, bins)
    gaps = np.abs(table.right - table.confidence * table.count)
    return float(gaps.sum() / max(1, table.count.sum()))


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows of N predictions.

    bins: accuracy by confidence. ece: expected calibration error over 15 bins, however many are drawn. confidence: mean
    probability of the predicted classes. accuracy: share of correct predictions.
    """

    bins: Bins
    ece: float
    confidence: float
    accuracy: float


def measure_reliability(confidence: ArrayLike, right: ArrayLike, bins: int | None = None) -> Reliability:
    """Compare confidence with accuracy; arguments as for `bin_predictions`, with a suitable number of bins.

    >>> found = measure_reliability([0.9, 0.9, 0.6, 0.6], [True, False, True, True])
    >>> round(found.ece, 3), found.confidence, found.accuracy, len(found.bins.count)
    (0.4, 0.75, 0.75, 3)
    """
    table = bin_predictions(confidence, right, bins or suitable_bins(np.size(confidence)))
    n = max(1, int(table.count.sum()))
    mean, share = float(np.sum(confidence)) / n, float(np.sum(right)) / n
    return Reliability(table, calibration_error(confidence, right), mean, share)


def apply_temperature(probabilities: Tensor, temperature: float) -> Tensor:
    """softmax(log p / T) of probabilities (N, C); the order of the classes stays. Rows of NaN stay NaN.

    In float64: in float32 the two best classes could become equal.

    >>> import torch
    >>> apply_temperature(torch.tensor([[0.8, 0.2]]), 0.5).numpy().round(3).tolist()
    [[0.941, 0.059]]
    """
    return (probabilities.double().clamp_min(FLOOR).log() / temperature).softmax(dim=-1)


def log_loss(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Mean of -log p of the right class. probabilities: (N, C), labels: (N,)."""
    own = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(own, FLOOR)).mean())


def fit_temperature(
    probabilities: NDArray[np.float64],
    labels: NDArray[np.int64],
    weights: NDArray[np.float64] | None = None,
    *,
    prior: float = 0.0,
) -> float:
    """The T in [0.05, 20] with the least log-loss of softmax(log p / T).

    The loss is convex in s = 1/T. Its slope, Σ_i w_i (E_q[l_i] - l_i,y) with l = log p and q = softmax(s l), grows
    with s, so Newton's method inside a shrinking bracket finds its zero.

    Args:
        probabilities: (N, C) of images that the model has not seen.
        labels: (N,) their classes.
        weights: (N,) of the images; all equal if None.
        prior: Weight of the belief that the second most probable class is the right one, in images and spread over
            all of them. Without it, predictions that are all correct lead to the lower bound of T.

    Returns:
        The temperature; 1.0 if there are no images.
    """
    if len(labels) == 0:
        return 1.0
    logs = np.log(np.maximum(probabilities, FLOOR))
    weights = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=float)
    second = np.sort(logs, axis=1)[:, -2] if logs.shape[1] > 1 else logs[:, 0]
    extra = prior * weights / weights.sum()
    target = float((weights * logs[np.arange(len(labels)), labels] + extra * second).sum())
    low, high, s = 1 / HOTTEST, 1 / COLDEST, 1.0
    for _ in range(100):
        slope, curvature = _slope(logs, weights + extra, s)
        slope -= target
        low, high = (low, s) if slope > 0 else (s, high)
        newton = s - slope / curvature if curvature > 0 else low
        following = newton if low < newton < high else math.sqrt(low * high)
        if abs(following - s) <= 1e-12 * s:
            break
        s = following
    return float(np.clip(1 / s, COLDEST, HOTTEST))


def _slope(logs: NDArray[np.float64], weights: NDArray[np.float64], s: float) -> tuple[float, float]:
    """First and second derivative of Σ_i w_i log Σ_c exp(s l_ic) in s. logs: (N, C), weights: (N,)."""
    powers = np.exp(s * (logs - logs.max(axis=1, keepdims=True)))
    q = powers / powers.sum(axis=1, keepdims=True)
    mean = (q * logs).sum(axis=1)
    spread = (q * (logs - mean[:, None]) ** 2).sum(axis=1)
    return float((weights * mean).sum()), float((weights * spread).sum())
