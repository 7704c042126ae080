"""A section of the report about runs: paragraphs, facts, tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dca.report.runs.figure import Figure
from dca.report.runs.subject import Subject
from dca.report.runs.table import Table


@dataclass(frozen=True)
class Part:
    """What a section shows, in this order.

    Attributes:
        notes: Paragraphs.
        facts: Names and values.
        figures: Drawings.
        tables: Tables.
    """

    notes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Ids of the runs behind every number and every mark, in the order of the page."""
        marks = [group for figure in self.figures for group in (*figure.groups, figure.runs)]
        entries = [entry for table in self.tables for line in table.lines for entry in line.entries]
        return [group for group in [*marks, *(entry.runs for entry in entries if entry is not None)] if group]


@dataclass(frozen=True)
class RunsSection:
    """One section.

    name: of the anchor. title: heading. build: from the subject to what is shown, or to one sentence that says why the
    section is left out.
    """

    name: str
    title: str
    build: Callable[[Subject], Part | str]
