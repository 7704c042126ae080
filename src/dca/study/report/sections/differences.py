"""Paired differences between methods: intervals, and the signed-rank test with Holm's correction over methods."""

from __future__ import annotations

from collections.abc import Iterator

from dca.stats.paired import SAMPLES, STREAM, holm, signed_rank
from dca.study.claims import Pairs, pairs_of
from dca.study.report.means import mean_over_datasets, shots_title
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Part, RunsSection, Table, TableCell
from dca.study.results import OURS, Block, Shots, Variant

NOTE = (
    "A method minus the reference, in points, over pairs with the same dataset and seed, hence the same training "
    "images. The effect is the mean over datasets. Interval: 95 %, paired bootstrap over dataset and seed "
    f"({SAMPLES:,} samples, random stream {STREAM}); with few datasets it is too narrow. p: exact signed-rank test "
    "over the "
    "pairs, corrected for the number of methods by Holm's method at each number of shots; pairs of one dataset are not "
    "independent, so it is a guide."
)


def build(subject: Subject) -> Part | str:
    """One table per number of shots."""
    tables = [table for block in subject.of_protocol("few-shot") for table in _tables(subject, block)]
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "Fewer than two few-shot methods share a run."


def _tables(subject: Subject, block: Block) -> Iterator[Table]:
    for shots in block.shots:
        reference = _reference(block, shots)
        own = {variant: pairs_of(block, variant, reference, [shots]) for variant in subject.methods(block)}
        found = {variant: pairs for variant, pairs in own.items() if variant != reference and pairs.differences}
        if not found:
            continue
        raw = [signed_rank(pairs.all) for pairs in found.values()]
        lines = [
            _line(subject.names(variant), pairs, p, corrected)
            for (variant, pairs), p, corrected in zip(found.items(), raw, holm(raw), strict=True)
        ]
        name = subject.names(reference)
        title = f"Differences to {name}, {shots_title(shots)}{subject.where(block)}"
        columns = ("difference", "pairs", "datasets", "p", "p, Holm")
        stem = f"differences-{shots if shots is not None else 'all'}{subject.file_suffix(block)}"
        yield Table(stem, title, (f"method minus {name}",), columns, tuple(lines), folded=shots != block.shots[-1])


def _reference(block: Block, shots: Shots) -> Variant:
    """DCA where it was run, else the method with the best average."""
    if OURS in block.main and any(block.runs(block.main[OURS], name, shots) for name in block.datasets):
        return block.main[OURS]
    averages = {variant: mean_over_datasets(block, variant, shots, block.averaged) for variant in block.main.values()}
    known = {variant: entry.value for variant, entry in averages.items() if entry and entry.value is not None}
    return max(known or {next(iter(averages)): 0.0}, key=lambda variant: known.get(variant, 0.0))


def _line(name: str, pairs: Pairs, p: float, corrected: float) -> Line:
    found = pairs.difference()
    assert found is not None
    effect = TableCell(found.effect, low=found.low, high=found.high, runs=pairs.runs, signed=True)
    counts = [TableCell(n, text=str(n), runs=pairs.runs) for n in (found.pairs, found.groups)]
    tests = [TableCell(value, text=_p(value), runs=pairs.runs) for value in (p, corrected)]
    return Line((name,), (effect, *counts, *tests))


def _p(value: float) -> str:
    """A p-value as it is shown.

    >>> _p(0.03125), _p(0.0002)
    ('0.031', '< 0.001')
    """
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


SECTION = RunsSection("differences", "Are the differences chance?", build)
