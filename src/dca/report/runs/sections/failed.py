"""Cells that failed, and why."""

from __future__ import annotations

from dca.core.wording import counted
from dca.report.runs.part import Part, RunsSection
from dca.report.runs.subject import Subject
from dca.report.runs.table import Entry, Line, Table


def build(subject: Subject) -> Part | str:
    """One folded table."""
    if not subject.failed:
        return "No cell failed."
    lines = tuple(Line((one.label,), (Entry(None, text=one.error),)) for one in subject.failed)
    note = f"{counted(len(lines), 'cell')} of the last sweeps failed. They are missing in the tables above."
    table = Table("failed", "Cells that failed", ("cell",), ("error",), lines, folded=True)
    return Part(notes=(note,), tables=(table,))


SECTION = RunsSection("failed", "Failed cells", build)
