"""Confusion matrices: counts by true and predicted class, and classes in the order of their errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def confusion_matrix(truth: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Number of images by true class (row) and predicted class (column), (C, C); both lists are (N,).

    >>> confusion_matrix([0, 0, 1], [0, 1, 1], 2).tolist()
    [[1, 1], [0, 1]]
    >>> confusion_matrix([], [], 2).tolist()
    [[0, 0], [0, 0]]
    """
    counts = np.zeros((classes, classes), dtype=np.int64)
    # Empty lists would be floats.
    np.add.at(counts, (np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)), 1)
    return counts


def order_by_error(counts: NDArray[np.int64]) -> list[int]:
    """Classes that are tested or predicted, the highest share of errors first; counts: (C, C).

    Between equal shares, the class with more errors comes first, then the one that others are taken for more often.
    Classes without images come last.

    >>> order_by_error(np.array([[9, 1, 0], [4, 1, 0], [0, 0, 0]]))
    [1, 0]
    """
    images, hits = counts.sum(axis=1), counts.diagonal()
    present = [int(c) for c in np.flatnonzero(images + counts.sum(axis=0))]
    errors, false_alarms = images - hits, counts.sum(axis=0) - hits
    share = errors / np.maximum(images, 1)
    return sorted(present, key=lambda c: (not images[c], -share[c], -errors[c], -false_alarms[c], c))


def count_confusions(counts: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """All wrong pairs of counts (C, C): true class, answer and number of images, the most frequent first."""
    wrong = counts - np.diag(counts.diagonal())
    pairs = [(int(a), int(b), int(wrong[a, b])) for a, b in np.argwhere(wrong)]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[:2]))


def select_classes(order: Sequence[int], pairs: Sequence[tuple[int, int, int]], most: int) -> list[int]:
    """At most so many classes in the given order: all of them, or those of the most frequent confusions.

    With many classes, those with the highest error rates are hardly ever taken for each other.
    """
    if len(order) <= most:
        return list(order)
    ranked = dict.fromkeys([c for a, b, _ in pairs for c in (a, b)] + list(order))
    kept = set(list(ranked)[:most])
    return [c for c in order if c in kept]


def order_by_need(counts: NDArray[np.int64]) -> list[int]:
    """Classes with errors, by the share of images that they lose or take from others; counts: (C, C).

    Half an image is added to the errors and one to the images, so that a single image does not decide.

    >>> order_by_need(np.array([[9, 1, 0], [4, 1, 0], [0, 0, 7]]))
    [1, 0]
    """
    missed = counts.sum(axis=1) - counts.diagonal()
    taken = counts.sum(axis=0) - counts.diagonal()
    need = (missed + 0.5 * taken + 0.5) / (counts.sum(axis=1) + 1)
    return [int(c) for c in np.argsort(-need, kind="stable") if missed[c] + taken[c] > 0]
