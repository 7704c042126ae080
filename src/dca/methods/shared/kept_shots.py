"""Trained methods whose finished head may need the features of the training images, for covariances."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor

from dca.methods.interface import Problem, Support, TrainedMethod
from dca.methods.shared.shots import Shots


class KeepsShots(TrainedMethod):
    """A method that stores text features and the features of the training images; it has the option `test_metric`."""

    results = MappingProxyType(
        {"text_features": torch.float32, "shot_features": torch.float32, "shot_counts": torch.int64}
    )
    text_features: Tensor
    shot_features: Tensor
    shot_counts: Tensor

    @abstractmethod
    def encode_text(self) -> Tensor:
        """Unit text features of the classes, (C, D) or (M, C, D)."""

    @property
    def shots(self) -> Shots:
        """The stored features of the training images."""
        return Shots(self.shot_features, self.shot_counts)

    @property
    def shot_views(self) -> int:
        """Augmented views of each image that are stored; 0 for the evaluation view."""
        return 0

    @property
    def keeps_shots(self) -> bool:
        """Whether features of training images are stored with these options."""
        return True

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Prompts on the new names; covariances by class, or Euclidean distances if one is missing."""
        other = self.copy_for(problem, sources)
        other.text_features = other.encode_text().detach()
        shots = self.shots.select(sources) or Shots.none(len(problem.names), other.text_features)
        if self.options.test_metric == "mahalanobis" and not len(shots.features):
            other.options = dataclasses.replace(other.options, test_metric="euclidean")
        other.shot_features, other.shot_counts = shots.features, shots.counts
        return other.seal()

    def with_class(self, name: str, images: Support) -> Self:
        """Prompts on the new name, and a covariance from its images; without any, that of all images."""
        other = super().with_class(name, images)
        rows = self.shot_features[:0]
        if self.keeps_shots and len(images.labels):
            rows = self.encode_all(images, views=self.shot_views)
        shots = self.shots.append(rows)
        other.options = self.options  # `retarget` gives up covariances for a class without a source
        other.shot_features, other.shot_counts = shots.features, shots.counts
        return other.seal()
