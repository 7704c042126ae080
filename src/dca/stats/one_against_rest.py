"""Precision, recall, F1 and the area under the ROC curve of each class against all others.

    recall = TP / (TP + FN),   precision = TP / (TP + FP),   F1 = 2 TP / (2 TP + FP + FN)
    AUC    = share of pairs of an image of the class and another one in which the first has the larger probability of
             the class; equal ones count half (Mann and Whitney)

A class that has images but is never predicted has a precision of 0, as in scikit-learn's `zero_division=0`. Classes
without images have neither recall nor AUC, and do not count in the means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ClassScores:
    """How well one class is told from all others, as fractions; None where there is nothing to measure it on.

    Attributes:
        precision: Share of the images predicted as this class that are of it.
        recall: Share of its images that are predicted as it.
        f1: Harmonic mean of both.
        roc_auc: Area under the ROC curve of its probability.
        images: Number of its images.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    roc_auc: float | None
    images: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class MeanScores:
    """Means over the classes that have images, in which every class counts alike; None where no class has a value."""

    precision: float | None
    recall: float | None
    f1: float | None
    roc_auc: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Plain values for JSON."""
        return asdict(self)


def score_classes(
    truth: NDArray[np.int64],
    predicted: NDArray[np.int64],
    classes: int,
    areas: Sequence[float | None] | None = None,
) -> list[ClassScores]:
    """Scores of all classes. truth, predicted: (N,). areas: the AUC of each class (`areas_under_roc`), if it is known.

    >>> score_classes(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)[1].precision
    0.5
    """
    images, answers = (np.bincount(values, minlength=classes) for values in (truth, predicted))
    hits = np.bincount(truth[truth == predicted], minlength=classes)
    return [
        ClassScores(
            precision=_ratio(hits[c], answers[c]) if answers[c] or not images[c] else 0.0,
            recall=_ratio(hits[c], images[c]),
            f1=_ratio(2 * hits[c], images[c] + answers[c]),
            roc_auc=areas[c] if areas else None,
            images=int(images[c]),
        )
        for c in range(classes)
    ]


def _ratio(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def area_under_roc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """AUC of scores (N,) for images that are positive (N,); None if all or none are.

    >>> area_under_roc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    own, others = scores[positive], np.sort(scores[~positive])
    if not len(own) or not len(others):
        return None
    below, at_most = (np.searchsorted(others, own, side).sum() for side in ("left", "right"))
    return float((below + at_most) / 2 / (len(own) * len(others)))


def areas_under_roc(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> tuple[float | None, ...]:
    """AUC of every class against the others. probabilities: (N, C); truth: (N,). None as in `area_under_roc`.

    >>> areas_under_roc(np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]), np.array([0, 1]))
    (1.0, 1.0, None)
    """
    return tuple(area_under_roc(probabilities[:, c], truth == c) for c in range(probabilities.shape[1]))


def mean_scores(scores: Sequence[ClassScores]) -> MeanScores:
    """Means over the classes that have images.

    >>> mean_scores(score_classes(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)).recall
    0.75
    """
    tested = [one for one in scores if one.images]
    known = {
        field.name: [value for one in tested if (value := getattr(one, field.name)) is not None]
        for field in fields(MeanScores)
    }
    return MeanScores(**{name: sum(values) / len(values) if values else None for name, values in known.items()})
