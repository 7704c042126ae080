"""Statistics of paired differences, one number at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np


def bootstrap_means(differences: list[list[float]], samples: int, stream: int) -> list[float]:
    """Draw datasets, then as many pairs of each as it has; the mean over datasets of the mean of the drawn pairs."""
    rng = np.random.default_rng(stream)
    most = max(map(len, differences))
    datasets = rng.integers(0, len(differences), (samples, len(differences))).tolist()
    uniform = rng.random((samples, len(differences), most)).tolist()
    found = []
    for sample in range(samples):
        means = []
        for place, dataset in enumerate(datasets[sample]):
            own = differences[dataset]
            drawn = [own[math.floor(uniform[sample][place][n] * len(own))] for n in range(len(own))]
            means.append(sum(drawn) / len(drawn))
        found.append(sum(means) / len(means))
    return found


def percentile(values: list[float], share: float) -> float:
    """Linear interpolation between the two nearest of the sorted values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def signed_rank(differences: list[float]) -> float:
    """Count every assignment of signs whose rank sum is at least as far out as the one that was seen."""
    values = [d for d in differences if d != 0]
    sizes = [abs(d) for d in values]
    ranks = [sum(b < a for b in sizes) + (sum(b == a for b in sizes) + 1) / 2 for a in sizes]
    seen = sum(rank for rank, d in zip(ranks, values, strict=True) if d > 0)
    sums = [
        sum(r for r, plus in zip(ranks, signs, strict=True) if plus)
        for signs in itertools.product((False, True), repeat=len(ranks))
    ]
    below, above = sum(s <= seen for s in sums), sum(s >= seen for s in sums)
    return min(1.0, 2 * min(below, above) / len(sums))


def holm(p_values: list[float]) -> list[float]:
    """The greatest of (m - j + 1) p_(j) over all p-values up to one's own, at most 1."""
    ordered = sorted(p_values)
    m = len(ordered)
    return [max(min(1.0, (m - j) * ordered[j]) for j in range(m) if ordered[j] <= p) for p in p_values]
