"""Tables as data: entries with the runs behind them, before they become HTML, LaTeX, Markdown or CSV."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

MISSING = "–"
Mark = Literal["", "best", "second"]
Kind = Literal["measured", "published", "delta"]


@dataclass(frozen=True)
class Entry:
    """One number of a table, or a text.

    Attributes:
        value: The number; None for a text.
        text: What is shown instead of the number.
        std: Standard deviation over seeds; None with one run.
        low, high: Ends of a 95 % interval, where there is one.
        n: Number of runs, or of pairs of runs.
        runs: Ids of the runs behind it; none for published numbers.
        mark: Whether it is the best (bold) or the second (underlined).
        note: Shown when it is pointed at, and in CSV.
        signed: Whether it is a difference.
        digits: Digits after the point.
    """

    value: float | None
    text: str = ""
    std: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    runs: tuple[str, ...] = ()
    mark: Mark = ""
    note: str = ""
    signed: bool = False
    digits: int = 2

    def number(self, value: float) -> str:
        """A number as it is shown."""
        return f"{value:{'+' if self.signed else ''},.{self.digits}f}".replace("-", "−")

    @property
    def main(self) -> str:
        """The number or text, without its spread."""
        return self.text or (MISSING if self.value is None else self.number(self.value))

    @property
    def spread(self) -> str:
        """The standard deviation or interval; empty without one."""
        if self.low is not None and self.high is not None:
            return f"{self.number(self.low)} to {self.number(self.high)}"
        return "" if self.std is None else f"± {self.number(self.std)}"


@dataclass(frozen=True)
class Line:
    """One line of a table: one text per head column, and one entry or nothing per column."""

    heads: tuple[str, ...]
    entries: tuple[Entry | None, ...]
    kind: Kind = "measured"


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: Stem of its file names.
        title: What it shows.
        heads: Titles of the head columns.
        columns: Titles of the other columns.
        lines: The lines.
        notes: Sentences below it.
        folded: Whether a page shows it only on demand.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    folded: bool = False

    @property
    def usual_n(self) -> int:
        """The number of runs of most entries; 0 if the entries are no means over runs."""
        found = [e.n for line in self.lines for e in line.entries if e is not None and e.n and line.kind == "measured"]
        return statistics.mode(found) if found else 0


def mean_entry(values: Sequence[float], runs: Sequence[str]) -> Entry | None:
    """Mean and standard deviation (n - 1) over runs; None without any.

    >>> found = mean_entry([1.0, 3.0], ["a", "b"])
    >>> found.main, found.spread, found.n
    ('2.00', '± 1.41', 2)
    """
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Entry(statistics.fmean(values), std=std, n=len(values), runs=tuple(runs))


def ranked(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Mark the best and the second of every column among measured lines; equal as shown is equal."""
    if sum(line.kind == "measured" for line in lines) < 2:
        return tuple(lines)
    marked = [list(line.entries) for line in lines]
    for column in range(len(marked[0])):
        own = [
            (place, round(entry.value, 2))
            for place, line in enumerate(lines)
            if line.kind == "measured" and (entry := line.entries[column]) is not None and entry.value is not None
        ]
        order = sorted({value for _, value in own}, reverse=True)
        marks: dict[float, Mark] = {}
        if len(own) > 1:
            marks = dict(zip(order, ("best", "second"), strict=False))
        for place, value in own:
            entry = marked[place][column]
            assert entry is not None
            marked[place][column] = replace(entry, mark=marks.get(value, ""))
    return tuple(replace(line, entries=tuple(entries)) for line, entries in zip(lines, marked, strict=True))
