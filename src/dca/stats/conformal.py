"""Sets of classes that contain the right one with a stated probability, and p-values for "none of these".

    jackknife+   {y : #{i : s_i < s_-i(x, y)} < (1 - α)(n + 1)},   covers with probability 1 - 2α at least, and
                 usually 1 - α (Barber et al., Annals of Statistics 2021)
    threshold    {y : #{i : s_i < s(x, y)} < (1 - α)(n + 1)},   the same with one model for all: no guarantee, but
                 close to 1 - α where leaving an image out changes the model little
    p-value      (v̄ + Σ_{i: t_i < t(x)} v_i) / (v̄ + Σ_i v_i),   in which the nearest t_i below counts in proportion to
                 how far t(x) is on its way from there to the next one

s_i = -log p of image i's own class by a model without it, s_-i(x, y) = -log p_y of a new image by that model, and
t_i, t(x) likewise for how familiar an image is. The most probable class is always in a set.

v_i is the weight of a held-out image. Where all weights are equal, v̄ is one of them, and at the n held-out images the
p-values are 1/(n + 1), 2/(n + 1), ... If new images are like these, a share P of them has a p-value of at most P,
wherever P is a multiple of 1/(n + 1); the interpolation keeps that between the multiples, up to the shape of the
distribution. Without it, the share would fall behind: with 30 images 1/31 have a p-value of at most 0.05.

With v_i = 1/n_c for an image of a class of n_c, the same holds for new images that are spread evenly over the classes.
v̄ = Σ v_i² / Σ v_i is then the mean weight of such an image, and the held-out images are worth n = Σ v_i / v̄ of them:
C times the harmonic mean of the n_c. No p-value is below 1/(n + 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassRanks:
    """How strange each class would be for new images, among held-out images.

    ranks: #{i : s_i < s_-i(x, y)} of the sets above (B, C), int32. images: n, the number of held-out images.
    """

    ranks: Tensor
    images: int

    def sets(self, coverage: float) -> Tensor:
        """Whether each class is in the set of each image: (B, C). coverage: 1 - α."""
        return self.ranks < coverage * (self.images + 1)


def jackknife_ranks(held: Tensor, without: Tensor) -> ClassRanks:
    """Ranks for jackknife+. held: s_i (n,). without: s_-i(x, y) (B, n, C)."""
    return ClassRanks((held[:, None] < without).sum(dim=1, dtype=torch.int32), len(held))


def threshold_ranks(held: Tensor, scores: Tensor) -> ClassRanks:
    """Ranks for sets by a threshold. held: s_i (n,). scores: s(x, y) (B, C) of one model."""
    return jackknife_ranks(held, scores[:, None, :])


def add_best(sets: Tensor, probabilities: Tensor) -> Tensor:
    """The sets (B, C) with the most probable class of probabilities (B, C) added."""
    best = torch.zeros_like(sets)
    best[torch.arange(len(sets), device=sets.device), probabilities.argmax(dim=-1)] = True
    return sets | best


@dataclass(frozen=True)
class PValueTable:
    """p-values by a table of held-out images, in which a score is looked up. All float64, (n,), in ascending order.

    held: t_i. values: p-value at each. slopes: by which it grows until the next.
    """

    held: Tensor
    values: Tensor
    slopes: Tensor

    @classmethod
    def from_scores(cls, held: Tensor, weights: Tensor | None = None) -> Self:
        """From scores t_i (n,) in any order, and the weights v_i (n,), equal if not given."""
        held, order = held.double().sort()
        weights = torch.ones_like(held) if weights is None else weights.double()
        v, least = weights[order], smallest_p_value(weights)
        v = v * v.sum() / v.square().sum()  # v̄ = 1
        values = least * (1 + (v.cumsum(dim=0) - v))
        steps = held.diff(append=held[-1:])
        slopes = torch.where(steps > 0, least * v / torch.where(steps > 0, steps, 1.0), 0.0)
        return cls(held, values, slopes)

    def __call__(self, scores: Tensor) -> Tensor:
        """p-values (B,), float64, of scores (B,); small scores are unusual."""
        scores = scores.double()
        upper = (self.held <= scores[:, None]).sum(dim=-1)  # the first image above
        lower = (upper - 1).clamp_min(0)
        way = torch.where(upper > 0, scores - self.held[lower], 0.0)
        return torch.where(upper == len(self.held), 1.0, self.values[lower] + way * self.slopes[lower])


def conformal_p_values(held: Tensor, scores: Tensor, weights: Tensor | None = None) -> Tensor:
    """p-values (B,), float64, of scores (B,) among those of held-out images `held` (n,); see `PValueTable`."""
    return PValueTable.from_scores(held, weights)(scores)


def class_weights(labels: Tensor) -> Tensor:
    """Weights (n,) of held-out images with which all classes count the same. labels: (n,)."""
    return 1 / torch.bincount(labels)[labels].double()


def smallest_p_value(weights: Tensor) -> float:
    """The smallest p-value with held-out images of these weights (n,).

    >>> smallest_p_value(torch.ones(19))
    0.05
    >>> smallest_p_value(class_weights(torch.tensor([0] * 60 + [1] * 4)))
    0.0625
    """
    v = weights.double()
    return 1 / (1 + round(float(v.sum() ** 2 / v.square().sum()), 9))  # no rounding error may lift it above a rate


def min_images_for_rate(rate: float) -> int:
    """Held-out images, as many of each class, needed for p-values of at most `rate`: 1/(n + 1) <= rate.

    >>> min_images_for_rate(0.05), min_images_for_rate(0.1)
    (19, 9)
    """
    return math.ceil(1 / rate - 1 - 1e-9)


def min_images(coverage: float) -> int:
    """Images needed for sets that are not simply all classes: (1 - α)(n + 1) <= n.

    >>> min_images(0.9)
    9
    """
    return math.ceil(coverage / (1 - coverage) - 1e-9)
