"""Folds for predictions by models that have not seen an image, and what such models lack.

Every fold takes the same share out of every class, as nearly as whole images allow. Otherwise the composition of what
is left would tell the label: where two rare images were left out in two of four folds and those of a large class in all
four, the two would be predicted by models of one rare image and most of the others by models of two, and of noise
nearly three quarters would seem to be recognised. So a class with fewer images than there are folds leaves each of them
out several times, with other images of the larger classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def number_of_folds(labels: Integers, groups: Integers, most: int) -> int:
    """`most`, or the largest number of groups that a class has, and at least 2. labels, groups: (N,).

    >>> number_of_folds(np.array([0, 0, 0, 1, 1]), np.arange(5), 4)
    3
    """
    _, counts = np.unique(np.unique(np.stack([labels, groups]), axis=1)[0], return_counts=True)
    return max(2, min(most, int(counts.max(initial=0))))


def assign_folds(labels: Integers, groups: Integers, order: Integers, K: int) -> Mask:
    """Which images each of K folds leaves out, (K, N).

    The groups of a class are dealt out by their places `order` (N,), that of a group being its first, and every class
    starts at the first fold. One with fewer groups than folds is dealt out again. Images of a group, copies of each
    other, leave together, also where they are of several classes. Every class keeps an image in every fold: one of a
    single group is never left out.

    >>> assign_folds(np.array([0, 0, 0, 1, 1]), np.arange(5), np.arange(5), 3).astype(int)
    array([[1, 0, 0, 1, 0],
           [0, 1, 0, 0, 1],
           [0, 0, 1, 1, 0]])
    """
    numbers, group_of = np.unique(groups, return_inverse=True)
    first = np.full(len(numbers), len(order))
    np.minimum.at(first, group_of, order)
    classes = sorted(set(labels.tolist()), key=lambda c: order[labels == c].min())
    members = {c: np.unique(group_of[labels == c]) for c in classes}
    out, dealt = np.zeros((K, len(numbers)), dtype=bool), np.zeros(len(numbers), dtype=bool)
    for own in members.values():
        free = own[~dealt[own]]
        cycle = min(len(own), K)
        for place, group in enumerate(free[np.argsort(first[free])], start=len(own) - len(free)):
            out[place % cycle :: cycle, group] = True
        dealt[free] = True
    for own in members.values():
        out[:, own] &= ~out[:, own].all(axis=1, keepdims=True)
    left_out: Mask = out[:, group_of]
    return left_out


def fold_shortage(labels: Integers, groups: Integers, left_out: Mask) -> NDArray[np.float64]:
    """What the models that predict each image lack of its class, (N,): the mean of 1/n' - 1/n where they saw n' of n.

    labels, groups: (N,); images of a group, copies of each other, count as one. left_out: (K, N), of `assign_folds`; 0
    for images that are never left out.

    >>> left_out = np.array([[True, False, True, False], [False, True, False, True]])
    >>> fold_shortage(np.array([0, 0, 1, 1]), np.arange(4), left_out).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    shortage = np.zeros(len(labels))
    _, different = np.unique(np.stack([labels, groups]), axis=1, return_index=True)
    for label in np.unique(labels):
        once = different[labels[different] == label]
        lacks = 1 / (len(once) - left_out[:, once].sum(axis=1)) - 1 / len(once)
        own = left_out[:, labels == label]
        shortage[labels == label] = lacks @ own / own.sum(axis=0).clip(min=1)
    return shortage
