"""What a served model says of images, and of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.methods.base import Method
from dca.model.classifier import Classifier
from dca.model.rejection import LARGEST_RATE, choose_rate, count_held_out
from dca.serve.encoder import ImageFeatures
from dca.stats.conformal import min_images_for_rate

# Nearest training images and most probable classes that a prediction names.
NEAREST, TOP = 5, 5


@dataclass(frozen=True)
class NearImage:
    """A training image near a predicted one. image: its hash."""

    image: str
    label: str
    similarity: float


@dataclass(frozen=True)
class ServedPrediction:
    """What a model predicts for one image.

    labels: of all classes. probabilities: (C,). p_value: small for images of none of the classes; None if the model has
    no p-values. rate: that at which the model rejects; None if it does not. nearest: the nearest training images.
    """

    labels: tuple[str, ...]
    probabilities: NDArray[np.float64]
    p_value: float | None
    rate: float | None
    nearest: tuple[NearImage, ...]

    @classmethod
    def missing(cls) -> Self:
        """What is said where there is no model yet."""
        return cls((), np.empty(0), None, None, ())

    @property
    def best(self) -> str:
        """The most probable label; "" without a model."""
        return self.labels[int(self.probabilities.argmax())] if self.labels else ""

    def to_dict(self, top: int = TOP) -> dict[str, Any]:
        """Plain values: the `top` most probable classes, and "none of these" if the p-value is at most the rate."""
        order = (-self.probabilities).argsort(kind="stable")[:top]
        return {
            "top": [{"label": self.labels[c], "probability": float(self.probabilities[c])} for c in order],
            "p_value": self.p_value,
            "none_of_these": self.p_value is not None and self.rate is not None and self.p_value <= self.rate,
            "nearest": list(map(asdict, self.nearest)),
        }


@dataclass(frozen=True)
class ServedModel:
    """A model that is being served.

    applied: the labels of the corrections that it was fitted with, by image. reject: the rate of false rejections that
    the server was started with; None lets the model decide.
    """

    model: Classifier
    applied: Mapping[str, str]
    reject: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels as text, in the order of the classes."""
        return tuple(map(str, self.model.classes_.tolist()))

    @cached_property
    def rate(self) -> float | None:
        """The rate of false rejections; None if the model rejects nothing."""
        return choose_rate(self.model.smallest_p_value) if self.reject is None else self.reject or None

    def predict(self, images: Sequence[ImageFeatures]) -> list[ServedPrediction]:
        """Predict encoded images."""
        if not images:
            return []
        features = _method_features(self.model.method_, images)
        predictions = self.model.predict_features(features)
        p_values = [None] * len(images) if predictions.p_values is None else predictions.p_values.tolist()
        nearest = self._find_nearest(torch.stack([image.frozen for image in images]))
        rows = zip(predictions.probabilities, p_values, nearest, strict=True)
        return [ServedPrediction(self.labels, row, p, self.rate, near) for row, p, near in rows]

    def find_thumbnail(self, sha256: str) -> bytes | None:
        """A small JPEG of a training image; None if the model has none of it."""
        gallery = self.model.gallery()
        if gallery is None or sha256 not in gallery.sha256:
            return None
        return gallery.jpegs[gallery.sha256.index(sha256)]

    def _find_nearest(self, features: Tensor) -> list[tuple[NearImage, ...]]:
        """The nearest training images of each image; features: frozen, (n, D)."""
        gallery = self.model.gallery()
        if gallery is None or not len(gallery):
            return [()] * len(features)
        labels = self.labels
        indices, similarities = gallery.nearest(features.cpu(), NEAREST)
        return [
            tuple(
                NearImage(gallery.sha256[n], labels[gallery.labels[n]], round(s, 4))
                for n, s in zip(row, near, strict=True)
            )
            for row, near in zip(indices.tolist(), similarities.tolist(), strict=True)
        ]


@torch.no_grad()
def _method_features(method: Method, images: Sequence[ImageFeatures]) -> Tensor:
    """Features (n, D) as `method.encode` gives them."""
    adapted = [image.adapted for image in images if image.adapted is not None]
    return torch.stack(adapted) if adapted else method.adapt_features(torch.stack([image.frozen for image in images]))


@dataclass(frozen=True)
class AccuracyEstimate:
    """Estimated accuracy on new images with its 95 % interval.

    images: how many it was estimated on. caveats: what it cannot tell, such as about a class of one photo.
    """

    value: float
    low: float
    high: float
    images: int
    how: str
    caveats: tuple[str, ...]


def estimated_accuracy(model: Classifier) -> AccuracyEstimate | None:
    """The estimated accuracy of a model on new images, if it is known."""
    estimate = model.estimate_
    if estimate is None:
        return None
    caveats = tuple(estimate.caveats())
    return AccuracyEstimate(estimate.accuracy, estimate.low, estimate.high, estimate.n, estimate.how, caveats)


@dataclass(frozen=True)
class RejectionState:
    """When the model answers "none of these".

    rate: largest p-value of a rejected image; None if it rejects nothing. images: what the training images that can be
    left out are worth (`count_held_out`). needed: how many the usual answer takes.
    """

    rate: float | None
    images: int
    needed: int

    @classmethod
    def from_model(cls, served: ServedModel) -> RejectionState:
        """The state of a model."""
        smallest = served.model.smallest_p_value
        return cls(served.rate, 0 if smallest is None else count_held_out(smallest), min_images_for_rate(LARGEST_RATE))
