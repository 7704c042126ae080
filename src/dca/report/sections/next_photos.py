"""Which photos to take next: the classes where errors are most frequent, and what they are taken for."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dca.report.page import Section
from dca.report.reported_model import ReportedModel, UnseenPredictions
from dca.stats.confusion import order_by_need

MOST, EXAMPLES, SIDE = 6, 3, 88


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """The classes that need photos most."""
    predictions = reported.predictions
    if predictions is None:
        return "Needs labelled images that the model has not seen: give some, or fit with --estimate."
    if predictions.right.all():
        return f"All answers for {predictions.basis} are right, so no class needs photos more than another."
    have = Counter(str(reported.model.classes_[image.label]) for image in reported.model.training_images_)
    needed = order_by_need(predictions.confusion(len(reported.labels)))[:MOST]
    rows = [_describe_class(reported, predictions, c, have) for c in needed]
    model = reported.folder.name if reported.folder else reported.name
    return {"rows": rows, "basis": predictions.basis, "model": shlex.quote(model)}


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
