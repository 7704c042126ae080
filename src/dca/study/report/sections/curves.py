"""Accuracy over shots: one figure per dataset, and one for the average."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from dca.study.published_numbers import AVERAGE
from dca.study.report.figures import Figure, Point, Series, line_chart
from dca.study.report.means import mean_over_datasets, mean_over_seeds, shots_column
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection, TableCell
from dca.study.results import ZERO_SHOT, Block, Variant

NOTE = (
    "Test accuracy in percent over the number of training images per class. Point at a mark for its name and value; a "
    "mark leads to its runs. Of many methods those that are best on average have colours, beside zero-shot CLIP and "
    "the reference."
)
# With more methods than this only the best ones have colours.
MOST_IN_COLOUR, BEST_IN_COLOUR = 8, 5


def build(subject: Subject) -> Part | str:
    """The average first."""
    blocks = [block for block in subject.of_protocol("few-shot") if len(block.shots) > 1]
    figures = [figure for block in blocks for figure in _figures(subject, block)]
    return (
        Part(notes=(NOTE,), figures=tuple(figures)) if figures else "No method was run with several numbers of shots."
    )


def _figures(subject: Subject, block: Block) -> Iterator[Figure]:
    loud = _in_colour(subject, block)
    for dataset in (AVERAGE, *block.datasets) if len(block.datasets) > 1 else block.datasets:
        series = [
            replace(_series(subject, block, variant, dataset), quiet=variant not in loud)
            for variant in subject.methods(block)
        ]
        shown = [one for one in series if any(one.points)]
        if shown:
            where = f"average over {len(block.averaged)} datasets" if dataset == AVERAGE else block.title(dataset)
            title = f"Accuracy over shots, {where}{subject.where(block)}"
            svg = line_chart(shown, [shots_column(k) for k in block.shots], "training images per class", title)
            groups = tuple(point.runs for one in shown for point in one.points if point)
            yield Figure(f"curves-{dataset}{subject.file_suffix(block)}", title, svg, groups)


def _in_colour(subject: Subject, block: Block) -> set[Variant]:
    """The methods with a colour: all if they are few, else CLIP, the reference and those with the highest mean."""
    methods = subject.methods(block)
    if len(methods) <= MOST_IN_COLOUR:
        return set(methods)
    means = {}
    for variant in methods:
        entries = [mean_over_datasets(block, variant, shots, block.averaged) for shots in block.shots]
        values = [entry.value for entry in entries if entry is not None and entry.value is not None]
        if len(values) == len(block.shots):
            means[variant] = statistics.fmean(values)
    best = sorted(means, key=lambda variant: -means[variant])[:BEST_IN_COLOUR]
    return {*best, *(variant for variant in methods if variant.method == ZERO_SHOT or subject.is_reference(variant))}


def _series(subject: Subject, block: Block, variant: Variant, dataset: str) -> Series:
    entries = [
        mean_over_datasets(block, variant, shots, block.averaged)
        if dataset == AVERAGE
        else mean_over_seeds(block, variant, dataset, shots)
        for shots in block.shots
    ]
    name = subject.names(variant)
    named = zip(entries, map(shots_column, block.shots), strict=True)
    points = tuple(point_of(entry, f"{name}, {column}") for entry, column in named)
    return Series(name, points, strong=subject.is_reference(variant))


def point_of(entry: TableCell | None, words: str) -> Point | None:
    """A mark for an entry, with its standard deviation as the whisker."""
    if entry is None or entry.value is None:
        return None
    std = entry.std or 0.0
    said = f"{words}: {entry.main} {entry.spread}, n = {entry.n}"
    return Point(entry.value, entry.value - std, entry.value + std, entry.runs, said)


SECTION = RunsSection("curves", "Accuracy over shots", build)
