"""Tables in the shape of the paper's: 1 and 7 (few-shot), 2 (domain shift), 3 (components), 4 (metric), 5 (loss)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dca.datasets.catalog import title_of
from dca.study.claims import TABLE_ROWS, match_rows, paper_rows
from dca.study.published_numbers import AVERAGE, PublishedNumber
from dca.study.report.means import (
    dataset_entries,
    mean_over_datasets,
    mean_over_seeds,
    shots_column,
    shots_title,
    with_average,
)
from dca.study.report.published import describe_agreement, find_by_label, find_by_method, has_number, with_published
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Part, RunsSection, Table, TableCell, mark_best
from dca.study.results import Block, Shots, Variant

# What Table 2 is trained on; shifts of other datasets have a section of their own.
SHIFTED = "imagenet"
DatasetAndShots = tuple[str, Shots]
Find = Callable[[str, Shots], PublishedNumber | None]


def build(subject: Subject) -> Part | str:
    """The tables for which there are runs."""
    few, shifted = subject.of_protocol("few-shot"), subject.of_protocol("domain-shift")
    tables = [table for block in few for table in (*_methods(subject, block), *_ablations(subject, block))]
    tables += [table for block in shifted if block.source == SHIFTED for table in _domain_shift(subject, block)]
    found = tuple(table for table in tables if table.lines)
    return (
        Part(notes=(describe_agreement((*few, *shifted)),), tables=found)
        if found
        else "No runs for a table of the paper."
    )


def _methods(subject: Subject, block: Block) -> Iterator[Table]:
    """Table 1, the average over datasets, and Table 7, one table per dataset: methods by shots."""
    columns = tuple(map(shots_column, block.shots))
    for dataset in (AVERAGE, *block.datasets) if len(block.datasets) > 1 else block.datasets:
        table = "Table 1" if dataset == AVERAGE else "Table 7"
        lines = []
        for variant in subject.methods(block):
            line = Line(
                (subject.names(variant),), tuple(_entry(block, variant, dataset, shots) for shots in block.shots)
            )
            find = _finder(block, variant.method, table, "Table 7")
            lines += _add_published_numbers(block, line, find, [(dataset, shots) for shots in block.shots])
        title = f"{table} of the paper: {_title(dataset, block)}{subject.where(block)}"
        stem = f"{table.lower().replace(' ', '-')}-{dataset}{subject.file_suffix(block)}"
        yield Table(stem, title, ("method",), columns, mark_best(lines), folded=dataset != AVERAGE)


def _title(dataset: str, block: Block) -> str:
    return f"average over {len(block.averaged)} datasets" if dataset == AVERAGE else block.title(dataset)


def _entry(block: Block, variant: Variant, dataset: str, shots: Shots) -> TableCell | None:
    if dataset == AVERAGE:
        return mean_over_datasets(block, variant, shots, block.averaged)
    return mean_over_seeds(block, variant, dataset, shots)


def _finder(block: Block, method: str, *tables: str) -> Find:
    return lambda dataset, shots: find_by_method(block, tables, method, dataset, shots)


def _find_with_label(block: Block, number: int, label: str) -> Find:
    return lambda dataset, shots: find_by_label(block, f"Table {number}", label, dataset, shots)


def _add_published_numbers(block: Block, line: Line, find: Find, places: Sequence[DatasetAndShots]) -> list[Line]:
    """The line with the published numbers, where they are for such runs; nothing for a line without entries."""
    if all(entry is None for entry in line.entries):
        return []

    def published(place: int) -> PublishedNumber | None:
        return find(*places[place]) if has_number(block, places[place][0]) else None

    return list(with_published(line, published))


def _ablations(subject: Subject, block: Block) -> Iterator[Table]:
    """Tables 3, 4 and 5, where most of their rows were run."""
    for number, rows in TABLE_ROWS.items():
        if number == 2:
            continue
        found = match_rows([paper_rows()[name] for name in rows], block)
        own = {name: found[paper_rows()[name]][0] for name in rows if found[paper_rows()[name]]}
        if len(own) > 1:
            make = _by_shots if number == 4 else _by_dataset
            yield from make(subject, block, number, own)


def _was_run_here(block: Block, own: dict[str, Variant], dataset: str, shots: Shots) -> bool:
    """Whether most rows of a table were run here; some rows are also rows of other tables."""
    return 2 * sum(bool(block.runs(variant, dataset, shots)) for variant in own.values()) > len(own)


def _by_dataset(subject: Subject, block: Block, number: int, own: dict[str, Variant]) -> Iterator[Table]:
    """One table per number of shots: rows by datasets, with the average."""
    for shots in block.shots:
        datasets = [name for name in block.datasets if _was_run_here(block, own, name, shots)]
        lines, columns = [], with_average(block, datasets)
        places = [(name, shots) for name in (*datasets, AVERAGE)][: len(columns)]
        for name, variant in own.items():
            line = Line((name,), tuple(dataset_entries(block, variant, shots, datasets, datasets)))
            lines += _add_published_numbers(block, line, _find_with_label(block, number, name), places)
        title = f"Table {number} of the paper: {TITLES[number]}, {shots_title(shots)}{subject.where(block)}"
        yield Table(f"table-{number}-{shots}{subject.file_suffix(block)}", title, ("row",), columns, mark_best(lines))


def _by_shots(subject: Subject, block: Block, number: int, own: dict[str, Variant]) -> Iterator[Table]:
    """One table per dataset: rows by shots."""
    for dataset in block.datasets:
        ran = [k for k in block.shots if _was_run_here(block, own, dataset, k)]
        lines = []
        for name, variant in own.items():
            line = Line((name,), tuple(mean_over_seeds(block, variant, dataset, shots) for shots in ran))
            lines += _add_published_numbers(
                block, line, _find_with_label(block, number, name), [(dataset, shots) for shots in ran]
            )
        title = f"Table {number} of the paper: {TITLES[number]}, {block.title(dataset)}{subject.where(block)}"
        stem = f"table-{number}-{dataset}{subject.file_suffix(block)}"
        yield Table(stem, title, ("row",), tuple(map(shots_column, ran)), mark_best(lines))


def _domain_shift(subject: Subject, block: Block) -> Iterator[Table]:
    """Table 2: methods by targets, the source first."""
    found = match_rows([paper_rows()[name] for name in TABLE_ROWS[2]], block)
    for shots in block.shots:
        lines = []
        for row, variants in found.items():
            for variant in variants:
                entries = tuple(mean_over_seeds(block, variant, name, shots) for name in block.datasets)
                places = [(name, shots) for name in block.datasets]
                lines += _add_published_numbers(
                    block, Line((row.name,), entries), _finder(block, row.method, "Table 2"), places
                )
        source, columns = title_of(block.source), tuple(map(block.title, block.datasets))
        title = f"Table 2 of the paper: domain shift from {source}, {shots_title(shots)}{subject.where(block)}"
        stem = f"table-2-{block.source}-{shots}{subject.file_suffix(block)}"
        yield Table(stem, title, ("method",), columns, mark_best(lines))


TITLES = {3: "components of DCA", 4: "cosine against Mahalanobis distance", 5: "forms of the intra-class loss"}
SECTION = RunsSection("paper_tables", "Tables of the paper", build, of_paper=True)
