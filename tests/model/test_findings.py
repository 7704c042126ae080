"""What a fit says about its training images."""

from __future__ import annotations

import pytest

from dca.model.findings import ConfusedPair, confused_pairs, doubtful_labels
from dca.model.records import HeldOutPrediction, TrainingImage

LABELS = ["cat", "dog", 7]
ALONE = TrainingImage(0, "alone.jpg", "")


def row(label: int, predicted: int, probability: float, own: float) -> TrainingImage:
    return TrainingImage(label, f"{label}/{predicted}.jpg", "", HeldOutPrediction(predicted, probability, own))


def test_labels_much_less_probable_than_another_are_doubtful_the_worst_first() -> None:
    images = [
        row(0, 1, 0.9, 0.05),
        row(1, 1, 0.9, 0.9),
        row(2, 0, 0.8, 0.01),
        row(0, 1, 0.5, 0.4),
        TrainingImage(0, "alone.jpg", ""),
    ]
    found = doubtful_labels(images, LABELS)
    assert [(r.index, r.image, r.label, r.suggested) for r in found] == [
        (2, "2/0.jpg", "7", "cat"),
        (0, "0/1.jpg", "cat", "dog"),
    ]
    assert found[0].probability == pytest.approx(0.8)
    assert len(doubtful_labels(images, LABELS, odds=1.2)) == 3


def test_pairs_that_are_confused_more_than_once_are_named_in_both_directions() -> None:
    images = [
        row(0, 1, 0.9, 0.05),
        row(1, 0, 0.9, 0.05),
        row(2, 0, 0.8, 0.1),
        row(0, 0, 1.0, 1.0),
        TrainingImage(0, "alone.jpg", ""),
    ]
    assert confused_pairs(images, LABELS) == (ConfusedPair(("cat", "dog"), 2),)
