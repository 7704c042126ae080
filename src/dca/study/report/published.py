"""Published numbers beside measured ones, where backbone, protocol and rules agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from dca.study.published_numbers import AVERAGE, PublishedNumber, published_numbers
from dca.study.report.tables import Line, TableCell
from dca.study.results import ACCURACY, Block, Context, Shots

PAPER = "dca"
Find = Callable[[int], PublishedNumber | None]
Key = tuple[str, str, str, str, Shots, str]


def is_comparable(context: Context) -> bool:
    """Whether there are published numbers for this backbone and these rules."""
    known = {number.backbone for number in published_numbers()}
    return context.backbone in known and (context.rules, context.others) == ("paper", ())


def describe_agreement(blocks: Iterable[Block]) -> str:
    """A sentence that says whether published numbers are shown."""
    if any(is_comparable(block.context) for block in blocks):
        return (
            "Numbers of the paper, of other sources for methods that it lacks, and differences to them are shown where "
            "backbone, protocol and rules (the authors') agree, and for averages the 11 datasets. Marks: m "
            "misprint, c printed differently elsewhere, d doubtful, u not seen in the source."
        )
    return (
        "Published numbers are for ViT-B/16 under the authors' rules (rules = paper). No runs here have both, "
        "so none stand beside them."
    )


@cache
def paper_datasets() -> frozenset[str]:
    """The 11 datasets of the paper's appendix."""
    return frozenset(n.dataset for n in published_numbers() if n.table == "Table 7" and n.dataset != AVERAGE)


def has_number(block: Block, dataset: str) -> bool:
    """Whether published numbers for this dataset can stand beside the block's; an average needs the same datasets."""
    return is_comparable(block.context) and (dataset != AVERAGE or set(block.averaged) == paper_datasets())


@cache
def _paper() -> dict[Key, PublishedNumber]:
    """The paper's numbers by protocol, table, row (its label, or its method), dataset, shots and quantity."""
    found: dict[Key, PublishedNumber] = {}
    for n in published_numbers():
        for row in (n.label, f"method {n.method}") if n.paper == PAPER else ():
            found.setdefault((n.protocol, n.table, row, n.dataset, n.shots, n.quantity), n)
    return found


@cache
def _records() -> dict[Key, PublishedNumber]:
    """Numbers of other sources by protocol, backbone and method; a method's own source before others."""
    found: dict[Key, PublishedNumber] = {}
    others = [number for number in published_numbers() if number.paper != PAPER]
    for n in sorted(others, key=lambda number: number.paper != number.method):
        found.setdefault((n.protocol, n.backbone, f"method {n.method}", n.dataset, n.shots, n.quantity), n)
    return found


def find_by_label(block: Block, table: str, label: str, dataset: str, shots: Shots) -> PublishedNumber | None:
    """The paper's number of a row of a table of ablations."""
    found = _paper().get((block.protocol, table, label, dataset, shots, ACCURACY))
    return found if found and found.backbone == block.context.backbone else None


def find_by_method(
    block: Block, tables: Sequence[str], method: str, dataset: str, shots: Shots
) -> PublishedNumber | None:
    """The number of a method: of the first of these tables of the paper that has it, else of another source."""
    keys = [(block.protocol, table, f"method {method}", dataset, shots, ACCURACY) for table in tables]
    found = next((_paper()[key] for key in keys if key in _paper()), None)
    if found is not None and found.backbone == block.context.backbone:
        return found
    return find_record(block, method, dataset, shots, ACCURACY)


def find_record(block: Block, method: str, dataset: str, shots: Shots, quantity: str) -> PublishedNumber | None:
    """The number of a method in a source other than the paper."""
    return _records().get((block.protocol, block.context.backbone, f"method {method}", dataset, shots, quantity))


def with_published(line: Line, find: Find) -> Iterator[Line]:
    """The line; and, where there are published numbers for it, these and the differences.

    Args:
        line: A measured line.
        find: The published number of a column; None if there is none.

    Yields:
        One or three lines.
    """
    yield line
    found = [find(place) if entry is not None else None for place, entry in enumerate(line.entries)]
    if any(number is not None for number in found):
        first, name = line.heads[:-1], line.heads[-1]
        printed = tuple(None if number is None else _published_cell(number) for number in found)
        yield Line((*first, f"{name}, published"), printed, "published")
        yield Line((*first, f"{name}, difference"), tuple(_difference_cells(line.entries, found)), "delta")


def _published_cell(number: PublishedNumber) -> TableCell:
    likely = "" if number.likely is None else f"; likely {number.likely:.2f}"
    flag = f"; {number.flag}: {number.note}{likely}" if number.flag else ""
    place = f"{number.table} of the paper" if number.paper == PAPER else f"{number.source}, {number.table}"
    text = f"{number.value:.2f}{f' ({number.flag[0]})' if number.flag else ''}"
    return TableCell(number.value, text=text, note=f"{place}{flag}")


def _difference_cells(
    entries: Sequence[TableCell | None], numbers: Sequence[PublishedNumber | None]
) -> Iterator[TableCell | None]:
    for entry, number in zip(entries, numbers, strict=True):
        if entry is None or entry.value is None or number is None:
            yield None
        else:
            difference = replace(entry, value=entry.value - number.value, std=None, n=0, mark="", signed=True)
            yield replace(difference, note=f"flagged: {number.flag}" if number.flag else "")
