"""Whether one method is better than another over many runs: intervals of paired differences, and exact tests.

Two methods are paired where they have the same dataset, shots and seed, hence the same training images. The effect is
the mean over datasets of the mean difference of a dataset. Its interval is a paired bootstrap over dataset and seed:
datasets are drawn with replacement, then pairs of each drawn dataset, `SAMPLES` times with a fixed random stream, and
the ends are the 2.5th and 97.5th percentiles. It says how the effect varies over datasets like these and over draws;
with few datasets it is too narrow.

The signed-rank test asks whether the differences could be symmetric about zero. Its p-value is exact, also with ties:
every assignment of signs to the ranks is counted. Pairs of one dataset are not independent, so it is a guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLES, STREAM = 10_000, 0
# With fewer pairs not even differences of one sign reach 5 % in the signed-rank test.
FEWEST_PAIRS = 6
# Accuracies are counts over images: smaller differences are rounding.
_ROUNDING = 9


@dataclass(frozen=True)
class Difference:
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


def paired_bootstrap(differences: Sequence[Sequence[float]], samples: int = SAMPLES) -> Difference:
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
    for place, group in enumerate(differences):
        padded[place, : len(group)] = group
    rng = np.random.default_rng(STREAM)
    datasets = rng.integers(0, len(counts), (samples, len(counts)))
    sizes = counts[datasets][..., None]
    pairs = (rng.random((*datasets.shape, padded.shape[1])) * sizes).astype(np.int64)
    drawn = padded[datasets[..., None], pairs] * (np.arange(padded.shape[1]) < sizes)
    means = (drawn.sum(-1) / sizes[..., 0]).mean(-1)
    low, high = np.percentile(means, [2.5, 97.5])
    effect = float((padded.sum(-1) / counts).mean())
    return Difference(effect, float(low), float(high), len(counts), int(counts.sum()))


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test, exact; zeros are left out, ties have their mean rank.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), signed_rank([1.0, -1.0]), signed_rank([])
    (0.03125, 1.0, 1.0)
    """
    values = np.round(np.asarray(differences, dtype=np.float64), _ROUNDING)
    values = values[values != 0]
    ranks = _doubled_ranks(np.abs(values))
    # Share of all sign assignments by the (doubled) sum of the ranks with a plus.
    shares = np.zeros(int(ranks.sum()) + 1)
    shares[0] = 1.0
    for rank in ranks:
        moved = np.zeros_like(shares)
        moved[rank:] = shares[:-rank]
        shares = (shares + moved) / 2
    reached = int(ranks[values > 0].sum())
    return float(min(1.0, 2 * min(shares[: reached + 1].sum(), shares[reached:].sum())))


def _doubled_ranks(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
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
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected, so_far = [0.0] * len(p_values), 0.0
    for step, place in enumerate(order):
        so_far = max(so_far, min(1.0, (len(order) - step) * p_values[place]))
        corrected[place] = so_far
    return corrected
