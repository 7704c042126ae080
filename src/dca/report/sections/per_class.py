"""Accuracy of every class with its interval and number of images, the hardest first; precision, recall, F1, ROC AUC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca.model.findings import score_held_out
from dca.plots.class_bars import ClassResult, count_correct_by_class
from dca.report.page import Section
from dca.report.reported_model import ReportedModel
from dca.stats.intervals import wilson_interval
from dca.stats.one_against_rest import ClassScores, mean_scores

MOST = 24


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """One bar per class."""
    predictions = reported.predictions
    if predictions is None:
        return "No predictions for images that the model has not seen."
    results = count_correct_by_class(
        predictions.truth,
        predictions.zero_shot,
        predictions.predicted,
        reported.labels,
        missing=predictions.missing,
    )
    tested = sorted((row for row in results if row.images), key=lambda row: (row.adapted / row.images, row.name))
    scores = score_predictions(reported)
    rows = [_describe_bar(row, scores[row.name]) for row in tested]
    return {
        "first": rows[:MOST],
        "rest": rows[MOST:],
        "basis": predictions.basis,
        "tested": predictions.tested,
        "zero_shot": predictions.zero_shot is not None,
        "means": mean_scores(list(scores.values())),
        "missing": [(row.name, row.missing) for row in results if row.missing],
        "untested": sum(not row.images and not row.missing for row in results),
    }


def score_predictions(reported: ReportedModel) -> dict[str, ClassScores]:
    """Precision, recall, F1 and ROC AUC by label, on the images of the page."""
    if reported.evaluation is not None:
        return {str(label): scores for label, scores in reported.evaluation.scores.items()}
    return score_held_out(reported.model.training_images_, reported.labels, reported.model.held_out_auc_)


def _describe_bar(row: ClassResult, scores: ClassScores) -> dict[str, Any]:
    """Positions in per cent."""
    low, high = wilson_interval(row.adapted / row.images, row.images)
    share = 100 * row.adapted / row.images
    return {
        "name": row.name,
        "share": share,
        "low": 100 * low,
        "width": 100 * (high - low),
        "zero_shot": None if row.zero_shot is None else 100 * row.zero_shot / row.images,
        "right": row.adapted,
        "n": row.images,
        "scores": scores,
        "said": f"{share:.0f} %, 95 % interval {100 * low:.0f} to {100 * high:.0f}",
    }


SECTION = Section("per_class", "Class by class", build)
