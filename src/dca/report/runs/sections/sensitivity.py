"""Accuracy over one option: the number of prompts M, and the weights of the losses α and β."""

from __future__ import annotations

from collections.abc import Iterator

from dca.report.runs.charts import Series, line_chart
from dca.report.runs.figure import Figure
from dca.report.runs.means import cell_entry, shots_column
from dca.report.runs.part import Part, RunsSection
from dca.report.runs.sections.curves import point_of
from dca.report.runs.subject import Subject
from dca.studies.paper import PaperRow, resolve
from dca.studies.results import OURS, Block, Shots, Variant

# Option, its symbol, and the value of the base variant where that is known.
OPTIONS = (("n_prompts", "M", 4.0), ("alpha", "α", None), ("beta", "β", None))
NOTE = "Test accuracy in percent, mean over seeds; lines are one standard deviation."


def build(subject: Subject) -> Part | str:
    """One figure per option and dataset."""
    figures = [figure for block in subject.of_protocol("few-shot") for figure in _figures(subject, block)]
    return Part(notes=(NOTE,), figures=tuple(figures)) if figures else "Neither M nor α nor β was varied."


def _figures(subject: Subject, block: Block) -> Iterator[Figure]:
    for option, symbol, usual in OPTIONS:
        base, row = PaperRow("base", OURS), PaperRow("varied", OURS, vary=[option])
        found = resolve([base, row], block)
        varied = {variant.settings[option]: variant for variant in found[row]}
        if usual is not None and found[base]:
            varied.setdefault(usual, found[base][0])
        if len(varied) > 1:
            values = dict(sorted(varied.items()))
            yield from (figure for name in block.datasets for figure in _figure(subject, block, name, symbol, values))


def _figure(
    subject: Subject, block: Block, dataset: str, symbol: str, varied: dict[float, Variant]
) -> Iterator[Figure]:
    series = [_series(block, dataset, shots, symbol, varied) for shots in block.shots]
    shown = [one for one in series if sum(map(bool, one.points)) > 1]
    if shown:
        title = f"Accuracy over {symbol}, {dataset}{subject.where(block)}"
        svg = line_chart(shown, [f"{value:g}" for value in varied], symbol, title)
        groups = tuple(point.runs for one in shown for point in one.points if point)
        yield Figure(f"sensitivity-{_ascii(symbol)}-{dataset}{subject.slug(block)}", title, svg, groups)


def _series(block: Block, dataset: str, shots: Shots, symbol: str, varied: dict[float, Variant]) -> Series:
    points = [
        point_of(cell_entry(block, variant, dataset, shots), f"{symbol} = {value:g}, {shots_column(shots)}")
        for value, variant in varied.items()
    ]
    return Series(shots_column(shots), tuple(points))


def _ascii(symbol: str) -> str:
    return {"α": "alpha", "β": "beta"}.get(symbol, symbol)


SECTION = RunsSection("sensitivity", "Sensitivity", build)
