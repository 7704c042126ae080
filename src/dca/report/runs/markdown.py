"""The report as Markdown: the same sections, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dca.report.runs.part import Part, RunsSection
from dca.report.runs.table import MISSING, Entry, Table


def markdown_report(title: str, parts: Sequence[tuple[RunsSection, Part]], left_out: Sequence[tuple[str, str]]) -> str:
    """The whole report."""
    lines = [f"# {_text(title)}", ""]
    for section, part in parts:
        lines += [f"## {section.title}", "", *_part(part)]
    if left_out:
        lines += ["## Left out", "", *(f"- {name}: {reason}" for name, reason in left_out), ""]
    return "\n".join(lines)


def _part(part: Part) -> Iterator[str]:
    for note in part.notes:
        yield from (_text(note), "")
    if part.facts:
        yield from (*(f"- {name}: {_text(value)}" for name, value in part.facts), "")
    for figure in part.figures:
        yield from (f"![{_text(figure.title)}](figures/{figure.name}.svg)", "")
    for table in part.tables:
        yield from (*markdown_table(table), "")


def markdown_table(table: Table) -> Iterator[str]:
    """One table, its title above it."""
    n = f" (n = {table.usual_n} unless noted)" if table.usual_n else ""
    yield from (f"**{_text(table.title)}**{n}; [CSV](tables/{table.name}.csv), [LaTeX](tables/{table.name}.tex)", "")
    yield _row([*table.heads, *table.columns])
    yield _row([*("---" for _ in table.heads), *("---:" for _ in table.columns)])
    for line in table.lines:
        yield _row([*map(_text, line.heads), *(_entry(entry, table.usual_n) for entry in line.entries)])
    yield from (line for note in table.notes for line in ("", _text(note)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _entry(entry: Entry | None, usual: int) -> str:
    if entry is None:
        return MISSING
    main = _text(entry.main)
    main = {"best": f"**{main}**", "second": f"<u>{main}</u>", "": main}[entry.mark]
    spread = f" ({entry.spread})" if entry.low is not None else f" {entry.spread}" if entry.spread else ""
    n = f", n = {entry.n}" if entry.n and entry.n != usual else ""
    return f"{main}{spread}{n}"


def _text(text: str) -> str:
    r"""Text without what Markdown and HTML would read as marks.

    >>> print(_text("a_b | <c>"))
    a\_b \| &lt;c&gt;
    """
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
