"""Trained on one dataset, tested on others: cross-dataset and domain shift."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dca.datasets.catalog import title_of
from dca.study.published_numbers import AVERAGE
from dca.study.report.means import build_lines, mean_of_cells, mean_over_datasets, mean_over_seeds, shots_title
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection, Table, TableCell, mark_best
from dca.study.results import Block, Context, Shots, Variant

NOTE = "Test accuracy in percent on each target; mean ± standard deviation over seeds. The average is over the targets."

TITLES = {"cross-dataset": "Cross-dataset", "domain-shift": "Domain shift"}


def build(subject: Subject) -> Part | str:
    """The average over sources that share their changes, then one table per source and number of shots."""
    averages = [
        _average(subject, blocks, shots) for blocks in _with_equal_changes(subject) for shots in blocks[0].shots
    ]
    tables = [table for table in averages if table.lines]
    for block in subject.of_protocol("cross-dataset", "domain-shift"):
        tables += _tables(subject, block)
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "No cross-dataset or domain-shift runs."


def _tables(subject: Subject, block: Block) -> Iterator[Table]:
    targets = [name for name in block.datasets if name != block.source]
    own = [block.source] if block.source in block.datasets else []
    for shots in block.shots:

        def entries(variant: Variant, shots: Shots = shots) -> list[TableCell | None]:
            cells = [mean_over_seeds(block, variant, name, shots) for name in (*own, *targets)]
            return [*cells, mean_over_datasets(block, variant, shots, targets)]

        lines = build_lines(subject.methods(block), subject.names, entries)
        title = f"{TITLES[block.protocol]} from {title_of(block.source)}, {shots_title(shots)}{subject.where(block)}"
        columns = (*map(block.title, own), *(_target_title(target, block) for target in targets), AVERAGE)
        name = f"{block.protocol}-{block.source}-{shots}{subject.file_suffix(block)}"
        yield Table(name, title, ("method",), columns, mark_best(lines))


def _with_equal_changes(subject: Subject) -> Iterator[list[Block]]:
    """Blocks of one context whose targets are changed versions of their sources, by the same changes."""
    groups: dict[tuple[Context, tuple[str, ...]], list[Block]] = defaultdict(list)
    for block in subject.of_protocol("domain-shift"):
        changes = [_change(block, target) for target in block.datasets]
        if all(change is not None for change in changes):
            groups[block.context, tuple(sorted(map(str, changes)))].append(block)
    yield from (blocks for blocks in groups.values() if len(blocks) > 1)


def _change(block: Block, target: str) -> str | None:
    """The change that makes a target from the source; empty for the source itself, None for another dataset."""
    own, _, change = target.partition("@")
    return change if own == block.source else None


def _average(subject: Subject, blocks: Sequence[Block], shots: Shots) -> Table:
    """Methods by changes, each number the mean over the sources; methods that were run on all of them."""
    first = blocks[0]
    changes = [change for target in first.datasets if (change := _change(first, target))]
    own = ["unchanged"] if first.source in first.datasets else []

    def mean(variant: Variant, chosen: Sequence[str]) -> TableCell | None:
        targets = [(block, target) for block in blocks for target in block.datasets if _change(block, target) in chosen]
        return mean_of_cells([block.runs(variant, target, shots) for block, target in targets])

    def entries(variant: Variant) -> list[TableCell | None]:
        return [*(mean(variant, [change]) for change in (*("" for _ in own), *changes)), mean(variant, changes)]

    title = f"Domain shift, average over {len(blocks)} datasets, {shots_title(shots)}{subject.where(first)}"
    name = f"domain-shift-average-{shots}{subject.file_suffix(first)}"
    lines = build_lines(subject.methods(first), subject.names, entries)
    return Table(name, title, ("method",), (*own, *changes, AVERAGE), mark_best(lines))


def _target_title(target: str, block: Block) -> str:
    """The title of a target; of a changed version of the source the change alone."""
    return block.title(target).removeprefix(f"{title_of(block.source)}, ")


SECTION = RunsSection("transfer", "Other datasets and domain shift", build)
