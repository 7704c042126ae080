"""What a fit says about its training images."""

from __future__ import annotations

from typing import Any

import pytest

from dca.model.findings import confused, doubtful_labels

LABELS = ["cat", "dog", 7]


def row(label: int, predicted: int, probability: float, own: float) -> dict[str, Any]:
    return {
        "name": f"{label}/{predicted}.jpg",
        "label": label,
        "sha256": "",
        "held_out": {"label": predicted, "probability": probability, "own": own},
    }


def test_labels_much_less_probable_than_another_are_doubtful_the_worst_first() -> None:
    draw = [row(0, 1, 0.9, 0.05), row(1, 1, 0.9, 0.9), row(2, 0, 0.8, 0.01), row(0, 1, 0.5, 0.4), {"label": 0}]
    found = doubtful_labels(draw, LABELS)
    assert [(r["image"], r["label"], r["suggested"]) for r in found] == [
        ("2/0.jpg", "7", "cat"),
        ("0/1.jpg", "cat", "dog"),
    ]
    assert found[0]["probability"] == pytest.approx(0.8)
    assert len(doubtful_labels(draw, LABELS, odds=1.2)) == 3


def test_pairs_that_are_confused_more_than_once_are_named_in_both_directions() -> None:
    draw = [row(0, 1, 0.9, 0.05), row(1, 0, 0.9, 0.05), row(2, 0, 0.8, 0.1), row(0, 0, 1.0, 1.0), {"label": 0}]
    assert confused(draw, LABELS) == [{"labels": ["cat", "dog"], "images": 2}]
