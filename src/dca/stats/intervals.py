"""Accuracies with their 95 % intervals: of a share, by Wilson or exact, and of a mean over classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca.stats.beta import beta_quantile

# The normal quantile of a two-sided 95 % interval, and the probability of each of its tails.
Z95, TAIL = 1.959963984540054, 0.025
# One image, but for rounding.
ONE = 1 - 1e-9
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


def exact_interval(accuracy: float, n: float) -> tuple[float, float]:
    """The exact 95 % interval of a share (Clopper and Pearson, Biometrika 26, 1934), also of fractions of images.

    It covers at least 95 % also where n is small or the accuracy near 0 or 1; (0, 1) for n = 0. Less than one image,
    right or wrong, is none.

    >>> [round(end, 3) for end in exact_interval(0.9, 100)], exact_interval(1.0, 12)[1]
    ([0.824, 0.951], 1.0)
    """
    right, wrong = accuracy * n, (1 - accuracy) * n
    low = beta_quantile(TAIL, right, wrong + 1) if right >= ONE else 0.0
    return low, beta_quantile(1 - TAIL, right + 1, wrong) if wrong >= ONE else 1.0


def held_out_interval(accuracy: float, n: float) -> tuple[float, float]:
    """The exact interval of an accuracy that n held-out predictions of training images tell."""
    return exact_interval(accuracy, WORTH * n)


def held_out_macro_interval(
    accuracy: float, right: ArrayLike, labels: ArrayLike, groups: ArrayLike | None = None
) -> tuple[float, float]:
    """The interval of a mean over classes that held-out predictions tell.

    It is that of as many images as the mean is worth (`effective_images`). That says too little of rare classes, a few
    images of which may be mistaken by chance. So the upper end is at least that of the classes one by one: with p_c and
    u_c accuracy and upper end of each, p + √(Σ_c (u_c - p_c)²) / C (Zou and Donner, Statistics in Medicine 27, 2008).

    Args:
        accuracy: Mean over classes, expected of the model; at least that of the predictions.
        right, labels, groups: Of the predictions, as for `macro_accuracy`.
    """
    low, high = held_out_interval(accuracy, effective_images(labels, groups))
    if accuracy >= 1:
        return low, high
    _, images = np.unique(_different_images(labels, groups)[0], return_counts=True)
    _, class_of = np.unique(np.asarray(labels), return_inverse=True)
    wrong = np.bincount(class_of, image_weights(labels, groups) * ~np.asarray(right, dtype=bool))
    C, wrong = len(wrong), wrong * (1 - accuracy) / wrong.mean()
    reach = [held_out_interval(1 - q, n)[1] - (1 - q) for q, n in zip(wrong.tolist(), images.tolist(), strict=True)]
    return low, max(high, min(1.0, accuracy + math.hypot(*reach) / C))


def effective_images(labels: ArrayLike, groups: ArrayLike | None = None) -> float:
    """Size of a balanced sample whose mean over classes varies as much: C² / Σ_c 1/n_c.

    groups: (N,) a number that copies share; those of a class count as one image. None: there are no copies.

    >>> round(effective_images([0] * 200 + [1] * 2), 1), effective_images([0, 0, 0, 1, 1], [7, 7, 8, 9, 10])
    (7.9, 4.0)
    """
    _, counts = np.unique(_different_images(labels, groups)[0], return_counts=True)
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
    wrong = ~np.asarray(right, dtype=bool)
    # By the wrong ones, so that all right is exactly 1.
    return max(0.0, 1 - float(wrong @ image_weights(labels, groups))), effective_images(labels, groups)


def image_weights(labels: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.float64]:
    """Weights (N,) of images that sum to one: all classes have the same, and so have all different images of a class.

    labels: (N,). groups: (N,) as for `macro_accuracy`.

    >>> image_weights([0, 0, 0, 1], [7, 7, 8, 9]).tolist()
    [0.125, 0.125, 0.25, 0.5]
    """
    classes, image_of, copies = _different_images(labels, groups)
    _, class_of, images = np.unique(classes, return_inverse=True, return_counts=True)
    weights: NDArray[np.float64] = (1 / (len(images) * images[class_of] * copies))[image_of]
    return weights


def _different_images(
    labels: ArrayLike, groups: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Classes of the M different images of each class (M,), which of them an image is (N,), and their copies (M,)."""
    classes = np.asarray(labels)
    pairs = np.stack([classes, np.arange(len(classes)) if groups is None else np.asarray(groups)])
    found, image_of, copies = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    return found[0], image_of.ravel(), copies
