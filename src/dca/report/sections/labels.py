"""Training images whose labels look wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca.core.text import to_printable
from dca.model.findings import doubtful_labels, usual_odds
from dca.report.page import Section
from dca.report.reported_model import ReportedModel

MOST, SIDE = 18, 120


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """The most doubtful images."""
    model, gallery = reported.model, reported.gallery
    if not any(image.held_out for image in model.training_images_):
        return "No held-out predictions of training images: fit with --estimate, or try dca check-labels DATA."
    known = {} if gallery is None else {sha256: index for index, sha256 in enumerate(gallery.sha256)}
    doubtful = doubtful_labels(model.training_images_, model.classes_.tolist())
    rows = []
    for row in doubtful[:MOST]:
        index = known.get(model.training_images_[row.index].sha256, -1)
        thumbnail = reported.training_thumbnail(index, SIDE)
        rows.append({**row.to_dict(), "name": to_printable(row.image), "thumbnail": thumbnail})
    odds = f"{usual_odds(len(model.classes_)):.0f}"
    return {"rows": rows, "count": len(doubtful), "odds": odds, "gallery": gallery is not None}


SECTION = Section("labels", "Labels to check", build)
