"""Student's t over few values: intervals and tests of a mean, and how many values it takes to decide.

The values are the mean differences of datasets, x_1 .. x_n: independent, roughly normal, and few. With their mean m and
standard deviation s (n - 1), the interval of the true mean at a level is

    m ± t s / √n,   t the quantile of Student's distribution with n - 1 degrees of freedom at (1 + level) / 2

A region (low, high) of the true mean is *decided* if the interval lies inside of it, or outside. For a true mean μ and
a true deviation σ, m and s are independent, m ~ N(μ, σ²/n) and (n - 1) s²/σ² ~ χ², so the chance of a decision is an
integral over s of probabilities of a normal variable, which `decision_power` computes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

import numpy as np

from dca.stats.beta import incomplete_beta

Interval = tuple[float, float]
LEVEL = 0.95
# The chance of a decision that is asked for, and the most datasets that are worth counting.
POWER, MOST_DATASETS = 0.8, 1000
# Nodes of the integral over s, and how many standard deviations of s around its mean it covers.
_NODES, _REACH = 400, 9.0
_NORMAL = statistics.NormalDist()


def t_cdf(t: float, freedom: float) -> float:
    """Probability that Student's t with these degrees of freedom is at most t.

    >>> t_cdf(0.0, 5), round(t_cdf(4.303, 2), 4)
    (0.5, 0.975)
    """
    tail = incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return 1 - tail if t > 0 else tail


@cache
def t_quantile(share: float, freedom: float) -> float:
    """The t below which this share of Student's distribution lies, for shares from 0.5 on.

    >>> round(t_quantile(0.975, 2), 3), round(t_quantile(0.975, 8), 3)
    (4.303, 2.306)
    """
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < share else (low, middle)
    return high


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Interval of the mean behind two or more values.

    >>> [round(end, 2) for end in t_interval([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    reach = t_quantile((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - reach, mean + reach


def t_test(values: Sequence[float]) -> float:
    """Two-sided p-value of the mean of two or more values against 0.

    >>> round(t_test([1.0, 2.0, 3.0]), 4), t_test([2.0, 2.0]), t_test([0.0, 0.0])
    (0.0742, 0.0, 1.0)
    """
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    if error == 0:
        return float(mean == 0)
    return 2 * t_cdf(-abs(mean) / error, len(values) - 1)


def decision_power(
    mean: float, deviation: float, n: int, region: Interval, *, inside: bool, level: float = LEVEL
) -> float:
    """Chance that the interval of n values lies inside the region, or outside.

    Args:
        mean, deviation: The true mean and standard deviation of the values.
        n: Number of values, at least 2.
        region: Its ends; they may be infinite.
        inside: Whether "inside" or "outside" is the decision that counts.
        level: Level of the interval.

    Returns:
        The chance.

    Example:
        >>> round(decision_power(1.0, 1.0, 10, (0.0, float("inf")), inside=True), 3)
        0.803
    """
    if deviation == 0:
        within = region[0] < mean < region[1]
        return float(within == inside)
    freedom, reach = n - 1, t_quantile((1 + level) / 2, n - 1) / math.sqrt(n)
    low, high = ((end - mean) / deviation for end in region)
    s, weights = _deviations(freedom)

    def below(end: float) -> float:
        """Chance that the mean of the values, in deviations from the true one, is below."""
        return _NORMAL.cdf(end * math.sqrt(n)) if math.isfinite(end) else float(end > 0)

    if inside:
        chances = [max(0.0, below(high - reach * one) - below(low + reach * one)) for one in s]
    else:
        chances = [below(low - reach * one) + 1 - below(high + reach * one) for one in s]
    return float(np.dot(weights, chances))


@cache
def _deviations(freedom: int) -> tuple[list[float], list[float]]:
    """Nodes s/σ and weights of an expectation over the standard deviation of freedom + 1 normal values."""
    spread = 1 / math.sqrt(2 * freedom)
    low, high = max(0.0, 1 - _REACH * spread), 1 + _REACH * spread
    x, w = np.polynomial.legendre.leggauss(_NODES)
    s = low + (high - low) * (x + 1) / 2
    log_density = (
        math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2) + (freedom - 1) * np.log(s)
    ) - freedom * s**2 / 2
    return s.tolist(), (w * (high - low) / 2 * np.exp(log_density)).tolist()


def values_to_decide(
    mean: float, deviation: float, region: Interval, *, fewest: int = 3, level: float = LEVEL
) -> int | None:
    """How many values it takes for a chance of 80 % that a mean is seen on its side of the region's ends.

    Args:
        mean, deviation: The true mean and standard deviation of the values.
        region: Its ends; they may be infinite.
        fewest: No fewer values count.
        level: Level of the interval.

    Returns:
        The number; None if it is more than 1,000.

    Example:
        >>> values_to_decide(1.0, 1.0, (0.0, float("inf"))), values_to_decide(0.01, 1.0, (0.0, float("inf")))
        (10, None)
    """
    inside = region[0] < mean < region[1]

    def enough(n: int) -> bool:
        return decision_power(mean, deviation, n, region, inside=inside, level=level) >= POWER

    if not enough(MOST_DATASETS):
        return None
    low, high = fewest - 1, MOST_DATASETS  # the chance grows with n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def decided_distance(deviation: float, n: int, level: float = LEVEL) -> float:
    """How far a true mean must be from one end of a region for a chance of 80 % that n values decide on which side.

    >>> round(decided_distance(1.0, 10), 2), round(decided_distance(1.0, 3), 2)
    (1.0, 3.26)
    """
    low, high = 0.0, 1.0
    region = (0.0, math.inf)
    while decision_power(high, 1.0, n, region, inside=True, level=level) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        enough = decision_power(middle, 1.0, n, region, inside=True, level=level) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high * deviation
