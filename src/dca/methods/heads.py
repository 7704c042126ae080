"""Heads: text features and a metric (and class statistics) -> probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods import metric
from dca.methods.metric import Covariance, IndefiniteError

# How many classes and images a Mahalanobis head takes at once: bounds memory, not results.
CLASSES, IMAGES = 64, 2048
# Shots -> (γ1, γ2); other numbers take the largest listed one not above them.
GAMMAS = {1: (500.0, 300.0), 2: (500.0, 300.0), 4: (600.0, 100.0), 8: (500.0, 100.0), 16: (500.0, 500.0)}


def gammas(shots: int) -> tuple[float, float]:
    """γ1 and γ2 for a number of shots."""
    return GAMMAS[max(k for k in GAMMAS if k <= max(shots, 1))]


@dataclass(frozen=True)
class Shots:
    """The training features a covariance head is made of, grouped by class.

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


@dataclass(frozen=True)
class Shrinkage:
    """How raw covariances become usable ones."""

    gamma1: float
    gamma2: float
    normalize: bool = True

    def __call__(self, U: Tensor) -> Covariance:
        """Covariances of rows U (..., R, D)."""
        return metric.covariance(U, self.gamma1, self.gamma2, normalize=self.normalize)


def shrinkages(gamma1: float, gamma2: float, shots: int, *, normalize: bool = True) -> tuple[Shrinkage, Shrinkage]:
    """For classes with several images, and for the covariance shared by those with one.

    Where γ1 and γ2 are the table's for these shots, the shared one takes the table's for one shot.
    """
    own = Shrinkage(gamma1, gamma2, normalize)
    return own, Shrinkage(*gammas(1), normalize) if (gamma1, gamma2) == gammas(shots) else own


def shots_problems(state: Mapping[str, Tensor], classes: int, D: int) -> list[str]:
    """What is wrong with saved `shot_features` and `shot_counts`, one line each."""
    shots, counts = state["shot_features"], state["shot_counts"]
    if shots.dim() != 3 or shots.shape[0] != classes or shots.shape[2] != D:
        return [f"shot_features: shape {tuple(shots.shape)}, expected ({classes}, shots, {D})"]
    if counts.shape != (classes,) or counts.min() < 1 or counts.max() > shots.shape[1]:
        return [f"shot_counts: {classes} numbers from 1 to {shots.shape[1]} expected"]
    return []


def pooled_rows(shots: Shots, text: Tensor | None = None) -> Tensor:
    """U of all images as one class; text: (M, C, D) to centre each image on its class's text feature."""
    features, labels = shots.flat()
    return metric.pooled_rows(features, labels, text)


def class_covariances(shots: Shots, shrinkage: Shrinkage, pooled: Shrinkage) -> Covariance:
    """Σ̂ of every class about its own mean, as one batch (C,): the constants of L_in.

    Classes with one image get the pooled covariance with its own shrinkage.
    """
    many = shots.counts > 1
    parts = []
    if many.any():
        with numbered(many.nonzero().flatten()):
            parts.append(shrinkage(metric.class_rows(shots.features[many], shots.counts[many])))
    if not many.all():
        one = pooled(pooled_rows(shots))
        parts.append(one.map(lambda t: t.expand(int((~many).sum()), *t.shape)))
    order = torch.cat([many.nonzero(), (~many).nonzero()]).flatten()
    return metric.concatenate(parts)[order.argsort()]


@contextmanager
def numbered(group: Tensor) -> Iterator[None]:
    """Errors about places in a batch become errors about the classes `group` that it held."""
    try:
        yield
    except IndefiniteError as error:
        raise IndefiniteError([int(group[c]) for c in error.classes], *error.gammas) from None


@contextmanager
def naming_classes(names: Sequence[str]) -> Iterator[None]:
    """Errors of the mathematics speak of class numbers; people know names."""
    try:
        yield
    except IndefiniteError as error:
        raise IndefiniteError(error.classes, *error.gammas, names=names) from None


@dataclass(frozen=True)
class Head:
    """Probabilities of unit image features f under M·C unit text features.

    text: (M, C, D). tau, eps: scale and guard of the distance softmax. The rest is for the
    Mahalanobis metric. shots: the training features. shrinkage: for classes with several
    images; pooled: for the covariance that classes with one image share. center: "text"
    measures a class's spread about its text feature, "visual" about the mean of its images.
    fixed: covariances (C,) to use as they are instead of making them from shots.
    """

    text: Tensor
    tau: float
    metric: str = "cosine"
    score: str = "inverse"
    eps: float = 1e-6
    center: str = "text"
    shots: Shots | None = None
    shrinkage: Shrinkage | None = None
    pooled: Shrinkage | None = None
    fixed: Covariance | None = None

    def logits(self, f: Tensor) -> Tensor:
        """f: (N, D) -> what the softmax takes, (M, N, C)."""
        if self.metric == "cosine":
            return self.tau * (f @ self.text.mT)
        distance = metric.euclidean(f, self.text) if self.metric == "euclidean" else self._mahalanobis(f)
        return metric.scores(distance, self.tau, self.eps, self.score).transpose(-1, -2)

    def probabilities(self, f: Tensor) -> Tensor:
        """Mean over the prompts of each prompt's softmax: (N, D) -> (N, C)."""
        return torch.cat([self.logits(part).softmax(dim=-1).mean(dim=0) for part in torch.split(f, IMAGES)])

    def _mahalanobis(self, f: Tensor) -> Tensor:
        """d_m of every image to every class under every prompt: (M, C, N).

        Covariances are made in float64 for a few classes at a time from the stored features:
        that is cheaper than keeping M copies of them, and memory stays flat in C.
        """
        if self.fixed is not None:
            return metric.mahalanobis(self.fixed, f, self.text)
        assert self.shots is not None
        many = self.shots.counts > 1
        out = f.new_empty(*self.text.shape[:2], len(f))
        for group in torch.split(many.nonzero().flatten(), CLASSES):
            text = self.text[:, group]
            with numbered(group):
                cov = self._covariances(group, text).to(f.dtype)
            out[:, group] = metric.mahalanobis(cov, f, text)
        if not many.all():
            out[:, ~many] = metric.mahalanobis(self._shared().to(f.dtype), f, self.text[:, ~many])
        return out

    def _covariances(self, group: Tensor, text: Tensor) -> Covariance:
        """Of the classes in `group`: a batch (c,), or (M, c) when centred on text (M, c, D)."""
        assert self.shots is not None
        assert self.shrinkage is not None
        center = text.double() if self.center == "text" else None
        return self.shrinkage(metric.class_rows(self.shots.features[group].double(), self.shots.counts[group], center))

    def _shared(self) -> Covariance:
        """The pooled covariance with an axis for the classes: a batch (1,), or (M, 1)."""
        assert self.shots is not None
        assert self.pooled is not None
        shots = Shots(self.shots.features.double(), self.shots.counts)
        return self.pooled(pooled_rows(shots, self.text.double() if self.center == "text" else None)[..., None, :, :])
