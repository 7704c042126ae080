"""Accuracy over shots: one figure per dataset, and one for the average."""

from __future__ import annotations

from collections.abc import Iterator

from dca.report.runs.charts import Point, Series, line_chart
from dca.report.runs.figure import Figure
from dca.report.runs.means import average_entry, cell_entry, shots_column
from dca.report.runs.part import Part, RunsSection
from dca.report.runs.subject import Subject
from dca.report.runs.table import Entry
from dca.studies.published_numbers import AVERAGE
from dca.studies.results import OURS, Block, Variant

NOTE = (
    "Test accuracy in percent over the number of training images per class. Point at a mark for its value; a mark "
    "leads to its runs."
)


def build(subject: Subject) -> Part | str:
    """The average first."""
    blocks = [block for block in subject.of_protocol("few-shot") if len(block.shots) > 1]
    figures = [figure for block in blocks for figure in _figures(subject, block)]
    return (
        Part(notes=(NOTE,), figures=tuple(figures)) if figures else "No method was run with several numbers of shots."
    )


def _figures(subject: Subject, block: Block) -> Iterator[Figure]:
    for dataset in (AVERAGE, *block.datasets) if len(block.datasets) > 1 else block.datasets:
        series = [_series(subject, block, variant, dataset) for variant in subject.methods(block)]
        shown = [one for one in series if any(one.points)]
        if shown:
            where = f"average over {len(block.averaged)} datasets" if dataset == AVERAGE else dataset
            title = f"Accuracy over shots, {where}{subject.where(block)}"
            svg = line_chart(shown, [shots_column(k) for k in block.shots], "training images per class", title)
            groups = tuple(point.runs for one in shown for point in one.points if point)
            yield Figure(f"curves-{dataset}{subject.slug(block)}", title, svg, groups)


def _series(subject: Subject, block: Block, variant: Variant, dataset: str) -> Series:
    entries = [
        average_entry(block, variant, shots, block.averaged)
        if dataset == AVERAGE
        else cell_entry(block, variant, dataset, shots)
        for shots in block.shots
    ]
    name = subject.names(variant)
    named = zip(entries, map(shots_column, block.shots), strict=True)
    points = tuple(point_of(entry, f"{name}, {column}") for entry, column in named)
    return Series(name, points, strong=variant.method == OURS)


def point_of(entry: Entry | None, words: str) -> Point | None:
    """A mark for an entry, with its standard deviation as the whisker."""
    if entry is None or entry.value is None:
        return None
    std = entry.std or 0.0
    said = f"{words}: {entry.main} {entry.spread}, n = {entry.n}"
    return Point(entry.value, entry.value - std, entry.value + std, entry.runs, said)


SECTION = RunsSection("curves", "Accuracy over shots", build)
