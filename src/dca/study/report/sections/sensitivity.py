"""Accuracy over one option: the number of prompts M, and the weights of the losses α and β."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dca.methods.registry import get_method
from dca.study.claims import PaperRow, match_rows
from dca.study.report.figures import Figure, Series, line_chart
from dca.study.report.means import mean_over_seeds, shots_column
from dca.study.report.sections.curves import point_of
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection
from dca.study.resolved_options import resolve_options
from dca.study.results import OURS, Block, Shots, Variant

# Options and their symbols.
OPTIONS = {"n_prompts": "M", "alpha": "α", "beta": "β"}
# A line has at least so many points; two of them are an ablation.
FEWEST = 3
NOTE = (
    "Test accuracy in percent, mean over seeds; lines are one standard deviation. The method's own value is among "
    "those on the axis."
)


def build(subject: Subject) -> Part | str:
    """One figure per option and dataset."""
    figures = [figure for block in subject.of_protocol("few-shot") for figure in _figures(subject, block)]
    return Part(notes=(NOTE,), figures=tuple(figures)) if figures else "Neither M nor α nor β was varied."


def _figures(subject: Subject, block: Block) -> Iterator[Figure]:
    for option, symbol in OPTIONS.items():
        base, row = PaperRow("base", OURS), PaperRow("varied", OURS, vary=[option])
        found = match_rows([base, row], block)
        varied = {float(variant.settings[option]): variant for variant in found[row]}
        for dataset in block.datasets if varied else ():
            own = {_value(found[base][0], option, dataset): found[base][0]} if found[base] else {}
            values = dict(sorted({**own, **varied}.items()))
            if len(values) >= FEWEST:
                yield from _figure(subject, block, dataset, symbol, values)


def _value(variant: Variant, option: str, dataset: str) -> float:
    """The value that a variant has for an option on this dataset; α and β may depend on it."""
    options = get_method(variant.method).parse_options(variant.settings)
    return float(resolve_options(variant.method, options, dataset, shots=1)[option])


def _figure(
    subject: Subject, block: Block, dataset: str, symbol: str, varied: Mapping[float, Variant]
) -> Iterator[Figure]:
    series = [_series(block, dataset, shots, symbol, varied) for shots in block.shots]
    shown = [one for one in series if sum(map(bool, one.points)) >= FEWEST]
    if shown:
        title = f"Accuracy over {symbol}, {block.title(dataset)}{subject.where(block)}"
        svg = line_chart(shown, [f"{value:g}" for value in varied], symbol, title)
        groups = tuple(point.runs for one in shown for point in one.points if point)
        yield Figure(f"sensitivity-{_ascii(symbol)}-{dataset}{subject.file_suffix(block)}", title, svg, groups)


def _series(block: Block, dataset: str, shots: Shots, symbol: str, varied: Mapping[float, Variant]) -> Series:
    points = [
        point_of(mean_over_seeds(block, variant, dataset, shots), f"{symbol} = {value:g}, {shots_column(shots)}")
        for value, variant in varied.items()
    ]
    return Series(shots_column(shots), tuple(points))


def _ascii(symbol: str) -> str:
    return {"α": "alpha", "β": "beta"}.get(symbol, symbol)


SECTION = RunsSection("sensitivity", "Sensitivity", build, method=OURS)
