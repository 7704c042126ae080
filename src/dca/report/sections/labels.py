"""Training images whose labels look wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca.core.text import to_printable
from dca.model.findings import ODDS, doubtful_labels
from dca.report.page import Section
from dca.report.subject import Subject

MOST, SIDE = 18, 120


def build(subject: Subject) -> Mapping[str, Any] | str:
    """The most doubtful images."""
    model, gallery = subject.model, subject.gallery
    if not any("held_out" in row for row in model.draw_):
        return "No predictions for left-out training images: fit with --estimate, or try dca check-labels DATA."
    known = {} if gallery is None else {sha256: place for place, sha256 in enumerate(gallery.sha256)}
    # The hash takes the place of the name, so that images of the same name are kept apart.
    rows = doubtful_labels([{**row, "name": n} for n, row in enumerate(model.draw_)], model.classes_.tolist())
    shown = []
    for row in rows[:MOST]:
        drawn = model.draw_[row["image"]]
        picture = subject.training_thumbnail(known.get(drawn["sha256"], -1), SIDE)
        shown.append({**row, "name": to_printable(drawn["name"]), "picture": picture})
    return {"rows": shown, "count": len(rows), "odds": f"{ODDS:g}", "gallery": gallery is not None}


SECTION = Section("labels", "Labels to check", build)
