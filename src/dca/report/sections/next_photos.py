"""Which photos to take next: the classes where errors are most frequent, and what they are taken for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from dca.report.page import Section
from dca.report.reported_model import ReportedModel, UnseenPredictions

MOST, EXAMPLES, SIDE = 6, 3, 88


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """The classes that need photos most."""
    predictions = reported.predictions
    if predictions is None:
        return "Needs labelled images that the model has not seen: give some, or fit with --estimate."
    if predictions.right.all():
        return f"All answers for {predictions.basis} are right, so no class needs photos more than another."
    have = Counter(str(reported.model.classes_[image.label]) for image in reported.model.training_images_)
    rows = [
        _describe_class(reported, predictions, c, have) for c in rank_by_need(predictions, len(reported.labels))[:MOST]
    ]
    return {"rows": rows, "basis": predictions.basis, "model": reported.name}


def rank_by_need(predictions: UnseenPredictions, classes: int) -> list[int]:
    """Classes with errors, by the share of images that they lose or take from others.

    Half an image is added to the errors and one to the images, so that a single image does not decide.
    """
    counts = predictions.confusion(classes)
    missed = counts.sum(axis=1) - counts.diagonal()
    taken = counts.sum(axis=0) - counts.diagonal()
    images = counts.sum(axis=1)
    need = (missed + 0.5 * taken + 0.5) / (images + 1)
    return [int(c) for c in np.argsort(-need, kind="stable") if missed[c] + taken[c] > 0]


def _describe_class(
    reported: ReportedModel, predictions: UnseenPredictions, c: int, have: Counter[str]
) -> dict[str, Any]:
    """What is known about one class."""
    labels, counts = reported.labels, predictions.confusion(len(reported.labels))
    own = [n for n in predictions.mistakes if predictions.truth[n] == c]
    others = counts[c] + counts[:, c]
    others[c] = 0
    examples = own[:EXAMPLES]
    return {
        "name": labels[c],
        "missed": len(own),
        "n": int(counts[c].sum()),
        "taken": int(counts[:, c].sum() - counts[c, c]),
        "rival": labels[int(others.argmax())],
        "have": have.get(labels[c], 0),
        "examples": reported.thumbnails(examples, SIDE),
    }


SECTION = Section("next_photos", "Which photo to take next", build)
