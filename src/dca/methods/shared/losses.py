"""Loss terms as pure functions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.metric import Precision, quadratic

Intra = Literal["mahalanobis", "l2", "l1"]
IntraReduction = Literal["element", "mean", "sum"]
SeparationReduction = Literal["mean", "sum"]


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """L_cls, Eq. 9: sum over the prompts of the cross-entropy of each prompt.

    logits: (M, B, C). labels: (B,). Each prompt's term is the mean over the batch.
    """
    return torch.stack([F.cross_entropy(of_prompt, labels) for of_prompt in logits]).sum()


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
        distance = quadratic(precision, delta)
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
    pushes the mean text feature to zero. pairs: (P, 2) places to use instead of all pairs.
    """
    n = len(text)
    if pairs is not None:
        total = -(text[pairs[:, 0]] - text[pairs[:, 1]]).square().sum()
        count = len(pairs)
    else:
        total = -2 * (n * text.square().sum() - text.sum(dim=0).square().sum())
        count = n * (n - 1)
    return total if reduction == "sum" else total / max(count, 1)


def random_pairs(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Ordered pairs of different places below n, drawn with replacement: (count, 2)."""
    first = torch.randint(n, (count,), generator=generator)
    offset = torch.randint(1, n, (count,), generator=generator)
    return torch.stack([first, (first + offset) % n], dim=1)
