"""What a served model says about images: encoded once, answered by whichever model is current."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.methods.interface import Method
from dca.model.classifier import Classifier

NEAREST, TOP = 5, 5


@dataclass(frozen=True)
class Encoded:
    """Features of an image.

    frozen: (D,), of the frozen backbone. own: (D,), of the method, if it changes the image tower; such a method is
    never refitted here, so that they stay valid.
    """

    frozen: Tensor
    own: Tensor | None


@dataclass(frozen=True)
class Answer:
    """What a model says about one image.

    labels: of all classes. probabilities: (C,). p_value: small for images of none of the classes; None if the model
    cannot tell. nearest: hash, label and similarity of the nearest training images.
    """

    labels: tuple[str, ...]
    probabilities: NDArray[np.float64]
    p_value: float | None
    nearest: tuple[tuple[str, str, float], ...]

    @property
    def best(self) -> str:
        """The most probable label."""
        return self.labels[int(self.probabilities.argmax())]

    def to_dict(self, reject: float, top: int = TOP) -> dict[str, Any]:
        """Plain values: the `top` most probable classes, and "none of these" if the p-value is below `reject`."""
        order = (-self.probabilities).argsort(kind="stable")[:top]
        return {
            "top": [{"label": self.labels[c], "probability": float(self.probabilities[c])} for c in order],
            "p_value": self.p_value,
            "none_of_these": self.p_value is not None and self.p_value < reject,
            "nearest": [{"image": i, "label": label, "similarity": s} for i, label, s in self.nearest],
        }


@dataclass(frozen=True)
class Snapshot:
    """A model that is being served. applied: the labels of the corrections that it was fitted with, by image."""

    model: Classifier
    applied: Mapping[str, str]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels as text, in the order of the classes."""
        return tuple(map(str, self.model.classes_.tolist()))

    def answers(self, images: Sequence[Encoded]) -> list[Answer]:
        """What the model says about some images."""
        if not images:
            return []
        features = _method_features(self.model.method_, images)
        found = self.model.answers_of(features)
        p_values = [None] * len(images) if found.p_values is None else found.p_values.tolist()
        nearest = self._nearest(torch.stack([image.frozen for image in images]))
        rows = zip(found.probabilities, p_values, nearest, strict=True)
        return [Answer(self.labels, row, p, near) for row, p, near in rows]

    def _nearest(self, features: Tensor) -> list[tuple[tuple[str, str, float], ...]]:
        gallery = self.model.gallery()
        if gallery is None or not len(gallery):
            return [()] * len(features)
        labels = self.labels
        places, values = gallery.nearest(features.cpu(), NEAREST)
        return [
            tuple((gallery.sha256[n], labels[gallery.labels[n]], round(s, 4)) for n, s in zip(row, near, strict=True))
            for row, near in zip(places.tolist(), values.tolist(), strict=True)
        ]


@torch.no_grad()
def _method_features(method: Method, images: Sequence[Encoded]) -> Tensor:
    """Features (B, D) as `method.encode` gives them."""
    own = [image.own for image in images if image.own is not None]
    return torch.stack(own) if own else method.from_frozen(torch.stack([image.frozen for image in images]))
