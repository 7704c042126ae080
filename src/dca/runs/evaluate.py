"""A finished method measured on the targets of a task, beside zero-shot CLIP; nothing is refitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dca.backbones.encoder import Ability
from dca.datasets.task import Target
from dca.methods.base import Method
from dca.methods.zero_shot import ZeroShot
from dca.model.copies import count_seen
from dca.runs.result import TargetResult
from dca.training.evaluate import (
    Evaluation,
    classify_features,
    classify_together,
    encode_images,
    evaluate_predictions,
)
from dca.training.session import Session


@dataclass(frozen=True)
class TargetEvaluation:
    """A model and zero-shot CLIP on one target.

    Attributes:
        name: Name of the target.
        adapted: Evaluation of the model.
        zero_shot: Evaluation of zero-shot CLIP.
        metric: Distance that the head of the model used, if the method has a choice.
    """

    name: str
    adapted: Evaluation
    zero_shot: Evaluation | None
    metric: str | None

    @property
    def result(self) -> TargetResult:
        """The figures, for records."""
        return TargetResult(
            name=self.name,
            classes=len(self.adapted.labels),
            test_images=self.adapted.n,
            accuracy=self.adapted.accuracy,
            zero_shot_accuracy=None if self.zero_shot is None else self.zero_shot.accuracy,
            ece=self.adapted.ece,
            metric=self.metric,
            seen_in_training=self.adapted.seen_in_training,
        )


def evaluate(
    method: Method,
    targets: Sequence[Target],
    session: Session,
    features: dict[str, Tensor] | None = None,
    training: Sequence[str] = (),
) -> tuple[TargetEvaluation, ...]:
    """Measure a finished method and zero-shot CLIP on every target; nothing is refitted.

    The images of a target are classified each by itself, or together, without their labels, where the target says so.

    Args:
        method: The finished method.
        targets: What it is measured on.
        session: Loads images and features.
        features: For a model that is measured with several heads: features (N, D) of its image tower by target. What
            is not there is added, so that every test image passes the tower once for all heads.
        training: Hashes of the contents of the training images, to count the test images among them.

    Returns:
        One result per target.
    """
    return tuple(_evaluate(method, target, session, features, training) for target in targets)


def _evaluate(
    method: Method,
    target: Target,
    session: Session,
    features: dict[str, Tensor] | None,
    training: Sequence[str],
) -> TargetEvaluation:
    images, stage = [item.image for item in target.test], f"testing on {target.name}"
    session.progress(stage, 0, len(images), "")
    moved = retarget_method(method, target)
    session = session.for_dataset(target.dataset, method.problem.rules)
    knows_texts = Ability.TEXT_FEATURES in moved.encoder.abilities
    zero_shot = [ZeroShot.for_problem(moved.encoder, moved.problem)] if knows_texts else []
    if features is None or moved.has_frozen_image_tower:
        *plain, own = encode_images([*zero_shot, moved], images, session, stage=stage)
    else:
        plain = encode_images(zero_shot, images, session, stage=stage) if zero_shot else []
        if target.name not in features:
            (features[target.name],) = encode_images([moved], images, session, stage=stage)
        own = features[target.name]
    classify = classify_together if target.together else classify_features
    truth = np.array([item.label for item in target.test])
    seen = count_seen(training, session.hash_images(images)) if training else 0
    return TargetEvaluation(
        target.name,
        dataclasses.replace(evaluate_predictions(classify(moved, own), truth, target.labels), seen_in_training=seen),
        evaluate_predictions(classify(zero_shot[0], plain[0]), truth, target.labels) if zero_shot else None,
        getattr(moved.options, "test_metric", None),
    )


def retarget_method(method: Method, target: Target) -> Method:
    """The finished method for the target's classes; the method itself if it was trained on exactly these."""
    if target.from_source == tuple(range(len(method.problem.names))):
        return method
    problem = dataclasses.replace(method.problem, names=target.names, dataset=target.dataset, template=target.template)
    return method.retarget(problem, target.from_source)
