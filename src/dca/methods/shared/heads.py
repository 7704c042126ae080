"""Finished heads: unit image features (B, D) -> probabilities (B, C).

A head is a frozen value. Everything that does not depend on the image is computed once, in float64,
when the head is made; a call is a few matrix products over a batch of any size, so that a head
can be exported with a dynamic batch. `prompt_logits` is for training, where texts change in every step.

    LinearHead       softmax_y( w_y · f + b_y )
    PromptHead       1/M Σ_m softmax_y( τ u_{m,y} · f ), or of the score of ‖f - u_{m,y}‖²
    CacheHead        softmax_y( w_y · f + α Σ_{i of class y} exp(-β (1 - k_i · f)) )
    MahalanobisHead  1/M Σ_m softmax_y( score of (f - u_{m,y})ᵀ Σ̂⁻¹ (f - u_{m,y}) ), in mahalanobis_head.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.calibration import FLOOR
from dca.core.errors import UserError
from dca.methods.shared import metric
from dca.methods.shared.class_precisions import ClassPrecisions

# Most images per call, and most numbers in an intermediate result: they bound memory, not results.
IMAGES, NUMBERS = 128, 2**24


class Head(ABC):
    """The end of a finished model; subclasses are frozen dataclasses of tensors."""

    @abstractmethod
    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""

    @property
    def images_at_once(self) -> int:
        """Most images that a call should be given."""
        return max(min(IMAGES, NUMBERS // self.numbers_per_image), 1)

    @property
    def numbers_per_image(self) -> int:
        """Size of the largest intermediate result, per image."""
        return 1


@dataclass(frozen=True)
class LinearHead(Head):
    """Softmax of w_y · f + b_y. weight: (C, D), scale included. bias: (C,) or None."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def cosine(cls, text: Tensor, tau: float) -> LinearHead:
        """Softmax of τ t_y · f for unit text features (C, D)."""
        return cls(_as(tau * text.double(), text))

    def logits(self, f: Tensor) -> Tensor:
        """w_y · f + b_y of image features f (B, D): (B, C)."""
        return F.linear(f, self.weight, self.bias)

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def numbers_per_image(self) -> int:
        """One logit per class."""
        return len(self.weight)


def prompt_logits(
    f: Tensor,
    u: Tensor,
    *,
    tau: float,
    metric_name: str = "cosine",
    score: str = "inverse",
    eps: float = 1e-6,
    precisions: ClassPrecisions | None = None,
) -> Tensor:
    """Inputs of M softmaxes, (M, N, C), of f (N, D) under unit text features u (M, C, D), differentiable in both.

    precisions: Σ̂⁻¹ of the classes, for the metric "mahalanobis".
    """
    if metric_name == "cosine":
        return tau * (f @ u.mT)
    if metric_name == "euclidean":
        distance = metric.euclidean(f, u)
    elif precisions is not None:
        distance = precisions.distances(f, u)
    else:
        raise ValueError("the Mahalanobis metric needs precisions")
    return metric.scores(distance, tau, eps, score).transpose(-1, -2)


@dataclass(frozen=True)
class PromptHead(Head):
    """Mean over M prompts of the softmax of τ cos, or of the score of the squared Euclidean distance.

    weight: (M·C, D), prompt after prompt: τ u, or -2 u. squares: ‖u‖² (M·C,) for distances, None for the cosine.
    """

    weight: Tensor
    squares: Tensor | None
    classes: int
    tau: float
    score: str
    eps: float

    @classmethod
    def of(cls, u: Tensor, tau: float, metric_name: str, score: str = "inverse", eps: float = 1e-6) -> PromptHead:
        """From unit text features u (M, C, D) and the metric "cosine" or "euclidean"."""
        exact, classes = u.double().flatten(0, 1), u.shape[1]
        squares = _as(exact.square().sum(dim=-1), u)
        require_finite(squares)
        if metric_name == "cosine":
            return cls(_as(tau * exact, u), None, classes, tau, score, eps)
        return cls(_as(-2 * exact, u), squares, classes, tau, score, eps)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the M softmaxes of image features f (B, D): (B, M, C)."""
        logits = F.linear(f, self.weight, self.squares)
        if self.squares is not None:
            distance = (logits + f.square().sum(dim=-1, keepdim=True)).clamp_min(0)
            logits = metric.scores(distance, self.tau, self.eps, self.score)
        return torch.unflatten(logits, 1, (-1, self.classes))

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1).mean(dim=1)

    @property
    def numbers_per_image(self) -> int:
        """One logit per prompt and class."""
        return len(self.weight)


@dataclass(frozen=True)
class CacheHead(Head):
    """Softmax of text logits and of a cache of training images.

    text: (C, D), τ included. keys: β k (D, N), classes with equally many keys together. offset: log α - β, ().
    sizes: number of such classes, and of keys of each of them. order: (C,), position of each class.
    """

    text: Tensor
    keys: Tensor
    offset: Tensor
    sizes: tuple[tuple[int, int], ...]
    order: Tensor

    @classmethod
    def of(cls, text: Tensor, keys: Tensor, labels: Tensor, tau: float, alpha: float, beta: float) -> CacheHead:
        """From unit text features (C, D), keys (N, D) and their labels (N,)."""
        counts = torch.bincount(labels, minlength=len(text))
        classes = counts.argsort(stable=True)
        rows = (counts[labels] * len(text) + labels).argsort(stable=True)
        each, numbers = torch.unique(counts, return_counts=True)
        return cls(
            text=_as(tau * text.double(), text),
            keys=_as(beta * keys.double()[rows].T, text),
            offset=text.new_tensor(alpha).log() - beta,
            sizes=tuple(zip(numbers.tolist(), each.tolist(), strict=True)),
            order=classes.argsort(),
        )

    def logits(self, f: Tensor) -> Tensor:
        """Text and cache of image features f (B, D), before the softmax: (B, C)."""
        near = (f @ self.keys + self.offset).exp()
        sums, start = [], 0
        for classes, each in self.sizes:
            own = near[:, start : start + classes * each]
            sums.append(torch.unflatten(own, 1, (classes, each)).sum(dim=-1))
            start += classes * each
        cache = torch.cat(sums, dim=1).index_select(1, self.order)
        return F.linear(f, self.text) + cache

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def numbers_per_image(self) -> int:
        """One affinity per key."""
        return self.keys.shape[1]


def tempered(probabilities: Tensor, temperature: float) -> Tensor:
    """softmax(log p / T) of probabilities (B, C), in float64: in float32 the two best classes could become equal."""
    return (probabilities.double().clamp_min(FLOOR).log() / temperature).softmax(dim=-1)


def require_finite(constants: Tensor) -> None:
    """Raise for constants that overflowed: infinite distances would give equal probabilities for all classes."""
    if not torch.isfinite(constants).all():
        raise UserError(
            "the text or training features of this model hold extreme values",
            hint="fit again, with the default options first",
        )


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    """In the type of another tensor, contiguous."""
    return tensor.to(like.dtype).contiguous()
