"""Numbers of the paper beside measured ones, where backbone, protocol and selection agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from dca.report.runs.table import Entry, Line
from dca.studies.published_numbers import Published, published_numbers
from dca.studies.results import Block, Context, Shots

PAPER, BACKBONE, SELECTION = "dca", "vit-b-16", "paper"
Find = Callable[[int], Published | None]


def comparable(context: Context) -> bool:
    """Whether the paper's numbers are for this backbone and selection."""
    return (context.backbone, context.selection, context.others) == (BACKBONE, SELECTION, ())


def agreement(blocks: Iterable[Block]) -> str:
    """A sentence that says whether the paper's numbers are shown."""
    if any(comparable(block.context) for block in blocks):
        return (
            "The numbers of the paper and differences to them are shown where backbone (ViT-B/16), protocol and "
            "selection "
            "(the authors') agree. Marks: m misprint, c printed differently elsewhere, d doubtful, u not seen in the "
            "source."
        )
    return (
        "The paper's numbers are for ViT-B/16 with the authors' selection (selection = paper). No runs here have "
        "both, so no published numbers stand beside them."
    )


@cache
def _numbers() -> dict[tuple[str, str, str, Shots], Published]:
    """The paper's accuracies by table, row (label, and method where labels differ), dataset and shots."""
    found: dict[tuple[str, str, str, Shots], Published] = {}
    for number in published_numbers():
        if number.paper == PAPER and number.quantity == "accuracy":
            for row in (number.label, f"method {number.method}"):
                found.setdefault((number.table, row, number.dataset, number.shots), number)
    return found


def by_label(table: str, label: str, dataset: str, shots: Shots) -> Published | None:
    """The number of a row of a table of ablations."""
    return _numbers().get((table, label, dataset, shots))


def by_method(table: str, method: str, dataset: str, shots: Shots) -> Published | None:
    """The number of a method; zero-shot CLIP is printed with every number of shots."""
    return _numbers().get((table, f"method {method}", dataset, shots))


def beside(line: Line, find: Find) -> Iterator[Line]:
    """The line; and, where the paper has numbers for it, its line and the differences.

    Args:
        line: A measured line.
        find: The published number of a column; None if there is none.

    Yields:
        One or three lines.
    """
    yield line
    found = [find(place) if entry is not None else None for place, entry in enumerate(line.entries)]
    if any(number is not None for number in found):
        heads = (*line.heads[:-1], f"{line.heads[-1]}, paper"), (*line.heads[:-1], f"{line.heads[-1]}, difference")
        yield Line(heads[0], tuple(None if number is None else _printed(number) for number in found), "published")
        yield Line(heads[1], tuple(_deltas(line.entries, found)), "delta")


def _printed(number: Published) -> Entry:
    likely = "" if number.likely is None else f"; likely {number.likely:.2f}"
    flag = f"{number.flag}: {number.note}{likely}" if number.flag else ""
    place = f"{number.table} of the paper"
    text = f"{number.value:.2f}{f' ({number.flag[0]})' if number.flag else ''}"
    return Entry(number.value, text=text, note=f"{place}; {flag}" if flag else place)


def _deltas(entries: Sequence[Entry | None], numbers: Sequence[Published | None]) -> Iterator[Entry | None]:
    for entry, number in zip(entries, numbers, strict=True):
        if entry is None or entry.value is None or number is None:
            yield None
        else:
            difference = replace(entry, value=entry.value - number.value, std=None, n=0, mark="", signed=True)
            yield replace(difference, note=f"flagged: {number.flag}" if number.flag else "")
