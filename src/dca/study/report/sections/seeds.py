"""How much the accuracy varies over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from dca.study.report.figures import Figure, Point, bar_chart
from dca.study.report.means import mean_over_seeds
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Part, RunsSection, Table, TableCell
from dca.study.results import Block

NOTE = (
    "Standard deviation of the accuracy over seeds, in points: mean over datasets and shots with at least two seeds. "
    "Lines go from the least to the greatest deviation."
)


def build(subject: Subject) -> Part | str:
    """One figure and one table per block."""
    found = [pair for block in subject.of_protocol("few-shot") for pair in _block(subject, block)]
    if not found:
        return "No cell was run with several seeds."
    return Part(notes=(NOTE,), figures=tuple(figure for figure, _ in found), tables=tuple(table for _, table in found))


def _block(subject: Subject, block: Block) -> Iterator[tuple[Figure, Table]]:
    bars, lines = [], []
    for variant in subject.methods(block):
        cells = [mean_over_seeds(block, variant, name, k) for name in block.datasets for k in block.shots]
        spread = [(cell.std, cell.runs) for cell in cells if cell is not None and cell.std is not None]
        if not spread:
            continue
        values = [std for std, _ in spread]
        runs = tuple(dict.fromkeys(id for _, ids in spread for id in ids))
        mean, ends = statistics.fmean(values), (min(values), max(values))
        said = f"{mean:.2f}: {ends[0]:.2f} to {ends[1]:.2f}, {len(values)} cells"
        bars.append((subject.names(variant), Point(mean, *ends, runs, said)))
        entries = [TableCell(value, runs=runs) for value in (mean, *ends)]
        lines.append(
            Line((subject.names(variant),), (*entries, TableCell(len(values), text=str(len(values)), runs=runs)))
        )
    if bars:
        title = f"Standard deviation over seeds{subject.where(block)}"
        groups = tuple(point.runs for _, point in bars)
        figure = Figure(f"seeds{subject.file_suffix(block)}", title, bar_chart(bars, title), groups)
        columns = ("mean", "least", "greatest", "cells")
        yield (
            figure,
            Table(f"seeds{subject.file_suffix(block)}", title, ("method",), columns, tuple(lines), folded=True),
        )


SECTION = RunsSection("seeds", "Seeds", build)
