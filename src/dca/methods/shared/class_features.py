"""Training features grouped by class, without padding: the input of class statistics such as covariances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods.shared import metric

# Most classes in a padded batch, and values in it: they bound memory, not results.
MAX_CLASSES, MAX_VALUES = 256, 2**23


@dataclass(frozen=True)
class OtherClasses:
    """Training images of classes that a model was fitted on but no longer has.

    features: (N, D), class after class. counts: (C,). centers: text features of these classes, (..., C, D).
    """

    features: Tensor
    counts: Tensor
    centers: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> OtherClasses:
        """No such images. like: centers (..., C, D) of the classes of the model, for type and shape."""
        counts = torch.zeros(0, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(0, like.shape[-1]), counts, like[..., :0, :])

    def extend(self, removed: ClassFeatures, centers: Tensor, classes: Sequence[int]) -> OtherClasses:
        """Add the classes `classes` of `removed`, whose centers are (..., C, D)."""
        by_class = torch.split(removed.features, removed.counts.tolist())
        return OtherClasses(
            torch.cat([self.features, *(by_class[c] for c in classes)]),
            torch.cat([self.counts, removed.counts[list(classes)]]),
            torch.cat([self.centers, centers[..., list(classes), :]], dim=-2),
        )


@dataclass(frozen=True)
class ClassFeatures:
    """Training features, class after class, without padding.

    features: (N, D). counts: images of each class (C,), their sum is N. others: images of other classes, which count
    only in the covariance of all images (`pooled_covariance_factor_with_others`).
    """

    features: Tensor
    counts: Tensor
    others: OtherClasses | None = None

    @classmethod
    def group(cls, features: Tensor, labels: Tensor, classes: int) -> ClassFeatures:
        """Group features (N, D) by labels (N,); the order within a class is kept."""
        return cls(features[labels.argsort(stable=True)], torch.bincount(labels, minlength=classes))

    @classmethod
    def empty(cls, classes: int, like: Tensor) -> ClassFeatures:
        """No features for any of the classes; type, device and D are those of `like` (..., D)."""
        counts = torch.zeros(classes, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(0, like.shape[-1]), counts)

    def labels(self) -> Tensor:
        """Class of each row: (N,)."""
        return torch.arange(len(self.counts), device=self.counts.device).repeat_interleave(self.counts)

    def select(self, sources: Sequence[int | None]) -> ClassFeatures | None:
        """Select the classes `sources`, in that order; returns None if a class has no source."""
        classes = [s for s in sources if s is not None]
        if len(classes) < len(sources):
            return None
        by_class = torch.split(self.features, self.counts.tolist())
        return ClassFeatures(torch.cat([by_class[c] for c in classes]), self.counts[classes])

    def append(self, features: Tensor) -> ClassFeatures:
        """Add a class, the last, with these features (n, D); n may be 0."""
        counts = torch.cat([self.counts, self.counts.new_tensor([len(features)])])
        return ClassFeatures(torch.cat([self.features, features]), counts)

    def means(self, weights: Tensor | None = None) -> Tensor:
        """Mean feature of each class, (C, D). weights: of the rows (N,); None: all the same."""
        if weights is not None:
            return self._weighted_means(weights)
        # Classes of equal size together: adding all rows at once would sum in a random order on a GPU.
        sums = self.features.new_zeros(len(self.counts), self.features.shape[-1])
        starts = self.counts.cumsum(0) - self.counts
        for count in torch.unique(self.counts).tolist():
            classes = (self.counts == count).nonzero().flatten()
            offsets = torch.arange(count, device=classes.device)
            sums[classes] = self.features[starts[classes, None] + offsets].sum(dim=1)
        return sums / self.counts[:, None].to(self.features.dtype)

    def _weighted_means(self, weights: Tensor) -> Tensor:
        # Relative to the largest weight of the class, so that the sums stay finite and above zero.
        labels, C = self.labels(), len(self.counts)
        shares = weights / weights.new_zeros(C).scatter_reduce_(0, labels, weights, "amax")[labels]
        sums = self.features.new_zeros(C, self.features.shape[-1])
        sums.index_add_(0, labels, shares[:, None] * self.features)
        return sums / shares.new_zeros(C).index_add_(0, labels, shares)[:, None]

    def batches(self, copies: int = 1) -> Iterator[tuple[Tensor, int]]:
        """Batches of classes with several images: class indices (c,), and the K to which they are padded.

        Counts between two powers of two share a K, so padding at most doubles a batch.
        copies: how many copies of the rows of a batch the caller holds in memory.
        """
        buckets: dict[int, list[int]] = {}
        for c, count in enumerate(self.counts.tolist()):
            if count > 1:
                buckets.setdefault((count - 1).bit_length(), []).append(c)
        for classes in buckets.values():
            K = int(self.counts[classes].max())
            batch_size = max(min(MAX_CLASSES, MAX_VALUES // (copies * K * self.features.shape[-1])), 1)
            for batch in torch.split(torch.tensor(classes, device=self.counts.device), batch_size):
                yield batch, K

    def pad(self, classes: Tensor, K: int) -> Tensor:
        """Features of some classes (c,): (c, K, D), zero after the images of each class."""
        offsets = torch.arange(K, device=classes.device)
        starts = (self.counts.cumsum(0) - self.counts)[classes, None]
        inside = offsets < self.counts[classes, None]
        rows = self.features[torch.where(inside, starts + offsets, 0)]
        return torch.where(inside[..., None], rows, 0)

    def class_covariance_factors(self, classes: Tensor, K: int, centers: Tensor | None = None) -> Tensor:
        """U of some classes (c,), in float64: (c, R, D), or (..., c, R, D) about centers (..., C, D)."""
        centers = None if centers is None else centers[..., classes, :].double()
        return metric.class_covariance_factors(self.pad(classes, K).double(), self.counts[classes], centers)

    def pooled_covariance_factor(self, centers: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """U of all images as one class, in float64: (R, D); about their classes' centers (..., C, D): (..., R, D).

        weights: how many images each row counts as (N,); None: one.
        """
        centers = None if centers is None else centers.double()
        return metric.pooled_covariance_factor(self.features.double(), self.labels(), centers, weights)

    def pooled_covariance_factor_with_others(self, centers: Tensor | None = None) -> Tensor:
        """The same with the images of `others`: for the covariance that classes with a single image take."""
        others = self.others
        if others is None or not len(others.features):
            return self.pooled_covariance_factor(centers)
        if centers is not None:
            centers = torch.cat([centers, others.centers.expand(*centers.shape[:-2], -1, -1)], -2)
        union = ClassFeatures(torch.cat([self.features, others.features]), torch.cat([self.counts, others.counts]))
        return union.pooled_covariance_factor(centers)


def check_class_features(state: Mapping[str, Tensor], classes: int, D: int, *, needed: bool = True) -> list[str]:
    """Errors in the shapes of saved `train_features` and `train_counts`, one line each.

    A class that was added without images has none. needed: whether the head uses them.
    """
    features, counts = state["train_features"], state["train_counts"]
    if counts.shape != (classes,) or counts.min() < 0 or (needed and not counts.any()):
        return [f"train_counts: {classes} numbers of images expected"]
    expected = (int(counts.sum()), D)
    if features.shape != expected:
        return [f"train_features: shape {tuple(features.shape)}, expected {expected} by train_counts"]
    return _check_other_classes(state, D)


def _check_other_classes(state: Mapping[str, Tensor], D: int) -> list[str]:
    """Errors in the shapes of saved `other_features`, `other_counts` and `other_text`."""
    counts, text = state["other_counts"], state["text_features"]
    if counts.dim() != 1 or (counts < 0).any():
        return ["other_counts: numbers of images expected"]
    shapes = {"other_features": (int(counts.sum()), D), "other_text": (*text.shape[:-2], len(counts), D)}
    return [
        f"{name}: shape {tuple(state[name].shape)}, expected {shape} by other_counts"
        for name, shape in shapes.items()
        if state[name].shape != shape
    ]
