"""Trained methods whose finished head may need the features of the training images, for covariances."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from dca.methods.interface import Problem, Support, TrainedMethod
from dca.methods.shared.shots import Rest, Shots


class KeepsShots(TrainedMethod):
    """A method that stores text features and the features of the training images; it has the option `test_metric`.

    A class with one image takes the covariance of all images of the fit. So that this stays as it is in a model for
    some of the classes, such a model also stores the others' images and texts (`rest_...`).
    """

    results = MappingProxyType(
        {
            "text_features": torch.float32,
            "shot_features": torch.float32,
            "shot_counts": torch.int64,
            "rest_features": torch.float32,
            "rest_counts": torch.int64,
            "rest_text": torch.float32,
        }
    )
    text_features: Tensor
    shot_features: Tensor
    shot_counts: Tensor
    rest_features: Tensor
    rest_counts: Tensor
    rest_text: Tensor

    @abstractmethod
    def encode_text(self) -> Tensor:
        """Unit text features of the classes, (C, D) or (M, C, D)."""

    @property
    def shots(self) -> Shots:
        """The stored features of the training images."""
        return Shots(self.shot_features, self.shot_counts, Rest(self.rest_features, self.rest_counts, self.rest_text))

    def keep(self, text: Tensor, shots: Shots) -> None:
        """Store text features (C, D) or (M, C, D) and training features."""
        rest = shots.rest or Rest.none(text)
        self.text_features, self.shot_features, self.shot_counts = text, shots.features, shots.counts
        self.rest_features, self.rest_counts, self.rest_text = rest.features, rest.counts, rest.centers

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As for every method; models had no `rest_...` at first."""
        text = state.get("text_features")
        if text is not None and text.dim() > 1 and not any(name.startswith("rest_") for name in state):
            rest = Rest.none(text)
            state = {**state, "rest_features": rest.features, "rest_counts": rest.counts, "rest_text": rest.centers}
        super().restore(state)

    def prompt_features(self) -> Tensor | None:
        """The stored text features."""
        return self.text_features if self.text_features.dim() == 3 else self.text_features[None]

    def kept_features(self) -> tuple[Tensor, Tensor] | None:
        """The stored features."""
        return (self.shot_features, self.shots.labels()) if len(self.shot_features) else None

    @property
    def shot_views(self) -> int:
        """Augmented views of each image that are stored; 0 for the evaluation view."""
        return 0

    @property
    def keeps_shots(self) -> bool:
        """Whether features of training images are stored with these options."""
        return True

    def without_shots(self) -> Any:
        """The options of a model without training features: there are no covariances."""
        covariances = self.options.test_metric == "mahalanobis"
        return dataclasses.replace(self.options, test_metric="euclidean") if covariances else self.options

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Prompts on the new names; covariances by class, or Euclidean distances if one is missing."""
        other = self.copy_for(problem, sources)
        text = other.encode_text().detach()
        shots = self.shots.select(sources) or Shots.none(len(problem.names), text)
        if not len(shots.features):
            other.options = self.without_shots()
        other.keep(text, self._with_rest(shots, sources))
        return other.seal()

    def _with_rest(self, shots: Shots, sources: Sequence[int | None]) -> Shots:
        """The selected shots, with the others' where a class takes the covariance of all images."""
        if not len(shots.features) or bool((shots.counts > 1).all()):
            return dataclasses.replace(shots, rest=None)
        left = sorted(set(range(len(self.shot_counts))) - set(sources))
        rest = self.shots.rest or Rest.none(self.text_features)
        return dataclasses.replace(shots, rest=rest.joined(self.shots, self.text_features, left))

    def with_class(self, name: str, images: Support) -> Self:
        """Prompts on the new name, and a covariance from its images; without any, that of all images."""
        other = super().with_class(name, images)
        rows = self.shot_features[:0]
        if self.keeps_shots and len(images.labels):
            rows = self.encode_all(images, views=self.shot_views)
        other.options = self.options  # `retarget` gives up covariances for a class without a source
        other.keep(other.text_features, dataclasses.replace(self.shots.append(rows), rest=self.shots.rest))
        return other.seal()
