"""Labels of a dataset that look wrong, by models that have not seen the image in question."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.clip import CLIP
from dca.core.errors import UserError
from dca.data.dataset import Dataset, ImageLike
from dca.data.hashing import copy_pairs
from dca.engine.session import Session
from dca.model.classifier import Classifier
from dca.model.estimate import Estimate
from dca.model.findings import ODDS, Row, doubtful_labels


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
