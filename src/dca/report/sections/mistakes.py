"""The most confident mistakes, with what the model looked at and the training images nearest to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca.model.explain import explain
from dca.model.findings import usual_odds
from dca.report.page import Section
from dca.report.reported_model import ReportedModel, UnseenPredictions
from dca.report.thumbnails import image_url

MOST, NEAREST = 12, 3
SIDE, SMALL = 160, 88


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """At most `MOST` mistakes."""
    predictions = reported.predictions
    if predictions is None:
        return "No predictions for images that the model has not seen: give labelled images, or fit with --estimate."
    shown = predictions.mistakes[:MOST]
    nearest = reported.nearest(shown, NEAREST)
    rows = []
    for n, thumbnail, neighbours in zip(shown, reported.thumbnails(shown, SIDE), nearest, strict=True):
        rows.append(_describe_mistake(reported, predictions, n, thumbnail, neighbours))
        reported.progress("explaining", len(rows), len(shown), "")
    return {
        "rows": rows,
        "count": len(predictions.mistakes),
        "n": len(predictions),
        "basis": predictions.basis,
        "heat": any(row["heat"] for row in rows),
        "gallery": reported.gallery is not None,
    }


def _describe_mistake(
    reported: ReportedModel, predictions: UnseenPredictions, n: int, thumbnail: str, nearest: list[tuple[int, float]]
) -> dict[str, Any]:
    """One mistake; nearest: gallery indices and similarities of training images."""
    labels, around = reported.labels, [reported.training_labels[index] for index, _ in nearest]
    said = labels[predictions.predicted[n]]
    # The label may be wrong if the check of labels would name it and the nearest training images agree with the answer.
    confident = bool(predictions.confidence[n] >= usual_odds(len(labels)) * predictions.own[n])
    return {
        "thumbnail": thumbnail,
        "heat": _heat_map_url(reported, predictions, n),
        "name": predictions.names[n],
        "said": said,
        "really": labels[predictions.truth[n]],
        "sure": float(predictions.confidence[n]),
        "own": float(predictions.own[n]),
        "doubtful": confident and set(around) == {said},
        "near": [
            {
                "thumbnail": reported.training_thumbnail(index, SMALL),
                "label": reported.training_labels[index],
                "similarity": similarity,
            }
            for index, similarity in nearest
        ],
    }


def _heat_map_url(reported: ReportedModel, predictions: UnseenPredictions, n: int) -> str:
    """Where the evidence for the wrong answer is; only for images that the model has not been fitted on."""
    if not predictions.images:
        return ""
    target = reported.labels[predictions.predicted[n]]
    explanation = explain(reported.model, predictions.images[n], target=target, neighbours=0)
    return image_url(explanation.heat_map(SIDE), SIDE)


SECTION = Section("mistakes", "Most confident mistakes", build)
