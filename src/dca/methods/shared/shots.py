"""The training features that statistics of the classes are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods.shared import metric


@dataclass(frozen=True)
class Shots:
    """Training features, grouped by class.

    features: (C, K, D), zero behind each class's count. counts: (C,).
    """

    features: Tensor
    counts: Tensor

    @classmethod
    def group(cls, features: Tensor, labels: Tensor, classes: int) -> Shots:
        """From rows (N, D) and labels (N,), in the order they come."""
        counts = torch.bincount(labels, minlength=classes)
        grouped = features.new_zeros(classes, int(counts.max()), features.shape[-1])
        for c in range(classes):
            grouped[c, : counts[c]] = features[labels == c]
        return cls(grouped, counts)

    def flat(self) -> tuple[Tensor, Tensor]:
        """Rows (N, D) and their labels (N,), class by class."""
        inside = torch.arange(self.features.shape[1], device=self.counts.device) < self.counts[:, None]
        labels = torch.arange(len(self.counts), device=self.counts.device).repeat_interleave(self.counts)
        return self.features[inside], labels

    def carried(self, sources: Sequence[int | None]) -> Shots | None:
        """Those of the classes `sources`, in that order; None where one of them has none."""
        rows = [s for s in sources if s is not None]
        return Shots(self.features[rows], self.counts[rows]) if len(rows) == len(sources) else None

    def means(self) -> Tensor:
        """Mean feature of each class, (C, D)."""
        return self.features.sum(dim=1) / self.counts[:, None].to(self.features.dtype)

    def class_rows(self, group: Tensor, centers: Tensor | None = None) -> Tensor:
        """U of the classes in `group` (c,), in float64: (c, R, D), or (..., c, R, D) about centers (..., C, D)."""
        middle = None if centers is None else centers[..., group, :].double()
        return metric.class_rows(self.features[group].double(), self.counts[group], middle)

    def pooled_rows(self, centers: Tensor | None = None) -> Tensor:
        """U of all images as one class, in float64: (R, D); about their classes' centers (..., C, D): (..., R, D)."""
        features, labels = self.flat()
        return metric.pooled_rows(features.double(), labels, None if centers is None else centers.double())


def shots_problems(state: Mapping[str, Tensor], classes: int, D: int) -> list[str]:
    """What is wrong with saved `shot_features` and `shot_counts`, one line each."""
    shots, counts = state["shot_features"], state["shot_counts"]
    if shots.dim() != 3 or shots.shape[0] != classes or shots.shape[2] != D:
        return [f"shot_features: shape {tuple(shots.shape)}, expected ({classes}, shots, {D})"]
    if counts.shape != (classes,) or counts.min() < 1 or counts.max() > shots.shape[1]:
        return [f"shot_counts: {classes} numbers from 1 to {shots.shape[1]} expected"]
    return []
