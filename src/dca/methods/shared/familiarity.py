"""How familiar an image is, and p-values for "none of these".

Kernel ridge regression over the training images says how strongly they speak for each class; far from all of them
every prediction falls to zero. An image is familiar if some class is predicted strongly:

    t(x) = max_c f_c(x) / e_c(n_c) + f_o(x) / ē,   f(x) = κ(x, ·) A,   A = (K + ρ Ω⁻¹)⁻¹ Y
    κ(x, x') = exp(-w (1 - x·x') / s)

    Y    in column c 1 for images of the class, 0 for all others; in column o -¼ for images of none of the classes,
         which a user may give ("other" images), and 0 for images of the classes
    ω_i  N / (C n_{y_i}), so that all classes count the same; 1 for other images
    s    mean of 1 - x·x' over pairs of training images
    e_c(n) = n / (1 + ρ/ω_c + (n - 1) b),   b = max(0, (κ_w - κ_b) / (1 - κ_b))
    ē    mean of the e_c(n_c)
    κ_w  mean κ of two images of a class, the mean over classes;   κ_b  that of two images of different classes

e_c(n) is, up to a factor, what n images of a class predict for one more, if every two of them have the same
similarity; b is that similarity without what all classes share. It makes classes with few and with many images
comparable, and it repairs what leaving an image out changes: the class of a held-out image has fewer images than that
of a new image.

Photos of one occasion (the same object, a series, frames of a video) are more alike than new images are like them.
Images of a class whose distance 1 - x·x' is below `SAME_OCCASION` times the median of its class are taken for one
occasion, and leave together; the nearest of n images come closer as n grows, and so does that limit. With
G = (K + ρ Ω⁻¹)⁻¹, the predictions for images B by the model without them are Y_B - G_BB⁻¹ A_B; their own class is
divided by e_c(n_c - |B|). Without this, half of the new images are rejected where every photo has a sibling.

The p-value of a new image is its position among the held-out training images (`stats/conformal.py`), where every class
has the same weight: a class with many images would hide that images of a rare class are rejected. Of copies and
near-copies one image is used. Other images are never left out: what is promised is about images of the classes.

w and ρ are fixed numbers, so that nothing is selected on the images that calibrate the p-values. With other values
(w from 1 to 4, ρ from 0.01 to 3) and other scores the areas under the ROC curve were at best equal
(docs/closed-form.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.experts import BLOCK, iterate_copies
from dca.stats.conformal import PValueTable, class_weights, smallest_p_value

WIDTH, RIDGE = 2.0, 0.03
# Distance, as a share of the median of the class, below which images are of one occasion; and how that falls with more
# images of the class than `FEW`: by 13 % when their number doubles, as the distance of the nearest image does.
SAME_OCCASION, FEW, FALL = 0.35, 16, 0.2
# The target of other images.
OTHER_TARGET = -0.25
# Most training images, and other images, that define what is familiar.
MOST_IMAGES, MOST_OTHER = 3000, 1000


@dataclass(frozen=True)
class Familiarity:
    """What is familiar by N unit training features x (N, D), labels (N,) of C classes, and M other images (M, D).

    All float64; no two images are copies of each other, and a class may have no image.
    """

    x: Tensor
    labels: Tensor
    classes: int
    other: Tensor

    @classmethod
    def from_features(
        cls, features: Tensor, labels: Tensor, groups: Tensor, classes: int, other: Tensor | None = None
    ) -> Familiarity:
        """Take one image of each group of copies. features: (N, D). labels, groups: (N,). other: (M, D) or None."""
        _, group = torch.unique(groups, return_inverse=True)
        none = torch.full((int(group.max()) + 1,), len(group))
        first = none.scatter_reduce(0, group, torch.arange(len(group)), "amin")
        rows = _subsample(first.sort().values, MOST_IMAGES)
        other = features[:0] if other is None else other[_subsample(torch.arange(len(other)), MOST_OTHER)]
        return cls(features[rows].double(), labels[rows], classes, other.double())

    @cached_property
    def counts(self) -> Tensor:
        """n_c, (C,)."""
        return torch.bincount(self.labels, minlength=self.classes).double()

    @cached_property
    def occasions(self) -> Tensor:
        """Occasion of each image: the index of the first image of it, (N,)."""
        return find_occasions(self.x, self.labels, torch.arange(len(self.x)))

    @cached_property
    def _leaving(self) -> Tensor:
        """Number of images that leave with each one, itself included, (N,)."""
        return torch.bincount(self.occasions, minlength=len(self.x))[self.occasions].double()

    @property
    def in_series(self) -> int:
        """Number of images that share their occasion with another one."""
        return int((self._leaving > 1).sum())

    @cached_property
    def held_rows(self) -> Tensor:
        """Indices (n,) of the images that can be left out: an image of another occasion stays in their class."""
        return (self.counts[self.labels] > self._leaving).nonzero()[:, 0]

    @cached_property
    def rate(self) -> float:
        """Rate w / s: kernel values are exp(-rate (1 - x·x'))."""
        n = len(self.x)
        s = float((n - self.x.sum(dim=0).square().sum() / n) / max(n - 1, 1))
        return WIDTH / max(s, 1e-12)

    def kernel_values(self, f: Tensor) -> Tensor:
        """κ of unit features f (B, D) with the training images and the other images: (B, N + M)."""
        return (self.rate * (f.double() @ self._keys.T - 1)).exp()

    @cached_property
    def _keys(self) -> Tensor:
        """Training images, then other images: (N + M, D)."""
        return torch.cat([self.x, self.other])

    @cached_property
    def _inverse_weights(self) -> Tensor:
        """1/ω of the images of each class, (C,)."""
        return self.counts * int((self.counts > 0).sum()) / len(self.x)

    @cached_property
    def targets(self) -> Tensor:
        """Y, (N + M, C + 1)."""
        known = F.one_hot(self.labels, self.classes + 1).double()
        other = torch.zeros(len(self.other), self.classes + 1, dtype=torch.float64)
        other[:, -1] = OTHER_TARGET
        return torch.cat([known, other])

    @cached_property
    def _solution(self) -> tuple[Tensor, Tensor]:
        """A (N + M, C + 1), and predictions (N, C + 1) for training images by the model without them."""
        ridge = torch.cat([self._inverse_weights[self.labels], torch.ones(len(self.other), dtype=torch.float64)])
        K = self.kernel_values(self._keys)
        G = torch.cholesky_inverse(torch.linalg.cholesky(K + RIDGE * ridge.diag()))
        A = G @ self.targets
        held = (self.targets - A / G.diagonal()[:, None])[: len(self.x)]
        for rows in iterate_copies(self.occasions):
            held[rows] = self.targets[rows] - torch.linalg.solve(G[rows][:, rows], A[rows])
        return A, held

    @cached_property
    def similarity(self) -> float:
        """b; at least one class has two images."""
        member = F.one_hot(self.labels, self.classes).double()[:, self.counts > 0]
        counts = self.counts[self.counts > 0]
        sums = member.T @ self.kernel_values(self.x)[:, : len(self.x)] @ member
        several, C = counts > 1, len(counts)
        within = ((sums.diagonal() - counts) / (counts * (counts - 1)))[several].mean()
        means = sums / counts.outer(counts)
        between = (means.sum() - means.diagonal().sum()) / max(C * (C - 1), 1)
        return max(float((within - between) / (1 - between)), 0.0)

    def expected(self, counts: Tensor) -> Tensor:
        """e_c(n) of n = counts (..., C); infinite where n is 0, since nothing is predicted there."""
        e = counts / (1 + RIDGE * self._inverse_weights + (counts - 1) * self.similarity)
        return torch.where(counts > 0, e, torch.inf)

    @cached_property
    def coefficients(self) -> Tensor:
        """Ã (N + M, C): t(x) = max_c κ(x, ·) Ã_c."""
        return self._normalize(self._solution[0], self.counts)

    def _normalize(self, predictions: Tensor, counts: Tensor) -> Tensor:
        """Divide predictions (B, C + 1) by what counts (..., C) let expect, and add that of other images: (B, C)."""
        usual = self.expected(self.counts)[self.counts > 0].mean()
        return predictions[:, :-1] / self.expected(counts) + predictions[:, -1:] / usual

    def scores(self, f: Tensor) -> Tensor:
        """Familiarity t of unit features f (B, D): (B,)."""
        return self._largest(self.kernel_values(f) @ self.coefficients)

    @cached_property
    def held_out(self) -> Tensor:
        """Familiarity t of the images `held_rows` by the model without each of them and its occasion: (n,)."""
        rows, own = self.held_rows, self.labels[self.held_rows]
        left = self.counts.repeat(len(rows), 1)
        left[torch.arange(len(rows)), own] -= self._leaving[rows]
        return self._largest(self._normalize(self._solution[1][rows], left))

    def _largest(self, predictions: Tensor) -> Tensor:
        """The largest of predictions (B, C) for classes with images: (B,)."""
        return predictions[:, self._filled].amax(dim=-1)

    @cached_property
    def _filled(self) -> Tensor:
        """Indices of the classes with images."""
        return self.counts.nonzero()[:, 0]

    def p_values(self, f: Tensor) -> Tensor:
        """p-value of unit features f (B, D) under "it is of one of the classes": (B,)."""
        return self._table(self.scores(f))

    @cached_property
    def _table(self) -> PValueTable:
        return PValueTable.from_scores(self.held_out, self._held_weights)

    @cached_property
    def _held_weights(self) -> Tensor:
        return class_weights(self.labels[self.held_rows])

    @property
    def smallest_p_value(self) -> float:
        """The smallest p-value; at least one image can be left out."""
        return smallest_p_value(self._held_weights)


def find_occasions(x: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
    """Occasion of each image, as the least number of its images in the order of their groups, (N,).

    x: unit features (N, D). labels: (N,). groups: (N,), copies share a number, also those in several classes.
    """
    numbers, group = torch.unique(groups, return_inverse=True)
    links = list[Tensor]()
    for c in torch.unique(labels).tolist():
        own = (labels == c).nonzero()[:, 0]
        different, copy_of = torch.unique(group[own], return_inverse=True)
        first = torch.full_like(different, len(own)).scatter_reduce(0, copy_of, torch.arange(len(own)), "amin")
        links += [different[pair] for pair in _near_pairs(x[own[first]])]
    occasions = torch.arange(len(numbers))
    ends = torch.cat(links, dim=1) if links else torch.empty(2, 0, dtype=torch.int64)
    while True:  # the smallest number spreads over all that are near each other, directly or through others
        least = occasions[ends].amin(dim=0)
        spread = occasions.scatter_reduce(0, ends[0], least, "amin").scatter_reduce(0, ends[1], least, "amin")
        if torch.equal(spread, occasions):
            return occasions[group]
        occasions = spread


def _near_pairs(x: Tensor) -> Iterator[Tensor]:
    """Indices (2, P) of images x (n, D) of a class that are of one occasion, some at a time."""
    n = len(x)
    if n < 2:
        return
    few = x[_subsample(torch.arange(n), MOST_IMAGES)]
    i, j = torch.triu_indices(len(few), len(few), 1)
    limit = SAME_OCCASION * min(1.0, FEW / n) ** FALL * (1 - few @ few.T)[i, j].median()
    for start in range(0, n, BLOCK):
        near = (1 - x[start : start + BLOCK] @ x.T < limit).nonzero().T + torch.tensor([[start], [0]])
        yield near[:, near[0] < near[1]]


def _subsample(rows: Tensor, most: int) -> Tensor:
    """At most `most` of the rows, always the same ones, in order."""
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:most].sort().values]
