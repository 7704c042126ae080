"""Two models on the same images: the difference of their accuracies with its interval, and whether it is chance.

Of n images, b are right with the first model only and c with the second only; the difference is d = (b - c) / n. Its
95 % interval is Tango's score interval: all δ that the score test of paired proportions does not reject,

    |b - c - n δ| ≤ z √(n (2 q + δ (1 - δ))),   q = (√(B² - 4 A C) - B) / 2A,
    A = 2n,   B = -b - c + (2n - b + c) δ,   C = -c δ (1 - δ),

where q is the most likely share of images that only the second model gets right, given δ (Tango, Statistics in
Medicine 17, 1998). It also holds for few images and where the models never differ. The p-value is that of McNemar's
exact test, which asks whether b of b + c could be heads of a fair coin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from dca.core.calibration import Z95

HOW = "95 % interval: Tango's score interval for paired shares; p: McNemar's exact test"


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
    low, high = -_upper(c, b, n), _upper(b, c, n)
    return PairedDifference((b - c) / n, low, high, mcnemar(b, c), b, c, n)


def _upper(b: int, c: int, n: int) -> float:
    """Upper end of the interval of (b - c) / n: the largest δ that is not rejected, by bisection."""
    low, high = (b - c) / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rejected(b, c, n, middle):
            high = middle
        else:
            low = middle
    return low


def rejected(b: int, c: int, n: int, delta: float) -> bool:
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
