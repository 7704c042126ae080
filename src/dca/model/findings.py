"""What a fit found out about its training images: labels that look wrong, classes that are confused, and more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dca.methods.interface import Method

# A label looks wrong if another class is at least this many times as probable for an image that was left out.
ODDS = 10.0
MOST_CONFUSED, LEAST_CONFUSED = 3, 2

Row = dict[str, Any]


def findings(method: Method, draw: Sequence[Row], labels: Sequence[Any]) -> Row:
    """All findings as plain values.

    Args:
        method: The finished method.
        draw: The training images, as `Classifier.draw_` has them.
        labels: Label of each class.

    Returns:
        "doubtful_labels" and "confused" (lists of rows), "more_images" (images per class and expected change of
        the accuracy, or None) and "notes" (texts).
    """
    gain = method.expected_gain()
    return {
        "doubtful_labels": doubtful_labels(draw, labels),
        "confused": confused(draw, labels),
        "more_images": None if gain is None else {"shots": gain[0], "gain": gain[1]},
        "notes": method.notes(),
    }


def doubtful_labels(draw: Sequence[Row], labels: Sequence[Any], odds: float = ODDS) -> list[Row]:
    """Images whose own label is much less probable than another, the least probable first.

    Each row has the name of the image, its label, the suggested label, and the probabilities of both by a model that
    has not seen the image.
    """
    known = [(row, row["held_out"]) for row in draw if "held_out" in row]
    rows = [
        {
            "image": row["name"],
            "label": str(labels[row["label"]]),
            "suggested": str(labels[held["label"]]),
            "probability": held["probability"],
            "own": held["own"],
        }
        for row, held in known
        if held["label"] != row["label"] and held["probability"] >= odds * held["own"]
    ]
    return sorted(rows, key=lambda row: row["own"])


def confused(draw: Sequence[Row], labels: Sequence[Any]) -> list[Row]:
    """The pairs of classes that left-out images were confused between most often, with the number of images."""
    wrong = [
        tuple(sorted((row["label"], row["held_out"]["label"])))
        for row in draw
        if "held_out" in row and row["held_out"]["label"] != row["label"]
    ]
    pairs = Counter(wrong).most_common(MOST_CONFUSED)
    return [
        {"labels": [str(labels[a]), str(labels[b])], "images": count}
        for (a, b), count in pairs
        if count >= LEAST_CONFUSED
    ]
