"""Estimate the accuracy from the training images themselves, and fit the temperature.

Both come from predictions for training images by models that have not seen them (`training.held_out`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dca.backbones.encoder import Ability
from dca.datasets.dataset import Dataset
from dca.methods.base import HeldOutPredictions, Method, TrainingOptions
from dca.methods.zero_shot import ZeroShot
from dca.model.records import Estimate, HeldOutPrediction
from dca.stats.calibration import apply_temperature, fit_temperature
from dca.stats.intervals import held_out_macro_interval, image_weights, macro_accuracy
from dca.stats.learning_curve import expect_with_all
from dca.stats.one_against_rest import areas_under_roc
from dca.training.context import FitContext
from dca.training.evaluate import predict_probabilities
from dca.training.held_out import NothingHeldOutError, predict_held_out

log = logging.getLogger(__name__)

# Images that count as wrong when T is fitted: a few images that are all predicted correctly do not prove certainty.
# Half an image is Jeffreys' prior for a share; it was picked after comparing 1, 0.5 and 0 on test parts of precomputed
# ViT-B/32 features.
DOUBT = 0.5


def estimate_accuracy(
    held: HeldOutPredictions,
    labels: NDArray[np.int64],
    zero_shot: NDArray[np.float64] | None,
    groups: NDArray[np.int64] | None = None,
) -> Estimate:
    """Compare held-out predictions of N images with their labels (N,).

    zero_shot: probabilities (N, C) of zero-shot CLIP, which has seen none of them. groups: (N,) a number that copies
    share; None: there are no copies. Those of a class count as one image, and so do images that were left out together.
    Only images with a held-out prediction count; there must be one.
    """
    known, C = held.known, held.probabilities.shape[1]
    truth, copies = labels[known], np.arange(len(labels))[known] if groups is None else groups[known]
    together = copies if held.occasions is None else held.occasions[known]
    right = held.probabilities[known].argmax(axis=1) == truth
    measured, _ = macro_accuracy(right, truth, together)
    plain = None if zero_shot is None else macro_accuracy(zero_shot[known].argmax(axis=1) == truth, truth, together)[0]
    accuracy = measured
    if C > 1 and held.shortage is not None and not right.all():
        mistaken = ~right * image_weights(truth, together)
        accuracy = expect_with_all(measured, plain or 0.0, C, float(np.average(held.shortage[known], weights=mistaken)))
    low, high = held_out_macro_interval(accuracy, right, truth, together)
    unmeasured = len(np.unique(labels)) - len(np.unique(truth))
    share = unmeasured / len(np.unique(labels))
    return Estimate(
        held.how,
        accuracy,
        (1 - share) * low,
        (1 - share) * high + share,
        len(set(zip(truth.tolist(), copies.tolist(), strict=True))),
        plain,
        measured if accuracy > measured else None,
        unmeasured,
    )


@dataclass(frozen=True)
class Assessment:
    """What is known of a fitted model from its training images.

    estimate: its accuracy, or None. held_out: per training image, the held-out prediction or None. auc: per class, the
    AUC of these predictions; () without any. temperature: for `classify`.
    """

    estimate: Estimate | None
    held_out: tuple[HeldOutPrediction | None, ...]
    auc: tuple[float | None, ...] = ()
    temperature: float = 1.0


def assess(
    method: Method, options: TrainingOptions, dataset: Dataset, context: FitContext, *, estimate: bool, calibrate: bool
) -> Assessment:
    """Estimate the accuracy of a fitted method and fit its temperature, where that is asked for or takes no time.

    The first arguments are those of `training.held_out.held_out`.
    """
    nothing = Assessment(None, (None,) * len(dataset.train))
    if not (estimate or method.has_cheap_held_out):
        return nothing
    context.progress("estimating", 0, 1, "accuracy of held-out predictions")
    try:
        held = predict_held_out(method, options, dataset, context)
    except NothingHeldOutError as error:
        if estimate:
            log.warning("the accuracy is not estimated: %s", error.problem)
        return nothing
    labels = np.array([item.label for item in dataset.train])
    known = held.known
    calibrates = calibrate and not method.calibrated
    temperature = fit_temperature(held.probabilities[known], labels[known], prior=DOUBT) if calibrates else 1.0
    plain = None
    if not isinstance(method, ZeroShot) and Ability.TEXT_FEATURES in context.encoder.abilities:
        images, zero_shot = (
            [item.image for item in dataset.train],
            ZeroShot.for_problem(context.encoder, method.problem),
        )
        (plain,) = predict_probabilities([zero_shot], images, context.session, stage="zero-shot CLIP")
    context.progress("estimating", 1, 1, held.how)
    groups = context.support(dataset).groups.cpu().numpy()
    calibrated = apply_temperature(torch.from_numpy(held.probabilities), temperature).numpy()
    return Assessment(
        estimate_accuracy(held, labels, plain, groups),
        list_predictions(calibrated, labels, known),
        areas_under_roc(calibrated[known], labels[known]),
        temperature,
    )


def list_predictions(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], known: NDArray[np.bool_]
) -> tuple[HeldOutPrediction | None, ...]:
    """What is kept of held-out probabilities (N, C) of images with labels (N,); None for those that are not known."""
    return tuple(
        HeldOutPrediction(int(p.argmax()), float(p.max()), float(p[own])) if held_out else None
        for p, own, held_out in zip(probabilities, labels, known, strict=True)
    )
