"""Trained on one dataset, tested on others: cross-dataset and domain shift."""

from __future__ import annotations

from collections.abc import Iterator

from dca.data.sources.catalog import title_of
from dca.report.runs.means import average_entry, cell_entry, lines_of, shots_title
from dca.report.runs.part import Part, RunsSection
from dca.report.runs.subject import Subject
from dca.report.runs.table import Entry, Table, ranked
from dca.studies.published_numbers import AVERAGE
from dca.studies.results import Block, Shots, Variant

NOTE = "Test accuracy in percent on each target; mean ± standard deviation over seeds. The average is over the targets."

TITLES = {"cross-dataset": "Cross-dataset", "domain-shift": "Domain shift"}


def build(subject: Subject) -> Part | str:
    """One table per source and number of shots."""
    blocks = subject.of_protocol("cross-dataset", "domain-shift")
    tables = [table for block in blocks for table in _tables(subject, block)]
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "No cross-dataset or domain-shift runs."


def _tables(subject: Subject, block: Block) -> Iterator[Table]:
    targets = [name for name in block.datasets if name != block.source]
    own = [block.source] if block.source in block.datasets else []
    for shots in block.shots:

        def entries(variant: Variant, shots: Shots = shots) -> list[Entry | None]:
            cells = [cell_entry(block, variant, name, shots) for name in (*own, *targets)]
            return [*cells, average_entry(block, variant, shots, targets)]

        lines = lines_of(subject.methods(block), subject.names, entries)
        title = f"{TITLES[block.protocol]} from {title_of(block.source)}, {shots_title(shots)}{subject.where(block)}"
        columns = (*map(title_of, own), *(_target_title(target, block) for target in targets), AVERAGE)
        name = f"{block.protocol}-{block.source}-{shots}{subject.slug(block)}"
        yield Table(name, title, ("method",), columns, ranked(lines))


def _target_title(target: str, block: Block) -> str:
    """The title of a target; of a changed version of the source the change alone."""
    return title_of(target).removeprefix(f"{title_of(block.source)}, ")


SECTION = RunsSection("transfer", "Other datasets and domain shift", build)
