"""Paired comparisons: of two models on the same images, and of two methods over many runs.

Two models. Of n images, b are right with the first model only and c with the second only; the difference is
d = (b - c) / n. Its 95 % interval is Tango's score interval: all δ that the score test of paired proportions does not
reject,

    |b - c - n δ| ≤ z √(n (2 q + δ (1 - δ))),   q = (√(B² - 4 A C) - B) / 2A,
    A = 2n,   B = -b - c + (2n - b + c) δ,   C = -c δ (1 - δ),

where q is the most likely share of images that only the second model gets right, given δ (Tango, Statistics in
Medicine 17, 1998). It also holds for few images and where the models never differ. The p-value is that of McNemar's
exact test, which asks whether b of b + c could be heads of a fair coin.

Two methods. Runs are paired where they have the same dataset, shots and seed, hence the same training images. Pairs of
one dataset are not independent, and datasets differ in what a method gains: the dataset is the unit. Its value is the
mean over its draws of the mean difference of a draw, and the effect is the mean over datasets. Two intervals say what
varies:

    over datasets   Student's t over the values of the datasets (student.py): for datasets like these, with new draws
    over draws      for these very datasets with new draws: each dataset has a value with an estimated variance v_d, the
                    variance of its draws over their number; the effect has Σ v_d / D², with Welch's degrees of freedom
                    (Σ v_d)² / Σ v_d² / (n_d - 1)

The sign test asks whether a method is as often above the other as below it, over datasets; with D of them it cannot go
below 2^(1 - D).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from dca.stats.intervals import Z95
from dca.stats.student import LEVEL, Interval, t_interval, t_quantile

HOW = "95 % interval: Tango's score interval for paired shares; p: McNemar's exact test"
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
    """A mean paired difference of two methods.

    Attributes:
        draws: The mean difference of each draw, by dataset; no dataset is without one.
        pairs: Number of paired differences behind them.
    """

    draws: tuple[tuple[float, ...], ...]
    pairs: int

    @property
    def groups(self) -> int:
        """Number of datasets."""
        return len(self.draws)

    @property
    def means(self) -> tuple[float, ...]:
        """The value of each dataset."""
        return tuple(map(statistics.fmean, self.draws))

    @property
    def effect(self) -> float:
        """Mean over datasets."""
        return statistics.fmean(self.means)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the values of the datasets, at least what their draws leave; None with one dataset."""
        if self.groups < 2:
            return None
        noise = math.sqrt(statistics.fmean(self._variances)) if min(map(len, self.draws)) > 1 else 0.0
        return max(statistics.stdev(self.means), noise)

    @property
    def _variances(self) -> list[float]:
        """Variance of the value of each dataset over draws."""
        return [statistics.variance(values) / len(values) for values in self.draws]

    def over_datasets(self, level: float = LEVEL) -> Interval | None:
        """Interval for datasets like these; None with one dataset."""
        return t_interval(self.means, level) if self.groups > 1 else None

    def over_draws(self, level: float = LEVEL) -> Interval | None:
        """Interval for these datasets with new draws; None if one of them has a single draw."""
        if min(map(len, self.draws)) < 2:
            return None
        parts = self._variances
        if sum(parts) == 0:
            return self.effect, self.effect
        freedom = sum(parts) ** 2 / sum(v**2 / (len(d) - 1) for v, d in zip(parts, self.draws, strict=True))
        reach = t_quantile((1 + level) / 2, freedom) * math.sqrt(sum(parts)) / self.groups
        return self.effect - reach, self.effect + reach

    @property
    def above(self) -> int:
        """On how many datasets the first method is above the second."""
        return sum(round(value, _ROUNDING) > 0 for value in self.means)


def mean_difference(differences: Sequence[Sequence[Sequence[float]]]) -> MeanDifference:
    """The mean difference of two methods; see the head of this module.

    Args:
        differences: Per dataset, and per draw of it, the differences of the pairs; no list is empty.

    Returns:
        The difference.

    Raises:
        ValueError: If there is nothing to compare.

    Example:
        >>> found = mean_difference([[[1.0], [2.0], [3.0]], [[4.0], [3.0, 5.0]]])
        >>> found.effect, found.groups, found.pairs
        (3.0, 2, 6)
    """
    if not differences or not all(draws and all(draws) for draws in differences):
        raise ValueError("need at least one difference of each dataset and draw")
    draws = tuple(tuple(round(statistics.fmean(draw), _ROUNDING) for draw in dataset) for dataset in differences)
    return MeanDifference(draws, sum(len(draw) for dataset in differences for draw in dataset))


def sign_test(values: Sequence[float]) -> float:
    """Two-sided p-value of the exact sign test; zeros are left out.

    >>> sign_test([1.0, 2.0, 3.0]), sign_test([1.0, -1.0]), sign_test([])
    (0.25, 1.0, 1.0)
    """
    rounded = [round(value, _ROUNDING) for value in values]
    return mcnemar(sum(value > 0 for value in rounded), sum(value < 0 for value in rounded))


def sign_test_datasets(methods: int = 1, alpha: float = 1 - LEVEL) -> int:
    """The fewest datasets with which a sign test can reach alpha after Holm's correction for a number of methods.

    >>> sign_test_datasets(), sign_test_datasets(21)
    (6, 10)
    """
    return math.ceil(1 + math.log2(methods / alpha) - 1e-12)


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
