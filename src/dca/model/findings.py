"""What a fit found out about its training images: labels that look wrong, classes that are confused, and more.

Labels of a dataset that look wrong, by models that have not seen the image in question.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.images.decode import ImageLike
from dca.images.hashing import copy_pairs
from dca.methods.base import Method
from dca.model.classifier import Classifier
from dca.model.estimate import Estimate
from dca.training.session import Session

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


@dataclass(frozen=True)
class LabelCheck:
    """What was found about the labels of the training images of a dataset.

    Attributes:
        images: Number of training images.
        doubtful: Images whose label looks wrong, the most doubtful first: `image` (its path), `label`, `suggested`,
            `probability` of the suggested label and `own`, that of the given one; `number`, its place among the
            training images. Candidates to look at, not facts.
        conflicts: Pairs of copies under two labels, of which at least one is wrong: `images` and `labels`.
        not_checked: Paths of images that cannot be left out, being the only ones of their class.
        estimate: Accuracy of the models that checked the labels.
    """

    images: int
    doubtful: list[Row]
    conflicts: list[Row]
    not_checked: list[str]
    estimate: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dca check-labels --json` prints them."""
        rows = [{name: value for name, value in row.items() if name != "number"} for row in self.doubtful]
        return {
            "images": self.images,
            "checked": self.images - len(self.not_checked),
            "doubtful": rows,
            "conflicts": self.conflicts,
            "not_checked": self.not_checked,
            "estimate": self.estimate.to_dict(),
        }


def check_labels(
    dataset: Dataset,
    session: Session,
    *,
    backbone: str | Path | CLIP = "mini",
    precision: str = "auto",
    odds: float = ODDS,
) -> LabelCheck:
    """Fit the default method on all training images and look for labels that look wrong; nothing is written.

    Args:
        dataset: The images; only the training part is checked.
        session: Loads backbones, images and features.
        backbone: As for `Classifier`.
        precision: As for `Classifier`.
        odds: How many times as probable as the given label another one must be.

    Returns:
        What was found.

    Raises:
        UserError: As for `Classifier.fit`, and if no image can be left out.
    """
    source = dataclasses.replace(dataset, val=(), test=())
    model = Classifier(backbone=backbone, precision=precision).learn(source, session)
    if model.estimate_ is None:
        raise UserError(
            "no label can be checked: every class has one training image, or copies of one",
            hint="give at least two different images per class",
        )
    images = [item.image for item in source.train]
    paths = [_path(image, number) for number, image in enumerate(images)]
    rows = [{**row, "name": number} for number, row in enumerate(model.draw_)]
    doubtful = [
        {**row, "image": paths[row["image"]], "number": row["image"]}
        for row in doubtful_labels(rows, source.labels, odds)
    ]
    unknown = [path for path, row in zip(paths, rows, strict=True) if "held_out" not in row]
    return LabelCheck(len(images), doubtful, _conflicts(source, paths, session), unknown, model.estimate_)


def _conflicts(source: Dataset, paths: Sequence[str], session: Session) -> list[Row]:
    """Copies and near-copies under two labels."""
    images, labels = [item.image for item in source.train], [item.label for item in source.train]
    exact, near = copy_pairs(session.sha256_all(images), session.thumbnails(images))
    return [
        {"images": [paths[a], paths[b]], "labels": [str(source.labels[labels[a]]), str(source.labels[labels[b]])]}
        for a, b in (*exact, *near)
        if labels[a] != labels[b]
    ]


def _path(image: ImageLike, number: int) -> str:
    """Where an image is, as the caller named the place."""
    return str(image) if isinstance(image, Path) else f"image {number}"
