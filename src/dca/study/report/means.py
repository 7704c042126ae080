"""Entries and tables of means over seeds and datasets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from dca.study.published_numbers import AVERAGE
from dca.study.report.tables import Line, TableCell, mean_entry
from dca.study.results import ACCURACY, Block, Run, Shots, Variant


def mean_over_seeds(
    block: Block, variant: Variant, dataset: str, shots: Shots, quantity: str = ACCURACY
) -> TableCell | None:
    """Mean over the seeds of one cell; None if it was not run."""
    runs = [run for run in block.runs(variant, dataset, shots) if quantity in run.figures]
    return mean_entry([run.figures[quantity] for run in runs], [run.id for run in runs])


def mean_over_datasets(
    block: Block, variant: Variant, shots: Shots, datasets: Sequence[str], quantity: str = ACCURACY
) -> TableCell | None:
    """Mean over datasets of the mean of each; None unless all were run. The spread is that of `mean_of_cells`."""
    return mean_of_cells([block.runs(variant, name, shots) for name in datasets], quantity)


def mean_of_cells(cells: Sequence[Sequence[Run]], quantity: str = ACCURACY) -> TableCell | None:
    """Mean over cells of the mean over the seeds of each; None unless all were run.

    The standard deviation is that of the mean over cells, over the seeds that every cell has.
    """
    cells = [[run for run in runs if quantity in run.figures] for runs in cells]
    if not cells or not all(cells):
        return None
    mean = statistics.fmean(statistics.fmean(run.figures[quantity] for run in runs) for runs in cells)
    per_seed = [statistics.fmean(values) for values in _shared_seeds(cells, quantity)]
    ids = tuple(run.id for runs in cells for run in runs)
    std = statistics.stdev(per_seed) if len(per_seed) > 1 else None
    return TableCell(mean, std=std, n=max(len(per_seed), 1), runs=ids)


def _shared_seeds(cells: Sequence[Sequence[Run]], quantity: str) -> list[list[float]]:
    """Per seed that all cells have, the values of all cells."""
    seeds = set.intersection(*({run.seed for run in runs} for runs in cells))
    return [[run.figures[quantity] for runs in cells for run in runs if run.seed == seed] for seed in sorted(seeds)]


def build_lines(
    variants: Sequence[Variant],
    names: Callable[[Variant], str],
    entries: Callable[[Variant], Sequence[TableCell | None]],
) -> list[Line]:
    """One line per variant that has at least one entry."""
    made = [Line((names(variant),), tuple(entries(variant))) for variant in variants]
    return [line for line in made if any(entry is not None for entry in line.entries)]


def dataset_entries(
    block: Block, variant: Variant, shots: Shots, datasets: Sequence[str], averaged: Sequence[str]
) -> list[TableCell | None]:
    """One entry per dataset and, for several datasets, the average over some of them."""
    cells = [mean_over_seeds(block, variant, name, shots) for name in datasets]
    return [*cells, mean_over_datasets(block, variant, shots, averaged)] if len(datasets) > 1 else cells


def with_average(block: Block, datasets: Sequence[str]) -> tuple[str, ...]:
    """The columns that `dataset_entries` fills."""
    titles = tuple(map(block.title, datasets))
    return (*titles, AVERAGE) if len(titles) > 1 else titles


def shots_title(shots: Shots) -> str:
    """A number of shots in words.

    >>> shots_title(1), shots_title(16), shots_title(None)
    ('1 shot', '16 shots', 'all images')
    """
    return "all images" if shots is None else f"{shots} shot{'s' if shots != 1 else ''}"


def shots_column(shots: Shots) -> str:
    """A number of shots as the title of a column."""
    return "all" if shots is None else f"K={shots}"
