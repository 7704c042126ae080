"""Paired differences between two variants of a block: same dataset, shots and seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dca.studies.results import ACCURACY, Block, Run, Shots, Variant
from dca.studies.significance import Difference, paired_bootstrap

# Quantities that are computed from figures of runs: standard deviation of the accuracy over seeds; times by factors.
SPREAD, LOG_SECONDS = "spread", "log2 seconds"
_LEAST_SECONDS = 0.01  # records have two decimals


@dataclass(frozen=True)
class Pairs:
    """Differences one - other.

    Attributes:
        differences: By dataset; datasets without a pair are left out.
        runs: Ids of all runs behind them.
    """

    differences: dict[str, list[float]]
    runs: tuple[str, ...]

    @property
    def all(self) -> list[float]:
        """All differences."""
        return [value for values in self.differences.values() for value in values]

    def difference(self) -> Difference | None:
        """The mean difference with its interval; None if there is no pair."""
        return paired_bootstrap(list(self.differences.values())) if self.differences else None


def pairs_of(
    block: Block,
    one: Variant,
    other: Variant,
    shots: Sequence[Shots],
    *,
    quantity: str = ACCURACY,
    datasets: Sequence[str] = (),
    less_shots: Shots = None,
) -> Pairs:
    """The paired differences of two variants.

    Args:
        block: Where the runs are.
        one, other: The variants; the second is subtracted.
        shots: Numbers of shots; each is a pair of its own.
        quantity: A figure of a run, `LOG_SECONDS` or `SPREAD`.
        datasets: Only these; all by default.
        less_shots: Subtract the difference that the two have at this number of shots.

    Returns:
        The pairs.
    """
    found: dict[str, list[float]] = {}
    ids: dict[str, None] = {}
    for dataset in datasets or block.datasets:
        for k in shots:
            make = _spread_pairs if quantity == SPREAD else _seed_pairs
            for value, runs in make(block, one, other, dataset, k, quantity, less_shots):
                found.setdefault(dataset, []).append(value)
                ids.update(dict.fromkeys(runs))
    return Pairs(found, tuple(ids))


_Found = list[tuple[float, tuple[str, ...]]]


def _seed_pairs(
    block: Block, one: Variant, other: Variant, dataset: str, shots: Shots, quantity: str, less: Shots
) -> _Found:
    """One difference per seed."""
    both = (*block.runs(one, dataset, shots), *block.runs(other, dataset, shots))
    found = []
    for seed in sorted({run.seed for run in both}):
        wanted = [(one, shots), (other, shots), *([(one, less), (other, less)] if less is not None else [])]
        runs = [block.run(variant, dataset, k, seed) for variant, k in wanted]
        values = [_figure(run, quantity) for run in runs]
        known = [value for value in values if value is not None]
        if len(known) == len(wanted):
            signs = (1, -1, -1, 1)
            ids = tuple(run.id for run in runs if run is not None)
            found.append((sum(sign * value for sign, value in zip(signs, known, strict=False)), ids))
    # Two runs of zero-shot CLIP stand for every seed: count them once.
    return list({ids: (value, ids) for value, ids in found}.values())


def _spread_pairs(
    block: Block, one: Variant, other: Variant, dataset: str, shots: Shots, _quantity: str, _less: Shots
) -> _Found:
    """The difference of the standard deviations over seeds, where both have at least two."""
    runs = [block.runs(variant, dataset, shots) for variant in (one, other)]
    if min(map(len, runs)) < 2:
        return []
    first, second = (statistics.stdev(run.figures[ACCURACY] for run in some) for some in runs)
    return [(first - second, tuple(run.id for some in runs for run in some))]


def _figure(run: Run | None, quantity: str) -> float | None:
    if run is None:
        return None
    if quantity == LOG_SECONDS:
        seconds = run.figures.get("seconds")
        return None if seconds is None else math.log2(max(seconds, _LEAST_SECONDS))
    return run.figures.get(quantity)
