"""Paired comparisons: of two models on the same images, and of two methods over many runs.

Two models. Of n images, b are right with the first model only and c with the second only; the difference is
d = (b - c) / n. Its 95 % interval is Tango's score interval: all δ that the score test of paired proportions does not
reject,

    |b - c - n δ| ≤ z √(n (2 q + δ (1 - δ))),   q = (√(B² - 4 A C) - B) / 2A,
    A = 2n,   B = -b - c + (2n - b + c) δ,   C = -c δ (1 - δ),

where q is the most likely share of images that only the second model gets right, given δ (Tango, Statistics in
Medicine 17, 1998). It also holds for few images and where the models never differ. The p-value is that of McNemar's
exact test, which asks whether b of b + c could be heads of a fair coin.

Two methods. Runs are paired where they have the same dataset, shots and seed, hence the same training images. The
effect is the mean over datasets of the mean difference of a dataset. Its interval is a paired bootstrap over dataset
and seed: datasets are drawn with replacement, then pairs of each drawn dataset, `SAMPLES` times with a fixed random
stream, and the ends are the 2.5th and 97.5th percentiles. It says how the effect varies over datasets like these and
over draws; with few datasets it is too narrow. The signed-rank test asks whether the differences could be symmetric
about zero. Its p-value is exact, also with ties: every assignment of signs to the ranks is counted. Pairs of one
dataset are not independent, so it is a guide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca.stats.intervals import Z95

HOW = "95 % interval: Tango's score interval for paired shares; p: McNemar's exact test"
# Bootstrap samples, and the seed of their random stream.
SAMPLES, STREAM = 10_000, 0
# With fewer pairs not even differences of one sign reach 5 % in the signed-rank test.
FEWEST_PAIRS = 6
# Accuracies are counts over images: smaller differences are rounding.
_ROUNDING = 9


@dataclass(frozen=True)
class PairedDifference:
    """Accuracy of the first model minus that of the second on the same images.

    Attributes:
        difference: The difference, a fraction.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p_value: Of McNemar's exact test, two-sided.
        first_only: Images that only the first model gets right.
        second_only: Images that only the second model gets right.
        n: Number of images.
    """

    difference: float
    low: float
    high: float
    p_value: float
    first_only: int
    second_only: int
    n: int


def paired_difference(first: ArrayLike, second: ArrayLike) -> PairedDifference:
    """Compare two models on N > 0 images.

    Args:
        first: (N,) whether the first model is right.
        second: (N,) whether the second model is right.

    Returns:
        The difference with its interval.

    Raises:
        ValueError: If the lists are empty or differ in length.

    Example:
        >>> found = paired_difference([1, 1, 1, 0], [1, 0, 0, 0])
        >>> found.difference, found.first_only, found.p_value
        (0.5, 2, 0.5)
    """
    one, other = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if one.shape != other.shape or one.ndim != 1 or not len(one):
        raise ValueError(f"need two lists of the same length, got shapes {one.shape} and {other.shape}")
    b, c, n = int((one & ~other).sum()), int((other & ~one).sum()), len(one)
    low, high = -_upper_end(c, b, n), _upper_end(b, c, n)
    return PairedDifference((b - c) / n, low, high, mcnemar(b, c), b, c, n)


def _upper_end(b: int, c: int, n: int) -> float:
    """Upper end of the interval of (b - c) / n: the largest δ that is not rejected, by bisection."""
    low, high = (b - c) / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rejects(b, c, n, middle):
            high = middle
        else:
            low = middle
    return low


def rejects(b: int, c: int, n: int, delta: float) -> bool:
    """Whether the score test rejects the difference δ at 5 %."""
    spread = n * (2 * likely_share(b, c, n, delta) + delta * (1 - delta))
    return abs(b - c - n * delta) > Z95 * math.sqrt(max(spread, 0.0))


def likely_share(b: int, c: int, n: int, delta: float) -> float:
    """The most likely q: share of images that only the second model gets right, if the difference is δ."""
    A, B, C = 2 * n, -b - c + (2 * n - b + c) * delta, -c * delta * (1 - delta)
    return (math.sqrt(max(B * B - 4 * A * C, 0.0)) - B) / (2 * A)


def mcnemar(b: int, c: int) -> float:
    """Two-sided p-value of McNemar's exact test.

    >>> mcnemar(0, 0), mcnemar(5, 0), round(mcnemar(8, 2), 4)
    (1.0, 0.0625, 0.1094)
    """
    total, least = b + c, min(b, c)
    tail = sum(math.comb(total, k) for k in range(least + 1))
    return min(1.0, float(Fraction(2 * tail, 1 << total)))  # exact: a float could not hold 2^1024


@dataclass(frozen=True)
class MeanDifference:
    """A mean paired difference.

    Attributes:
        effect: Mean over groups of the mean of each group.
        low, high: Ends of the 95 % interval.
        groups: Number of datasets.
        pairs: Number of paired differences.
    """

    effect: float
    low: float
    high: float
    groups: int
    pairs: int


def paired_bootstrap(differences: Sequence[Sequence[float]], samples: int = SAMPLES) -> MeanDifference:
    """The mean difference with its interval; see the head of this module.

    Args:
        differences: Per dataset the differences of its pairs; no list is empty, and there is at least one.
        samples: Number of bootstrap samples.

    Returns:
        The difference.

    Raises:
        ValueError: If there is nothing to compare.

    Example:
        >>> found = paired_bootstrap([[1.0, 2.0, 3.0], [4.0]])
        >>> found.effect, found.groups, found.pairs
        (3.0, 2, 4)
    """
    if not differences or not all(differences):
        raise ValueError("need at least one difference of each dataset")
    counts = np.array([len(group) for group in differences])
    padded = np.zeros((len(counts), int(counts.max())))
    for n, group in enumerate(differences):
        padded[n, : len(group)] = group
    rng = np.random.default_rng(STREAM)
    datasets = rng.integers(0, len(counts), (samples, len(counts)))
    sizes = counts[datasets][..., None]
    pairs = (rng.random((*datasets.shape, padded.shape[1])) * sizes).astype(np.int64)
    drawn = padded[datasets[..., None], pairs] * (np.arange(padded.shape[1]) < sizes)
    means = (drawn.sum(-1) / sizes[..., 0]).mean(-1)
    low, high = np.percentile(means, [2.5, 97.5])
    effect = float((padded.sum(-1) / counts).mean())
    return MeanDifference(effect, float(low), float(high), len(counts), int(counts.sum()))


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test, exact; zeros are left out, ties have their mean rank.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), signed_rank([1.0, -1.0]), signed_rank([])
    (0.03125, 1.0, 1.0)
    """
    values = np.round(np.asarray(differences, dtype=np.float64), _ROUNDING)
    values = values[values != 0]
    ranks = _double_ranks(np.abs(values))
    # Share of all sign assignments by the (doubled) sum of the ranks with a plus.
    shares = np.zeros(int(ranks.sum()) + 1)
    shares[0] = 1.0
    for rank in ranks:
        moved = np.zeros_like(shares)
        moved[rank:] = shares[:-rank]
        shares = (shares + moved) / 2
    reached = int(ranks[values > 0].sum())
    return float(min(1.0, 2 * min(shares[: reached + 1].sum(), shares[reached:].sum())))


def _double_ranks(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Twice the rank of each value, (N,), whole numbers also where ties share a mean rank."""
    below = (sizes[:, None] > sizes[None, :]).sum(1)
    equal = (sizes[:, None] == sizes[None, :]).sum(1)
    doubled: NDArray[np.int64] = 2 * below + equal + 1
    return doubled


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number by Holm's method, in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda n: p_values[n])
    corrected, so_far = [0.0] * len(p_values), 0.0
    for step, n in enumerate(order):
        so_far = max(so_far, min(1.0, (len(order) - step) * p_values[n]))
        corrected[n] = so_far
    return corrected
