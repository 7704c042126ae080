"""DCA's loss terms: pure functions, and the constants of its intra-class loss L_in.

L = L_cls + α L_in + β L_ts
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.base import Support
from dca.methods.shared import gaussian
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.heads import ClassPrecisions
from dca.methods.shared.metric import Precision, quadratic_form

Intra = Literal["mahalanobis", "l2", "l1"]
IntraReduction = Literal["element", "mean", "sum"]
SeparationReduction = Literal["mean", "sum"]


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """L_cls, Eq. 9: sum over the prompts of the cross-entropy of each prompt.

    logits: (M, B, C). labels: (B,). Each prompt's term is the mean over the batch.
    """
    return torch.stack([F.cross_entropy(prompt_logits, labels) for prompt_logits in logits]).sum()


def intra_class(
    features: Tensor,
    centers: Tensor,
    precision: Precision | None,
    *,
    form: str = "mahalanobis",
    reduction: str = "element",
) -> Tensor:
    """L_in, Eq. 11: distance of each image from the centre of its class.

    features, centers: (B, D), one centre and, for the Mahalanobis form, one precision
    per image. The reduction is the sum over images, their mean, or the mean over
    images and dimensions.
    """
    delta = features - centers
    if form == "mahalanobis":
        if precision is None:
            raise ValueError("the Mahalanobis form needs covariances")
        distance = quadratic_form(precision, delta)
    elif form == "l2":
        distance = delta.square().sum(dim=-1)
    else:
        distance = delta.abs().sum(dim=-1)
    if reduction == "sum":
        return distance.sum()
    return distance.mean() / (delta.shape[-1] if reduction == "element" else 1)


def text_separation(text: Tensor, *, reduction: str = "mean", pairs: Tensor | None = None) -> Tensor:
    """L_ts, Eq. 12: minus the squared distances between all text features.

    text: (n, D). Closed form of -Σ_{i≠j} ‖u_i - u_j‖² = -2 (n Σ‖u_i‖² - ‖Σ u_i‖²): the term
    pushes the mean text feature to zero. pairs: (P, 2) indices to use instead of all pairs.
    """
    n = len(text)
    if pairs is not None:
        total = -(text[pairs[:, 0]] - text[pairs[:, 1]]).square().sum()
        count = len(pairs)
    else:
        total = -2 * (n * text.square().sum() - text.sum(dim=0).square().sum())
        count = n * (n - 1)
    return total if reduction == "sum" else total / max(count, 1)


def draw_pairs(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw ordered pairs of different indices below n, with replacement: (count, 2)."""
    first = torch.randint(n, (count,), generator=generator)
    offset = torch.randint(1, n, (count,), generator=generator)
    return torch.stack([first, (first + offset) % n], dim=1)


@dataclass(frozen=True)
class IntraClass:
    """Constants of L_in, Eq. 11. centers: (C, D). precisions: Σ̂⁻¹ of the C classes."""

    centers: Tensor
    precisions: ClassPrecisions

    @classmethod
    def from_features(cls, features: Tensor, labels: Tensor, names: tuple[str, ...], per_class: int) -> IntraClass:
        """Compute them from unit features (N, D) of all training images, before any training.

        per_class: shots; they decide γ, whatever the options of the head: those must not change training.
        """
        grouped = ClassFeatures.group(features, labels, len(names))
        family = gaussian.dca_gaussian(*gaussian.paper_gammas(per_class), per_class)
        with gaussian.name_classes_in_error(names):
            return cls(grouped.means(), ClassPrecisions.from_features(grouped, family, features.dtype))

    @classmethod
    def from_support(cls, support: Support, names: tuple[str, ...], per_class: int) -> IntraClass:
        """Compute them from the features that CLIP itself gives the training images."""
        return cls.from_features(F.normalize(support.frozen_features(), dim=-1), support.labels, names, per_class)

    def __call__(self, f: Tensor, labels: Tensor, form: str = "mahalanobis", reduction: str = "element") -> Tensor:
        """L_in of unit features f (B, D) with labels (B,)."""
        precision = self.precisions[labels] if form == "mahalanobis" else None
        return intra_class(f, self.centers[labels], precision, form=form, reduction=reduction)
