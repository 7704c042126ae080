"""Features and probabilities of many images, and the accuracy that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dca.core.errors import UserError
from dca.core.progress import stage_progress
from dca.images.decode import ImageLike, Unreadable, unreadable_error
from dca.methods.base import Method
from dca.methods.shared.transduction import transduce
from dca.stats.calibration import calibration_error
from dca.stats.one_against_rest import ClassScores, MeanScores, areas_under_roc, mean_scores, score_classes
from dca.training.pipeline import encode_batches
from dca.training.session import Session

# Most images that a head is given at once.
MOST_CLASSIFIED = 128


def predict_probabilities(
    methods: Sequence[Method],
    images: Sequence[ImageLike],
    session: Session,
    *,
    stage: str = "images",
    stored: bool = True,
) -> list[NDArray[np.float64]]:
    """Probabilities (N, C) of each method; the methods share a backbone.

    Args:
        methods: Finished methods.
        images: N images.
        session: Holds the feature store and receives progress.
        stage: Name of this work in progress reports.
        stored: As for `encode_images`.

    Returns:
        One float64 array (N, C) per method; every row sums to one.

    Raises:
        UserError: If an image cannot be read, or a method gives probabilities that are not finite.
    """
    features = encode_images(methods, images, session, stage=stage, stored=stored)
    return [classify_features(method, rows) for method, rows in zip(methods, features, strict=True)]


@torch.no_grad()
def encode_images(
    methods: Sequence[Method],
    images: Sequence[ImageLike],
    session: Session,
    *,
    stage: str = "images",
    stored: bool = True,
) -> list[Tensor]:
    """Features of images as each method's `encode` gives them; the methods share a backbone.

    Every image is opened once for all of them.

    Args:
        methods: Finished methods.
        images: N images.
        session: Holds the feature store and receives progress.
        stage: Name of this work in progress reports.
        stored: Take frozen features from the store and keep new ones there, for methods that do not change the
            image tower; and crops from memory, where they are kept. Without, images are not even hashed.

    Returns:
        Features (N, D) of each method, on its device.

    Raises:
        UserError: If images cannot be read; it names all of them.
    """
    frozen = [method for method in methods if stored and method.has_frozen_image_tower]
    own = [method for method in methods if not (stored and method.has_frozen_image_tower)]
    features = dict[int, Tensor]()
    if frozen:
        encoder = frozen[0].encoder
        rows = session.frozen_features(encoder, images, stage=stage).to(encoder.device)
        session.progress(stage, len(images), len(images), "")
        features |= {id(method): method.adapt_features(rows) for method in frozen}
    if own:
        encoded = _encode_with(own, images, session, stage, stored=stored)
        features |= {id(method): rows for method, rows in zip(own, encoded, strict=True)}
    return [features[id(method)] for method in methods]


def _encode_with(
    methods: Sequence[Method], images: Sequence[ImageLike], session: Session, stage: str, *, stored: bool
) -> list[Tensor]:
    """Features (N, D) of the pixels of images, through the image tower of each method."""
    encoder, count = methods[0].encoder, stage_progress(session.progress, stage)
    sources = session.crop_sources(images, encoder, cached=stored)
    faults, done = list[Unreadable](), 0
    parts: list[list[Tensor]] = [[] for _ in methods]
    for batch in encode_batches(sources, lambda pixels: [method.encode(pixels) for method in methods], encoder):
        faults += [outcome for outcome in batch.outcomes if isinstance(outcome, Unreadable)]
        if stored:
            session.cache_crops(images[done : done + len(batch.outcomes)], batch.outcomes, encoder)
        done += len(batch.outcomes)
        count(done, len(images))
        for part, rows in zip(parts, batch.result or [], strict=bool(batch.result)):
            part.append(rows)
    if faults:
        raise unreadable_error(faults, len(images))
    nothing = torch.zeros(0, encoder.feature_dim, device=encoder.device)
    return [torch.cat(part) if part else nothing for part in parts]


@torch.no_grad()
def classify_features(method: Method, features: Tensor) -> NDArray[np.float64]:
    """Probabilities (N, C) of features (N, D) of `method.encode`; every row sums to one.

    Raises:
        UserError: If they are not finite.
    """
    size = min(MOST_CLASSIFIED, method.max_batch_size)
    parts = [method.classify(rows).cpu() for rows in torch.split(features, size)]
    probabilities = torch.cat(parts) if parts else torch.zeros(0, len(method.problem.names))
    wide = probabilities.double()  # float32 softmaxes as rows that sum to one in float64, too
    rows: NDArray[np.float64] = (wide / wide.sum(dim=1, keepdim=True)).numpy()
    if not np.isfinite(rows).all():
        raise UserError(
            f"the {method.name} model gives probabilities that are not numbers",
            hint="its tensors or options hold extreme values; fit again, with the default options first",
        )
    return rows


@torch.no_grad()
def classify_together(method: Method, features: Tensor) -> NDArray[np.float64]:
    """Probabilities (N, C) of N images that are classified together, from features (N, D) of `method.encode`.

    It starts at the probabilities that the method gives each image by itself, and knows no labels: what the training
    images say is in these probabilities. They are taken without the temperature: the constants of the equations are for
    probabilities as heads give them, and zero-shot CLIP's shall not depend on training images.

    Raises:
        UserError: If the probabilities of the method are not finite.
    """
    plain = copy(method)
    plain.temperature = 1.0
    alone = torch.from_numpy(classify_features(plain, features)).to(features.device)
    found = transduce(F.normalize(features.double(), dim=-1), alone)
    rows: NDArray[np.float64] = found.predictions.cpu().numpy()
    return rows


@dataclass(frozen=True)
class Evaluation:
    """How a model did on labelled images; `Classifier.evaluate` returns one. Accuracies are fractions.

    Attributes:
        probabilities: Probabilities of the N images, (N, C); every row sums to one.
        truth: Class index of each image, (N,).
        labels: Label of each class, in the order of the columns.
        accuracy: Share of images whose most probable class is right.
        per_class: Accuracy of each class that has images, by label.
        ece: Expected calibration error over 15 equal bins of the largest probability.
        seen_in_training: How many of the images the model was trained on, where that is known.
        scores: Precision, recall, F1 and ROC AUC of each class against the others, by label.

    Example:
        >>> import numpy as np
        >>> from dca.training.evaluate import evaluate_predictions
        >>> result = evaluate_predictions(np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 1]), ["cat", "dog"])
        >>> result.accuracy, result.per_class
        (0.5, {'cat': 1.0, 'dog': 0.0})
    """

    probabilities: NDArray[np.float64]
    truth: NDArray[np.int64]
    labels: tuple[Any, ...]
    accuracy: float
    per_class: dict[Any, float]
    ece: float
    seen_in_training: int = 0
    scores: Mapping[Any, ClassScores] = field(default_factory=dict)

    @property
    def mean_scores(self) -> MeanScores:
        """Means of `scores` over the classes that have images."""
        return mean_scores(list(self.scores.values()))

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.truth)

    @property
    def mean_over_classes(self) -> float:
        """Mean of the accuracies per class, in which every class counts alike, as in the estimate of a fit."""
        return sum(self.per_class.values()) / len(self.per_class)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, as `dca eval --json` prints them; probabilities are left out."""
        return {
            "accuracy": self.accuracy,
            "mean_over_classes": self.mean_over_classes,
            "n": self.n,
            "classes": len(self.labels),
            "per_class": {str(label): value for label, value in self.per_class.items()},
            "mean_scores": self.mean_scores.to_dict(),
            "scores": {str(label): value.to_dict() for label, value in self.scores.items()},
            "ece": self.ece,
            "seen_in_training": self.seen_in_training,
        }


def evaluate_predictions(probs: NDArray[np.float64], truth: NDArray[np.int64], labels: Sequence[Any]) -> Evaluation:
    """Compare probabilities (N, C) with class indices (N,), N > 0. Classes of the same label count as one."""
    right = probs.argmax(axis=1) == truth
    rows: dict[Any, list[bool]] = {label: [] for label in labels}
    for index, hit in zip(truth.tolist(), right.tolist(), strict=True):
        rows[labels[index]].append(hit)
    per_class = {label: sum(hits) / len(hits) for label, hits in rows.items() if hits}
    ece = calibration_error(probs.max(axis=1), right)
    return Evaluation(
        probs, truth, tuple(labels), float(right.mean()), per_class, ece, scores=_score_labels(probs, truth, labels)
    )


def _score_labels(
    probs: NDArray[np.float64], truth: NDArray[np.int64], labels: Sequence[Any]
) -> dict[Any, ClassScores]:
    """Scores by label. Classes of the same label have the sum of their probabilities."""
    different = list(dict.fromkeys(labels))
    index = np.array([different.index(label) for label in labels], dtype=np.int64)
    joined = np.zeros((len(probs), len(different)))
    np.add.at(joined.T, index, probs.T)
    areas = areas_under_roc(joined, index[truth])
    found = score_classes(index[truth], index[probs.argmax(axis=1)], len(different), areas)
    return dict(zip(different, found, strict=True))
