"""Accuracy against cost: seconds of the fit, and trained parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dca.report.runs.charts import Point, scatter
from dca.report.runs.figure import Figure
from dca.report.runs.means import average_entry, shots_title
from dca.report.runs.part import Part, RunsSection
from dca.report.runs.subject import Subject
from dca.report.runs.table import Entry, Line, Table
from dca.studies.results import ACCURACY, PARAMETERS, SECONDS, Block, Shots, Variant

NOTE = (
    "Average accuracy over datasets against the average cost of a fit, at the greatest number of shots. Seconds are "
    "those of the machines that made the runs, as they were loaded then; compare them only between runs of one machine."
)
COSTS = ((SECONDS, "seconds of a fit"), (PARAMETERS, "trained parameters"))


def build(subject: Subject) -> Part | str:
    """Two figures and one table per block."""
    figures: list[Figure] = []
    tables: list[Table] = []
    for block in subject.of_protocol("few-shot"):
        lines, shots = _lines(subject, block), block.shots[-1]
        if lines:
            figures += _figures(subject, block, lines, shots)
            tables.append(_table(subject, block, lines, shots))
    return Part(notes=(NOTE,), figures=tuple(figures), tables=tuple(tables)) if tables else "No costs were recorded."


def _lines(subject: Subject, block: Block) -> dict[Variant, dict[str, Entry]]:
    """Average accuracy and costs of every method that was run on all datasets."""
    found = {}
    for variant in subject.methods(block):
        entries = {q: average_entry(block, variant, block.shots[-1], block.averaged, q) for q in _QUANTITIES}
        known = {quantity: entry for quantity, entry in entries.items() if entry is not None}
        if len(known) == len(_QUANTITIES):
            found[variant] = known
    return found


_QUANTITIES = (ACCURACY, SECONDS, PARAMETERS)


def _figures(subject: Subject, block: Block, lines: dict[Variant, dict[str, Entry]], shots: Shots) -> Iterator[Figure]:
    for quantity, words in COSTS:
        points = []
        for variant, entries in lines.items():
            accuracy, cost = entries[ACCURACY].value or 0.0, entries[quantity].value or 0.0
            said = f"{accuracy:.2f}: {subject.names(variant)}, {cost:,.2f} {quantity}"
            points.append((subject.names(variant), Point(accuracy, 0, 0, entries[ACCURACY].runs, said, x=cost)))
        title = f"Accuracy against {words}, {shots_title(shots)}{subject.where(block)}"
        stem = f"cost-{quantity.replace(' ', '-')}{subject.slug(block)}"
        yield Figure(stem, title, scatter(points, words, title), tuple(point.runs for _, point in points))


def _table(subject: Subject, block: Block, lines: dict[Variant, dict[str, Entry]], shots: Shots) -> Table:
    made = []
    for variant, entries in lines.items():
        parameters = entries[PARAMETERS]
        shown = replace(parameters, text=f"{parameters.value:,.0f}", std=None)
        made.append(Line((subject.names(variant),), (entries[ACCURACY], entries[SECONDS], shown)))
    title = f"Accuracy and cost, {shots_title(shots)}{subject.where(block)}"
    return Table(f"costs{subject.slug(block)}", title, ("method",), _QUANTITIES, tuple(made), folded=True)


SECTION = RunsSection("costs", "Accuracy against cost", build)
