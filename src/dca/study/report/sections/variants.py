"""All settings of every method that was run with several: one table per method and number of shots."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dca.study.report.means import build_lines, dataset_entries, shots_title, with_average
from dca.study.report.sections.gamma import has_both_gammas
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection, Table, mark_best
from dca.study.results import Block, Variant

NOTE = (
    "Methods that were run with several settings, each with its changed options. Options of the head were measured on "
    "a model that was fitted without them."
)
GAMMAS = "Values of γ1 and γ2 have figures above."


def build(subject: Subject) -> Part | str:
    """Folded tables."""
    tables = [table for block in subject.of_protocol("few-shot") for table in _tables(subject, block)]
    drawn = any(has_both_gammas(variant) for block in subject.blocks for variant in block.variants)
    notes = (f"{NOTE} {GAMMAS}" if drawn else NOTE,)
    return Part(notes=notes, tables=tuple(tables)) if tables else "Every method was run with one setting."


def _tables(subject: Subject, block: Block) -> Iterator[Table]:
    for method in block.main:
        variants = [variant for variant in block.variants if variant.method == method and not has_both_gammas(variant)]
        if len(variants) > 1:
            yield from _of_method(subject, block, method, variants)


def _of_method(subject: Subject, block: Block, method: str, variants: list[Variant]) -> Iterator[Table]:
    for shots in block.shots:
        datasets = [name for name in block.datasets if sum(bool(block.runs(v, name, shots)) for v in variants) > 1]
        own = [variant for variant in variants if any(block.runs(variant, name, shots) for name in datasets)]
        entries = partial(dataset_entries, block, shots=shots, datasets=datasets, averaged=datasets)
        lines = build_lines(own, subject.names, entries)
        if len(lines) > 1:
            name = f"variants-{method}-{shots}{subject.file_suffix(block)}"
            title = f"Variants of {method}, {shots_title(shots)}{subject.where(block)}"
            yield Table(name, title, ("settings",), with_average(block, datasets), mark_best(lines), folded=True)


SECTION = RunsSection("variants", "Variants", build)
