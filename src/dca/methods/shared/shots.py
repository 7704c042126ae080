"""Training features grouped by class: the input of class statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods.shared import metric

# Classes per padded batch, and numbers in it: they bound memory, not results.
CLASSES, NUMBERS = 256, 2**23


@dataclass(frozen=True)
class OtherClasses:
    """Images of classes that a model was fitted on and does not have any more.

    features: (N, D), class after class. counts: (C,). centers: text features of these classes, (..., C, D).
    """

    features: Tensor
    counts: Tensor
    centers: Tensor

    @classmethod
    def none(cls, like: Tensor) -> OtherClasses:
        """No such images; like: centers (..., C, D) of the classes that there are."""
        counts = torch.zeros(0, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(0, like.shape[-1]), counts, like[..., :0, :])

    def joined(self, shots: ClassFeatures, centers: Tensor, classes: Sequence[int]) -> OtherClasses:
        """With the classes `classes` of shots, whose centers are (..., C, D)."""
        each = torch.split(shots.features, shots.counts.tolist())
        return OtherClasses(
            torch.cat([self.features, *(each[c] for c in classes)]),
            torch.cat([self.counts, shots.counts[list(classes)]]),
            torch.cat([self.centers, centers[..., list(classes), :]], dim=-2),
        )


@dataclass(frozen=True)
class ClassFeatures:
    """Training features, class after class, without padding.

    features: (N, D). counts: images of each class (C,), their sum is N. rest: images of other classes, which count
    only in the covariance of all images (`all_rows`).
    """

    features: Tensor
    counts: Tensor
    rest: OtherClasses | None = None

    @classmethod
    def group(cls, features: Tensor, labels: Tensor, classes: int) -> ClassFeatures:
        """From rows (N, D) and labels (N,); the order within a class is kept."""
        return cls(features[labels.argsort(stable=True)], torch.bincount(labels, minlength=classes))

    @classmethod
    def none(cls, classes: int, like: Tensor) -> ClassFeatures:
        """No features for any of the classes; type, device and D of `like` (..., D)."""
        counts = torch.zeros(classes, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(0, like.shape[-1]), counts)

    def labels(self) -> Tensor:
        """Class of each row: (N,)."""
        return torch.arange(len(self.counts), device=self.counts.device).repeat_interleave(self.counts)

    def select(self, sources: Sequence[int | None]) -> ClassFeatures | None:
        """The shots of the classes `sources`, in that order; None where a class has no source."""
        options = [s for s in sources if s is not None]
        if len(options) < len(sources):
            return None
        each = torch.split(self.features, self.counts.tolist())
        return ClassFeatures(torch.cat([each[c] for c in options]), self.counts[options])

    def append(self, features: Tensor) -> ClassFeatures:
        """The shots with one more class, the last, which has these features (n, D); n may be 0."""
        counts = torch.cat([self.counts, self.counts.new_tensor([len(features)])])
        return ClassFeatures(torch.cat([self.features, features]), counts)

    def means(self) -> Tensor:
        """Mean feature of each class, (C, D)."""
        # Classes of equal size together: adding all rows at once would sum in a random order on a GPU.
        sums = self.features.new_zeros(len(self.counts), self.features.shape[-1])
        starts = self.counts.cumsum(0) - self.counts
        for count in torch.unique(self.counts).tolist():
            places = (self.counts == count).nonzero().flatten()
            offsets = torch.arange(count, device=places.device)
            sums[places] = self.features[starts[places, None] + offsets].sum(dim=1)
        return sums / self.counts[:, None].to(self.features.dtype)

    def batches(self, copies: int = 1) -> Iterator[tuple[Tensor, int]]:
        """Classes with several images, a few at a time: places (c,), and K, to which they are padded.

        Counts between two powers of two share a K, so padding at most doubles a batch.
        copies: how many copies of the rows of a batch the caller holds in memory.
        """
        buckets: dict[int, list[int]] = {}
        for place, count in enumerate(self.counts.tolist()):
            if count > 1:
                buckets.setdefault((count - 1).bit_length(), []).append(place)
        for places in buckets.values():
            most = int(self.counts[places].max())
            at_once = max(min(CLASSES, NUMBERS // (copies * most * self.features.shape[-1])), 1)
            for some in torch.split(torch.tensor(places, device=self.counts.device), at_once):
                yield some, most

    def padded(self, places: Tensor, K: int) -> Tensor:
        """Features of the classes `places` (c,): (c, K, D), zero after the images of each class."""
        offsets = torch.arange(K, device=places.device)
        starts = (self.counts.cumsum(0) - self.counts)[places, None]
        inside = offsets < self.counts[places, None]
        rows = self.features[torch.where(inside, starts + offsets, 0)]
        return torch.where(inside[..., None], rows, 0)

    def class_rows(self, places: Tensor, K: int, centers: Tensor | None = None) -> Tensor:
        """U of the classes `places` (c,), in float64: (c, R, D), or (..., c, R, D) about centers (..., C, D)."""
        middle = None if centers is None else centers[..., places, :].double()
        return metric.class_rows(self.padded(places, K).double(), self.counts[places], middle)

    def pooled_rows(self, centers: Tensor | None = None) -> Tensor:
        """U of all images as one class, in float64: (R, D); about their classes' centers (..., C, D): (..., R, D)."""
        middle = None if centers is None else centers.double()
        return metric.pooled_rows(self.features.double(), self.labels(), middle)

    def all_rows(self, centers: Tensor | None = None) -> Tensor:
        """`pooled_rows` of the images of `rest`, too: the covariance that classes with a single image take."""
        rest = self.rest
        if rest is None or not len(rest.features):
            return self.pooled_rows(centers)
        middle = None if centers is None else torch.cat([centers, rest.centers.expand(*centers.shape[:-2], -1, -1)], -2)
        everything = ClassFeatures(torch.cat([self.features, rest.features]), torch.cat([self.counts, rest.counts]))
        return everything.pooled_rows(middle)


def check_class_features(state: Mapping[str, Tensor], classes: int, D: int, *, needed: bool = True) -> list[str]:
    """Errors in the shapes of saved `shot_features` and `shot_counts`, one line each.

    A class may have none, if it was added without images. needed: whether the head uses them.
    """
    shots, counts = state["shot_features"], state["shot_counts"]
    if counts.shape != (classes,) or counts.min() < 0 or (needed and not counts.any()):
        return [f"shot_counts: {classes} numbers of images expected"]
    expected = (int(counts.sum()), D)
    if shots.shape != expected:
        return [f"shot_features: shape {tuple(shots.shape)}, expected {expected} by shot_counts"]
    return _rest_problems(state, D)


def _rest_problems(state: Mapping[str, Tensor], D: int) -> list[str]:
    """Errors in the shapes of saved `rest_features`, `rest_counts` and `rest_text`."""
    counts, text = state["rest_counts"], state["text_features"]
    if counts.dim() != 1 or (counts < 0).any():
        return ["rest_counts: numbers of images expected"]
    shapes = {"rest_features": (int(counts.sum()), D), "rest_text": (*text.shape[:-2], len(counts), D)}
    return [
        f"{name}: shape {tuple(state[name].shape)}, expected {shape} by rest_counts"
        for name, shape in shapes.items()
        if state[name].shape != shape
    ]
