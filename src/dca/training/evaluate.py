"""Probabilities of many images, and the accuracy that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.core.progress import stage_progress
from dca.images.crops import batch_crops
from dca.images.decode import ImageLike
from dca.methods.base import Method
from dca.stats.calibration import calibration_error
from dca.training.features import batch_size
from dca.training.session import Session


@torch.no_grad()
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
        stored: Take frozen features from the store and keep new ones there, for methods that do not change the
            image tower.

    Returns:
        One float64 array (N, C) per method; every row sums to one.

    Raises:
        UserError: If an image cannot be read, or a method gives probabilities that are not finite.
    """
    kept = {n for n, method in enumerate(methods) if stored and method.frozen_images}
    found = {n: _from_store(methods[n], images, session, stage) for n in kept}
    fresh = [n for n in range(len(methods)) if n not in kept]
    found |= dict(zip(fresh, _streamed([methods[n] for n in fresh], images, session, stage), strict=True))
    results = [_normalized(found[n]) for n in range(len(methods))]
    _require_finite(methods, results)
    return results


def _require_finite(methods: Sequence[Method], results: Sequence[NDArray[np.float64]]) -> None:
    """Raise if the probabilities of a method are not finite. results: (N, C) of each method."""
    if wrong := [method.name for method, probs in zip(methods, results, strict=True) if not np.isfinite(probs).all()]:
        raise UserError(
            f"the {' and '.join(wrong)} model gives probabilities that are not numbers",
            hint="its tensors or options hold extreme values; fit again, with the default options first",
        )


def _normalized(probs: Tensor) -> NDArray[np.float64]:
    """Float32 softmaxes as float64 rows that sum to one in float64, too."""
    wide = probs.double()
    rows: NDArray[np.float64] = (wide / wide.sum(dim=1, keepdim=True)).numpy()
    return rows


def _pixels(clip: CLIP, images: Sequence[ImageLike], session: Session, stage: str) -> Iterator[Tensor]:
    """Batches of pixels as the image tower takes them."""
    outcomes, count = session.crops(images, clip), stage_progress(session.progress, stage)
    for crops in batch_crops(outcomes, len(images), batch_size(clip), count, pin=clip.device.type == "cuda"):
        yield clip.preprocess.normalize(crops.to(clip.device, non_blocking=True))


def _classify(method: Method, features: Tensor) -> Tensor:
    """Probabilities (N, C) on the CPU, as many images at once as the method allows."""
    at_once = min(batch_size(method.clip), method.images_at_once)
    parts = [method.classify(rows).cpu() for rows in torch.split(features, at_once)]
    return torch.cat(parts) if parts else torch.zeros(0, len(method.problem.names))


def _streamed(methods: Sequence[Method], images: Sequence[ImageLike], session: Session, stage: str) -> list[Tensor]:
    """Probabilities (N, C) of each method; every image is opened once for all of them."""
    if not methods:
        return []
    parts: list[list[Tensor]] = [[torch.zeros(0, len(method.problem.names))] for method in methods]
    for pixels in _pixels(methods[0].clip, images, session, stage):
        for part, method in zip(parts, methods, strict=True):
            part.append(_classify(method, method.encode(pixels)))
    return [torch.cat(part) for part in parts]


@torch.no_grad()
def encode_and_classify(
    method: Method, images: Sequence[ImageLike], session: Session
) -> tuple[Tensor, NDArray[np.float64]]:
    """Features (N, D) of `method.encode` on its device, and probabilities (N, C), of N images."""
    features = encode_images(method, images, session)
    return features, classify_features(method, features)


@torch.no_grad()
def encode_images(method: Method, images: Sequence[ImageLike], session: Session, *, stage: str = "images") -> Tensor:
    """Features (N, D) of `method.encode` on its device, of N images."""
    found = [method.encode(pixels) for pixels in _pixels(method.clip, images, session, stage)]
    return torch.cat(found) if found else torch.zeros(0, method.clip.config.embed_dim, device=method.clip.device)


@torch.no_grad()
def classify_features(method: Method, features: Tensor) -> NDArray[np.float64]:
    """Probabilities (N, C) of features (N, D) of `method.encode`; every row sums to one.

    Raises:
        UserError: If they are not finite.
    """
    probs = _normalized(_classify(method, features))
    _require_finite([method], [probs])
    return probs


def _from_store(method: Method, images: Sequence[ImageLike], session: Session, stage: str) -> Tensor:
    """Probabilities (N, C) from frozen features, encoding only the images that the store has not seen."""
    found = session.frozen_features(method.clip, images, stage=stage)
    session.progress(stage, len(images), len(images), "")
    return _classify(method, method.from_frozen(found.to(method.clip.device)))


@torch.no_grad()
def encode_and_classify_crops(method: Method, crops: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
    """As `encode_and_classify`, for evaluation crops that are in memory: uint8 (N, 3, S, S)."""
    clip = method.clip
    features = method.encode(clip.preprocess.normalize(crops.to(clip.device, non_blocking=True)))
    return features, classify_features(method, features)


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
    return Evaluation(probs, truth, tuple(labels), float(right.mean()), per_class, ece)
