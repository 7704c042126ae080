"""Folds: every class loses the same share in each of them, copies leave together, and every class keeps an image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dca.stats.folds import Integers, Mask, assign_folds, fold_shortage, number_of_folds

# Label and group of each image; groups may span classes.
IMAGES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 15)), min_size=1, max_size=60)


def columns(images: list[tuple[int, int]]) -> tuple[Integers, Integers]:
    labels, groups = zip(*images, strict=True)
    return np.array(labels), np.array(groups)


def deal(labels: Integers, order: Integers, K: int) -> Mask:
    """Literally, without copies: image p of a class of n is left out in the folds p, p + min(n, K), ..."""
    out = np.zeros((K, len(labels)), dtype=bool)
    for image, label in enumerate(labels):
        own = [i for i in np.argsort(order) if labels[i] == label]
        if len(own) > 1:
            for fold in range(K):
                out[fold, image] = any(p % K == fold for p in [own.index(image)]) or (
                    len(own) < K and fold % len(own) == own.index(image)
                )
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(2, 5), st.integers(0, 99))
def test_folds_without_copies_are_dealt_out(counts: list[int], K: int, seed: int):
    labels = np.repeat(np.arange(len(counts)), counts)
    order = np.random.default_rng(seed).permutation(len(labels))
    found = assign_folds(labels, np.arange(len(labels)), order, K)
    assert (found == deal(labels, order, K)).all()
    for label, n in enumerate(counts):
        taken = found[:, labels == label].sum(axis=1)
        assert taken.max() - taken.min() <= 1, "every fold takes the same share of a class"
        assert n == 1 or found[:, labels == label].any(axis=0).all(), "every image is left out"


@settings(max_examples=100, deadline=None)
@given(IMAGES, st.integers(2, 5), st.integers(0, 99))
def test_copies_leave_together_and_every_class_keeps_an_image(images: list[tuple[int, int]], K: int, seed: int):
    labels, groups = columns(images)
    order = np.random.default_rng(seed).permutation(len(labels))
    found = assign_folds(labels, groups, order, K)
    for group in set(groups.tolist()):
        assert (found[:, groups == group] == found[:, groups == group][:, :1]).all()
    for label in set(labels.tolist()):
        assert (~found[:, labels == label]).any(axis=1).all(), "every class keeps a training image"
        if len(set(groups[labels == label].tolist())) == 1:
            assert not found[:, labels == label].any()
    shuffled = np.random.default_rng(seed + 1).permutation(len(labels))
    again = assign_folds(labels[shuffled] + 7, groups[shuffled] * 3, order[shuffled], K)
    assert (again == found[:, shuffled]).all(), "neither the order of images nor numbers matter"


def test_balanced_classes_lose_the_same_number_in_every_fold():
    labels = np.repeat(np.arange(3), 5)
    found = assign_folds(labels, np.arange(15), np.arange(15), 4)
    for out in found:
        assert len({int(out[labels == c].sum()) for c in range(3)}) == 1, "no label shows in the counts"


def test_rare_images_are_left_out_in_every_fold_in_turn():
    labels = np.repeat([0, 1], [8, 2])
    found = assign_folds(labels, np.arange(10), np.arange(10), 4)
    assert found[:, labels == 0].sum(axis=1).tolist() == [2, 2, 2, 2]
    assert found[:, labels == 1].astype(int).tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize(("most", "expected"), [(5, 3), (2, 2), (4, 3)])
def test_the_number_of_folds_counts_groups_not_images(most: int, expected: int):
    assert number_of_folds(np.array([0, 0, 0, 1, 1]), np.array([0, 4, 1, 2, 3]), most) == expected
    assert number_of_folds(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 2, 3]), most) == 2


def test_the_shortage_is_the_mean_over_the_models_that_predict_an_image():
    labels, groups = np.repeat([0, 1, 2], [6, 3, 1]), np.array([0, 1, 2, 3, 4, 5, 6, 7, 7, 8])
    left_out = assign_folds(labels, groups, np.arange(10), 4)
    expected = []
    for image, label in enumerate(labels):
        n = len(set(groups[labels == label].tolist()))
        lacks = [1 / len(set(groups[(labels == label) & ~out].tolist())) - 1 / n for out in left_out if out[image]]
        expected.append(np.mean(lacks) if lacks else 0.0)
    assert fold_shortage(labels, groups, left_out) == pytest.approx(np.array(expected))
    assert expected[7] == expected[8] == 0.5, "copies count as one"
