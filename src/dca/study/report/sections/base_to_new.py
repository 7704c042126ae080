"""Trained on half of the classes: accuracy on base classes, on new classes, and their harmonic mean."""

from __future__ import annotations

from collections.abc import Iterator

from dca.study.published_numbers import AVERAGE
from dca.study.report.means import build_lines, mean_over_datasets, mean_over_seeds, shots_title
from dca.study.report.published import Find, find_record, has_number, with_published
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Part, RunsSection, Table, TableCell, mark_best
from dca.study.results import BASE, HARMONIC, NEW, Block, Shots, Variant

QUANTITIES = (BASE, NEW, HARMONIC)
# What published numbers call them.
PUBLISHED = ("base_accuracy", "new_accuracy", "harmonic_mean")
NOTE = (
    "Test accuracy in percent on the base classes, on the new classes, each among their own classes, and the harmonic "
    "mean of the two, per run; mean ± standard deviation over seeds."
)


def build(subject: Subject) -> Part | str:
    """The average over datasets, then one table per dataset."""
    tables = [table for block in subject.of_protocol("base-to-new") for table in _tables(subject, block)]
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "No base-to-new runs."


def _tables(subject: Subject, block: Block) -> Iterator[Table]:
    for shots in block.shots:
        if len(block.datasets) > 1:
            yield _table(subject, block, shots, "")
        yield from (_table(subject, block, shots, name) for name in block.datasets)


def _table(subject: Subject, block: Block, shots: Shots, dataset: str) -> Table:
    """The table of one dataset; of the average over all for an empty name."""

    def entries(variant: Variant) -> list[TableCell | None]:
        if dataset:
            return [mean_over_seeds(block, variant, dataset, shots, quantity) for quantity in QUANTITIES]
        return [mean_over_datasets(block, variant, shots, block.averaged, quantity) for quantity in QUANTITIES]

    lines: list[Line] = []
    for variant in subject.methods(block):
        for line in build_lines((variant,), subject.names, entries):
            lines += with_published(line, _finder(block, variant.method, shots, dataset or AVERAGE))
    where = block.title(dataset) if dataset else f"average over {len(block.averaged)} datasets"
    name = f"base-to-new-{shots}-{dataset or 'average'}{subject.file_suffix(block)}"
    title = f"Base to new, {where}, {shots_title(shots)}{subject.where(block)}"
    folded = bool(dataset) and len(block.datasets) > 1
    return Table(name, title, ("method",), QUANTITIES, mark_best(lines), folded=folded)


def _finder(block: Block, method: str, shots: Shots, dataset: str) -> Find:
    """The published number of a column."""
    if not has_number(block, dataset):
        return lambda _: None
    return lambda place: find_record(block, method, dataset, shots, PUBLISHED[place])


SECTION = RunsSection("base_to_new", "Base to new classes", build)
