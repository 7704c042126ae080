"""Accuracy against cost: seconds of the fit, and trained parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dca.study.report.figures import Figure, Point, scatter
from dca.study.report.means import mean_over_datasets, shots_title
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Part, RunsSection, Table, TableCell
from dca.study.results import ACCURACY, PARAMETERS, SECONDS, Block, Shots, Variant

NOTE = (
    "Average accuracy over datasets against the average cost of a fit, at the greatest number of shots. Seconds are "
    "those of the machines that made the runs, as they were loaded then; runs on another kind of device than most have "
    "none."
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


def _lines(subject: Subject, block: Block) -> dict[Variant, dict[str, TableCell]]:
    """Average accuracy and costs of every method that was run on all datasets."""
    found = {}
    for variant in subject.methods(block):
        entries = {q: mean_over_datasets(block, variant, block.shots[-1], block.averaged, q) for q in _QUANTITIES}
        if entries[ACCURACY] is not None and entries[PARAMETERS] is not None:
            found[variant] = {quantity: entry for quantity, entry in entries.items() if entry is not None}
    return found


_QUANTITIES = (ACCURACY, SECONDS, PARAMETERS)


def _figures(
    subject: Subject, block: Block, lines: dict[Variant, dict[str, TableCell]], shots: Shots
) -> Iterator[Figure]:
    for quantity, words in COSTS:
        points = []
        for variant, entries in lines.items():
            name = subject.names(variant)
            points.append((name, _point(name, entries, quantity) if quantity in entries else None))
        known = [point for _, point in points if point is not None]
        if not known:
            continue
        title = f"Accuracy against {words}, {shots_title(shots)}{subject.where(block)}"
        stem = f"cost-{quantity.replace(' ', '-')}{subject.file_suffix(block)}"
        yield Figure(stem, title, scatter(points, words, title), tuple(point.runs for point in known))


def _point(name: str, entries: dict[str, TableCell], quantity: str) -> Point:
    accuracy, cost = entries[ACCURACY].value or 0.0, entries[quantity].value or 0.0
    return Point(accuracy, 0, 0, entries[ACCURACY].runs, f"{accuracy:.2f}: {name}, {cost:,.2f} {quantity}", x=cost)


def _table(subject: Subject, block: Block, lines: dict[Variant, dict[str, TableCell]], shots: Shots) -> Table:
    made = []
    for variant, entries in lines.items():
        parameters = entries[PARAMETERS]
        shown = replace(parameters, text=f"{parameters.value:,.0f}", std=None)
        made.append(Line((subject.names(variant),), (entries[ACCURACY], entries.get(SECONDS), shown)))
    title = f"Accuracy and cost, {shots_title(shots)}{subject.where(block)}"
    return Table(f"costs{subject.file_suffix(block)}", title, ("method",), _QUANTITIES, tuple(made), folded=True)


SECTION = RunsSection("costs", "Accuracy against cost", build)
