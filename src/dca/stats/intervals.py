"""Accuracies with their 95 % intervals: Wilson's intervals of a share, and the mean over classes with its weight."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

# The normal quantile of a two-sided 95 % interval.
Z95 = 1.959963984540054
# Held-out predictions come from models that share training images, so that their errors are not independent: n of them
# are worth 0.55 n. Chosen on training and validation images and on noise: docs/closed-form.md.
WORTH = 0.55


def wilson_interval(accuracy: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was measured on n images; (0, 1) for none.

    >>> [round(end, 3) for end in wilson_interval(0.9, 100)]
    [0.826, 0.945]
    """
    if n <= 0:
        return 0.0, 1.0
    centre = accuracy + Z95**2 / (2 * n)
    reach = Z95 * math.sqrt(accuracy * (1 - accuracy) / n + (Z95 / (2 * n)) ** 2)
    scale = 1 + Z95**2 / n
    # The formula gives 0 and 1 at the ends; rounding must not exclude them.
    low = 0.0 if accuracy <= 0 else max(0.0, (centre - reach) / scale)
    return low, 1.0 if accuracy >= 1 else min(1.0, (centre + reach) / scale)


def cautious_interval(accuracy: float, n: float) -> tuple[float, float]:
    """Wilson's interval with continuity correction (Newcombe, Statistics in Medicine 17, 1998): (0, 1) for n = 0.

    It covers at least 95 % also where n is small or the accuracy near 0 or 1.

    >>> [round(end, 3) for end in cautious_interval(0.9, 100)]
    [0.82, 0.948]
    >>> cautious_interval(1.0, 12)[1]
    1.0
    """
    return (1 - _upper_end(1 - accuracy, n), _upper_end(accuracy, n)) if n > 0 else (0.0, 1.0)


def held_out_interval(accuracy: float, n: float) -> tuple[float, float]:
    """The cautious interval of an accuracy that n held-out predictions of training images tell."""
    return cautious_interval(accuracy, WORTH * n)


def _upper_end(p: float, n: float) -> float:
    q = 1 - p
    if n * q <= 0.5:
        return 1.0
    root = math.sqrt(max(Z95**2 + 2 - 1 / n + 4 * p * (n * q - 1), 0.0))
    return min(1.0, (2 * n * p + Z95**2 + 1 + Z95 * root) / (2 * (n + Z95**2)))


def effective_images(labels: ArrayLike, groups: ArrayLike | None = None) -> float:
    """Size of a balanced sample whose mean over classes varies as much: C² / Σ_c 1/n_c.

    groups: (N,) a number that copies share; those of a class count as one image. None: there are no copies.

    >>> round(effective_images([0] * 200 + [1] * 2), 1), effective_images([0, 0, 0, 1, 1], [7, 7, 8, 9, 10])
    (7.9, 4.0)
    """
    classes = np.asarray(labels)
    if groups is not None:
        classes, _ = np.unique(np.stack([classes, np.asarray(groups)]), axis=1)
    _, counts = np.unique(classes, return_counts=True)
    return float(len(counts) ** 2 / (1 / counts).sum())


def macro_accuracy(right: ArrayLike, labels: ArrayLike, groups: ArrayLike | None = None) -> tuple[float, float]:
    """Mean of the accuracies of the C classes that have images, and the number of images that it is worth.

    That number is N if all classes have equally many images (`effective_images`).

    Args:
        right: (N,) whether a prediction is correct.
        labels: (N,) classes of the images; N > 0.
        groups: (N,) a number that copies share; those of a class count as one image. None: there are no copies.

    Returns:
        The accuracy, and the effective number of images.
    """
    hits, classes = np.asarray(right, dtype=float), np.asarray(labels)
    pairs = np.stack([classes, np.arange(len(classes)) if groups is None else np.asarray(groups)])
    (classes_of_pairs, _), pair_of, sizes = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    each_image = np.bincount(pair_of.ravel(), weights=hits) / sizes
    _, index, counts = np.unique(classes_of_pairs, return_inverse=True, return_counts=True)
    each = np.bincount(index, weights=each_image) / counts
    return float(each.mean()), effective_images(classes_of_pairs)
