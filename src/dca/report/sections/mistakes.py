"""The surest wrong answers, with what the model looked at and the training images nearest to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca.model.explain import explain
from dca.report import images
from dca.report.page import Section
from dca.report.subject import Predictions, Subject

MOST, NEAREST = 12, 3
SIDE, SMALL = 160, 88
# A label may be wrong if the answer is so many times as probable and the nearest training images agree with it.
ODDS = 100.0


def build(subject: Subject) -> Mapping[str, Any] | str:
    """At most `MOST` mistakes."""
    found = subject.predictions
    if found is None:
        return "No predictions for images that the model has not seen: give labelled images, or fit with --estimate."
    shown = found.mistakes[:MOST]
    near = subject.nearest(shown, NEAREST)
    pictures = subject.thumbnails(shown, SIDE)
    rows = []
    for n, picture, own in zip(shown, pictures, near, strict=True):
        rows.append(_row(subject, n, picture, own))
        subject.progress("explaining", len(rows), len(shown), "")
    return {
        "rows": rows,
        "count": len(found.mistakes),
        "n": len(found),
        "basis": found.basis,
        "heat": any(row["heat"] for row in rows),
        "gallery": subject.gallery is not None,
    }


def _row(subject: Subject, n: int, picture: str, near: list[tuple[int, float]]) -> dict[str, Any]:
    """One mistake."""
    found = subject.predictions
    assert found is not None
    labels, around = subject.labels, [subject.training_labels[place] for place, _ in near]
    said = labels[found.answer[n]]
    return {
        "picture": picture,
        "heat": _heat(subject, found, n),
        "name": found.names[n],
        "said": said,
        "really": labels[found.truth[n]],
        "sure": float(found.sure[n]),
        "own": float(found.own[n]),
        "doubtful": bool(found.sure[n] >= ODDS * found.own[n]) and set(around) == {said},
        "near": [
            {
                "picture": subject.training_thumbnail(place, SMALL),
                "label": subject.training_labels[place],
                "similarity": similarity,
            }
            for place, similarity in near
        ],
    }


def _heat(subject: Subject, found: Predictions, n: int) -> str:
    """Where the evidence for the wrong answer is; only for images that the model has not been fitted on."""
    if not found.images:
        return ""
    target = subject.labels[found.answer[n]]
    return images.picture(explain(subject.model, found.images[n], target=target, neighbours=0).heat_map(SIDE), SIDE)


SECTION = Section("mistakes", "Most confident mistakes", build)
