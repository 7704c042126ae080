"""An estimate of the accuracy from the training images themselves, and the temperature that follows from it.

Both come from predictions for training images by models that have not seen them (`engine.held_out`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dca.backbones.clip import CLIP
from dca.core.text import pluralize
from dca.datasets.dataset import Dataset
from dca.datasets.protocols import Rules
from dca.methods.base import HeldOutPredictions, Method, TrainingOptions
from dca.methods.zero_shot import ZeroShot
from dca.stats.calibration import apply_temperature, fit_temperature, macro_accuracy, wilson_interval
from dca.training.evaluate import predict_probabilities
from dca.training.held_out import NothingHeldOutError, held_out
from dca.training.session import Session

log = logging.getLogger(__name__)

# Images that count as wrong when T is fitted: a few images that are all predicted correctly do not prove certainty.
# Half an image is Jeffreys' prior for a share; it was picked after comparing 1, 0.5 and 0 on test parts of precomputed
# ViT-B/32 features.
DOUBT = 0.5

# Left-out predictions come from models that share training images and settings, so that their errors are not
# independent: n of them are worth 0.8 n. On 120 random tasks of 6 classes x 8 training and validation images, the
# 95 % interval then held the accuracy on the other images 114 times, with n 109 times.
WORTH = 0.8


@dataclass(frozen=True)
class Estimate:
    """Accuracy on new images, estimated on training images by models that have not seen them. All are fractions.

    Attributes:
        how: How the images were left out, e.g. "leave-one-out".
        accuracy: Mean of the classes' accuracies.
        low: Lower end of its 95 % interval (Wilson).
        high: Upper end.
        n: Number of images with a prediction.
        zero_shot_accuracy: That of zero-shot CLIP on the same images; None for zero-shot CLIP itself.
    """

    how: str
    accuracy: float
    low: float
    high: float
    n: int
    zero_shot_accuracy: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for records."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The estimate of `to_dict`."""
        return cls(**values)

    def __str__(self) -> str:
        ends = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        known = self.zero_shot_accuracy
        beside = "" if known is None else f"; zero-shot CLIP {100 * known:.1f} %"
        images = f"{self.how} on {pluralize(self.n, 'training image')}"
        return f"{100 * self.accuracy:.1f} % (95 % interval {ends}; {images}{beside})"


def estimate_of(held: HeldOutPredictions, labels: NDArray[np.int64], zero_shot: NDArray[np.float64] | None) -> Estimate:
    """Compare held-out predictions of N images with their labels (N,).

    zero_shot: probabilities (N, C) of zero-shot CLIP, which has seen none of them. Only images with a held-out
    prediction count; there must be one.
    """
    known = held.known
    truth = labels[known]
    accuracy, worth = macro_accuracy(held.probabilities[known].argmax(axis=1) == truth, truth)
    plain = None if zero_shot is None else macro_accuracy(zero_shot[known].argmax(axis=1) == truth, truth)[0]
    low, high = wilson_interval(accuracy, WORTH * worth)
    return Estimate(held.how, accuracy, low, high, len(truth), plain)


@dataclass(frozen=True)
class Assessment:
    """What is known of a fitted model from its training images.

    estimate: its accuracy, or None. rows: per training image, {"held_out": {...}} or {}. temperature: for `classify`.
    """

    estimate: Estimate | None
    rows: list[dict[str, Any]]
    temperature: float = 1.0


def assess(
    method: Method,
    chosen: TrainingOptions,
    source: Dataset,
    session: Session,
    clip: CLIP,
    *,
    seed: int,
    rules: Rules,
    folder: Path | None,
    estimate: bool,
    calibrate: bool,
) -> Assessment:
    """Estimate the accuracy of a fitted method and fit its temperature, where that is asked for or takes no time.

    The first arguments are those of `engine.held_out`.
    """
    nothing = Assessment(None, [{} for _ in source.train])
    if not (estimate or method.estimates_itself):
        return nothing
    session.progress("estimating", 0, 1, "accuracy on training images that are left out")
    try:
        held = held_out(method, chosen, source, session, clip, seed=seed, rules=rules, folder=folder)
    except NothingHeldOutError as error:
        if estimate:
            log.warning("the accuracy is not estimated: %s", error.problem)
        return nothing
    labels = np.array([item.label for item in source.train])
    known = held.known
    fits = calibrate and not method.calibrated
    temperature = fit_temperature(held.probabilities[known], labels[known], prior=DOUBT) if fits else 1.0
    plain = None
    if not isinstance(method, ZeroShot):
        images = [item.image for item in source.train]
        (plain,) = predict_probabilities([ZeroShot.of(clip, method.problem)], images, session, stage="zero-shot CLIP")
    session.progress("estimating", 1, 1, held.how)
    return Assessment(estimate_of(held, labels, plain), held_out_rows(held, labels, temperature), temperature)


def held_out_rows(held: HeldOutPredictions, labels: NDArray[np.int64], temperature: float) -> list[dict[str, Any]]:
    """What the record of a draw says of each training image: predicted class, its probability, that of its own class.

    Images without a prediction have an empty row.
    """
    rows: list[dict[str, Any]] = []
    for p, own, known in zip(apply_temperature(held.probabilities, temperature), labels, held.known, strict=True):
        best = int(p.argmax())
        found = {"label": best, "probability": float(p[best]), "own": float(p[own])}
        rows.append({"held_out": found} if known else {})
    return rows
