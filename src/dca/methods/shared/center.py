"""The centre of the covariances of DCA's head, chosen on training images that are left out, before anything is trained.

About the text feature u of a class, Σ has the term n/(n - 1) (x̄ - u)(x̄ - u)ᵀ, through which the mean x̄ of its images
enters the distance. This helps where texts say little about the images and harms where they say enough; about x̄
itself, the mean of equation 2, the distance is nearly that to the text alone. So both heads predict training images
that were left out, with the γ of the paper:

    text     if w - l > sqrt(w + l), for w images that only this head recognises and l that only the other one does
    visual   otherwise, and where no class has two images

sqrt(w + l) is the standard deviation of w - l if both are equally good (McNemar). So the centre of equation 2 stays
unless the other one is better by more than one standard error, as in `dca study select`.

Features are those of CLIP alone, and texts those of the initial prompts. After training, the texts are fitted to these
very images, and nearly all of them are recognised by the text alone, left out of the covariance or not.

An image leaves together with its near-copies, and every class leaves a fifth of its images at a time: if only one
class had fewer images than in the fit, that would tell the class of the image. Of two images one is left, which counts
twice: so the class keeps a covariance of its own, of the gap between text and image, or none about the image itself
(Σ̂ = I), where the covariance of all images would be that of fits with one image per class.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import dca_gaussian, paper_gammas
from dca.methods.shared.heads import MahalanobisHead

Center = Literal["text", "visual"]
FOLDS = 5
# Fewest images of a class that leaves some of them out, counting near-copies once.
LEAST_IMAGES = 2


def choose_center(u: Tensor, features: Tensor, labels: Tensor, groups: Tensor, *, shots: int, tau: float) -> Center:
    """Choose the centre for unit text features u (M, C, D) and unit image features (N, D) with labels (N,).

    groups: (N,), equal numbers for near-copies. shots: of the fit; they decide γ.
    """
    text, visual = recognise_left_out(u, features, labels, groups, shots=shots, tau=tau)
    wins, losses = int((text & ~visual).sum()), int((visual & ~text).sum())
    return "text" if wins - losses > math.sqrt(wins + losses) else "visual"


def recognise_left_out(
    u: Tensor, features: Tensor, labels: Tensor, groups: Tensor, *, shots: int, tau: float
) -> Tensor:
    """Whether images are recognised while they are left out, about the texts and about the image means: (2, N').

    Arguments as for `choose_center`; N' of the N images are left out.
    """
    folds, right = number_folds(labels, groups), [labels.new_zeros(2, 0, dtype=torch.bool)]
    for fold in range(FOLDS):
        left_out = folds == fold
        if left_out.any():
            rest = _group_the_rest(features, labels, left_out, u.shape[1])
            right.append(_recognise(u, rest, features[left_out], labels[left_out], shots, tau))
    return torch.cat(right, dim=1)


def number_folds(labels: Tensor, groups: Tensor) -> Tensor:
    """The fold that each image is left out of, (N,); -1 for images that stay in all. labels, groups: (N,)."""
    folds = torch.full_like(labels, -1)
    for label in torch.unique(labels).tolist():
        own = labels == label
        different, numbers = torch.unique(groups[own], return_inverse=True)
        if len(different) >= LEAST_IMAGES:
            folds[own] = numbers.to(folds) % FOLDS
    return folds


def _group_the_rest(features: Tensor, labels: Tensor, left_out: Tensor, classes: int) -> ClassFeatures:
    """Images that are not left out; one that is left alone in its class counts twice."""
    before, kept = torch.bincount(labels, minlength=classes), labels[~left_out]
    alone = (torch.bincount(kept, minlength=classes) == 1) & (before > 1)
    rest = features[~left_out]
    return ClassFeatures.group(torch.cat([rest, rest[alone[kept]]]), torch.cat([kept, kept[alone[kept]]]), classes)


def _recognise(u: Tensor, rest: ClassFeatures, f: Tensor, labels: Tensor, shots: int, tau: float) -> Tensor:
    """Whether images f (B, D) are recognised by the heads about text and about image means of `rest`: (2, B)."""
    family = dca_gaussian(*paper_gammas(shots), shots)
    rows = []
    for center in ("text", "visual"):
        head = MahalanobisHead.from_text(u, rest, family, tau=tau, center=center)
        predicted = torch.cat([head(part).argmax(dim=1) for part in torch.split(f, head.max_batch_size)])
        rows.append(predicted == labels)
    return torch.stack(rows)
