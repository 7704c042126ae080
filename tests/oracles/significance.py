"""Statistics of paired differences, one number at a time."""

from __future__ import annotations

import itertools
import math
import random


def t_density(t: float, freedom: float) -> float:
    """Student's density."""
    front = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    return front * (1 + t * t / freedom) ** (-(freedom + 1) / 2)


def t_cdf(t: float, freedom: float, steps: int = 20_000) -> float:
    """One half, and the area from 0 to t by Simpson's rule."""
    width = t / steps
    inner = sum((4 if n % 2 else 2) * t_density(n * width, freedom) for n in range(1, steps))
    return 0.5 + (t_density(0.0, freedom) + inner + t_density(t, freedom)) * width / 3


def t_quantile(share: float, freedom: float) -> float:
    """The t at which the area from the left is this share, by halving."""
    low, high = 0.0, 400.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom, 2000) < share else (low, middle)
    return (low + high) / 2


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def variance(values: list[float]) -> float:
    return sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)


def interval_over_datasets(draws: list[list[float]], quantile: float) -> tuple[float, float]:
    """Mean of the datasets' means, plus and minus quantile · s / √D."""
    means = [mean(values) for values in draws]
    reach = quantile * math.sqrt(variance(means) / len(means))
    return mean(means) - reach, mean(means) + reach


def welch_freedom(draws: list[list[float]]) -> float:
    """Welch's degrees of freedom of a mean over datasets whose draws have variances of their own."""
    parts = [variance(values) / len(values) for values in draws]
    return sum(parts) ** 2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, draws, strict=True))


def interval_over_draws(draws: list[list[float]], quantile: float) -> tuple[float, float]:
    """The same mean, with the error that each dataset's draws leave."""
    error = math.sqrt(sum(variance(values) / len(values) for values in draws)) / len(draws)
    middle = mean([mean(values) for values in draws])
    return middle - quantile * error, middle + quantile * error


def share_decided(
    true: float, deviation: float, n: int, region: tuple[float, float], inside: bool, quantile: float, trials: int
) -> float:
    """How often the interval of n normal values lies inside the region, or outside, when it is tried."""
    rng = random.Random(n)
    hits = 0
    for _ in range(trials):
        values = [rng.gauss(true, deviation) for _ in range(n)]
        reach = quantile * math.sqrt(variance(values) / n)
        low, high = mean(values) - reach, mean(values) + reach
        hits += (region[0] < low and high < region[1]) if inside else (high <= region[0] or low >= region[1])
    return hits / trials


def sign_test(values: list[float]) -> float:
    """Share of all assignments of signs that are at least as uneven as the one that was seen."""
    signs = [value > 0 for value in values if value != 0]
    uneven = abs(sum(signs) - len(signs) / 2)
    every = list(itertools.product((False, True), repeat=len(signs)))
    return sum(abs(sum(some) - len(signs) / 2) >= uneven for some in every) / len(every)


def holm(p_values: list[float]) -> list[float]:
    """The greatest of (m - j + 1) p_(j) over all p-values up to one's own, at most 1."""
    ordered = sorted(p_values)
    m = len(ordered)
    return [max(min(1.0, (m - j) * ordered[j]) for j in range(m) if ordered[j] <= p) for p in p_values]
