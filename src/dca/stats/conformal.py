"""Sets of classes that contain the right one with a stated probability, and p-values for "none of these".

    jackknife+   {y : #{i : s_i < s_-i(x, y)} < (1 - α)(n + 1)},   covers with probability 1 - 2α at least, and
                 usually 1 - α (Barber et al., Annals of Statistics 2021)
    threshold    {y : #{i : s_i < s(x, y)} < (1 - α)(n + 1)},   the same with one model for all: no guarantee, but
                 close to 1 - α where leaving an image out changes the model little
    p-value      (1 + #{i : D_i >= D(x)}) / (n + 1)

s_i = -log p of image i's own class by a model without it, s_-i(x, y) = -log p_y of a new image by that model, and
D_i, D(x) likewise for how far an image is from all classes. The most probable class is always in a set.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def jackknife_plus(held: Tensor, without: Tensor, coverage: float) -> Tensor:
    """Whether each class is in the set of each image: (B, C).

    held: s_i (n,). without: s_-i(x, y) (B, n, C). coverage: 1 - α.
    """
    exceeded = (held[:, None] < without).sum(dim=1)
    return exceeded < coverage * (len(held) + 1)


def threshold_sets(held: Tensor, scores: Tensor, coverage: float) -> Tensor:
    """As `jackknife_plus`, from scores (B, C) of one model."""
    return jackknife_plus(held, scores[:, None, :].expand(-1, len(held), -1), coverage)


def add_best(sets: Tensor, probabilities: Tensor) -> Tensor:
    """The sets (B, C) with the most probable class of probabilities (B, C) added."""
    best = torch.zeros_like(sets)
    best[torch.arange(len(sets), device=sets.device), probabilities.argmax(dim=-1)] = True
    return sets | best


def conformal_p_values(held: Tensor, found: Tensor) -> Tensor:
    """p-values (B,) of distances `found` (B,) among those of left-out images `held` (n,)."""
    smaller = torch.searchsorted(held.sort().values.contiguous(), found.contiguous())
    return (1 + len(held) - smaller) / (1 + len(held))


def min_images(coverage: float) -> int:
    """Images needed for sets that are not simply all classes: (1 - α)(n + 1) <= n.

    >>> min_images(0.9)
    9
    """
    return math.ceil(coverage / (1 - coverage) - 1e-9)
