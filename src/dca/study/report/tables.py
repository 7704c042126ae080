"""Tables as data: entries with the runs behind them, before they become HTML, LaTeX, Markdown or CSV.

A table as CSV: one row per number, with the ids of the runs behind it.

A table as LaTeX that needs only the article class and booktabs.

The report as Markdown: the same sections, tables and figures.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dca.study.index import RunRecord
from dca.study.report.figures import Figure
from dca.study.report.subject import Subject
from dca.study.results import RowNames, Variant

MISSING = "–"
Mark = Literal["", "best", "second"]
Kind = Literal["measured", "published", "delta"]


@dataclass(frozen=True)
class TableCell:
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
            return interval_text(self, (self.low, self.high))
        return "" if self.std is None else f"± {self.std:,.{self.digits}f}"


@dataclass(frozen=True)
class Line:
    """One line of a table: one text per head column, and one entry or nothing per column."""

    heads: tuple[str, ...]
    entries: tuple[TableCell | None, ...]
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
    section is left out. of_paper: only in a study of the DCA paper. method: only where this method was run.
    """

    name: str
    title: str
    build: Callable[[Subject], Part | str]
    of_paper: bool = False
    method: str = ""

    def belongs_to(self, subject: Subject) -> bool:
        """Whether the report has this section, or says why it is left out."""
        runs_it = not self.method or any(row.method == self.method for row in subject.rows)
        return (subject.is_of_paper or not self.of_paper) and runs_it


def interval_text(like: TableCell, ends: tuple[float, float]) -> str:
    """An interval as a text of its own, with the sign and digits of another entry.

    >>> interval_text(TableCell(1.0, signed=True), (-0.5, 2.5))
    '−0.50 to +2.50'
    """
    return f"{like.number(ends[0])} to {like.number(ends[1])}"


def mean_entry(values: Sequence[float], runs: Sequence[str]) -> TableCell | None:
    """Mean and standard deviation (n - 1) over runs; None without any.

    >>> found = mean_entry([1.0, 3.0], ["a", "b"])
    >>> found.main, found.spread, found.n
    ('2.00', '± 1.41', 2)
    """
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return TableCell(statistics.fmean(values), std=std, n=len(values), runs=tuple(runs))


def mark_best(lines: Sequence[Line]) -> tuple[Line, ...]:
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


COLUMNS = ("column", "kind", "value", "std", "low", "high", "n", "mark", "text", "note", "runs")
RUN_COLUMNS = (
    *("id", "method", "dataset", "protocol", "shots", "seed", "backbone", "rules", "accuracy", "harmonic_mean"),
    *("seconds", "trained_parameters"),
)


def csv_table(table: Table) -> str:
    """The table in long form; numbers with all digits, nothing for a missing cell."""
    rows = [
        (
            *line.heads,
            name,
            line.kind,
            e.value,
            e.std,
            e.low,
            e.high,
            e.n or None,
            e.mark,
            e.text,
            e.note,
            " ".join(e.runs),
        )
        for line in table.lines
        for name, e in zip(table.columns, line.entries, strict=True)
        if e is not None
    ]
    return _csv_text((*table.heads, *COLUMNS), rows)


def csv_runs(rows: Iterable[RunRecord], names: RowNames) -> str:
    """All runs: one row each, as its result file has it."""
    found = []
    for row in rows:
        variant = Variant.of(row.method, row.spec.get("options", {}), row.head)
        targets = " ".join(f"{target.name}={target.accuracy}" for target in row.targets)
        found.append((*(getattr(row, name) for name in RUN_COLUMNS), names(variant), targets))
    return _csv_text((*RUN_COLUMNS, "row", "targets"), found)


def _csv_text(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


# Longer tables are continued, so that each part fits on a page: so many lines of a table, and printed lines.
MOST_LINES, MOST_PRINTED = 40, 66
# Longer texts are broken into lines, which hold at least so many letters.
WIDE, WIDTHS, LETTERS = 30, {"head": "5.5cm", "entry": "3.2cm"}, {"head": 36, "entry": 20}
_MATH = {
    **{"–": "--", "−": "$-$", "±": "$\\pm$", "→": "$\\to$", "×": "$\\times$", "…": "\\ldots{}", "∞": "$\\infty$"},
    **{"α": "$\\alpha$", "β": "$\\beta$", "γ": "$\\gamma$", "τ": "$\\tau$", "<": "$<$", ">": "$>$", "|": "$|$"},
    **{"&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}"},
    **{"~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\\": "\\textbackslash{}", "’": "'"},
}


def escape_latex(text: str) -> str:
    r"""Text for LaTeX; letters that plain LaTeX lacks lose their accents or become "?".

    >>> escape_latex("a_b & γ1 < 5 %"), escape_latex("naïve 図")
    ('a\\_b \\& $\\gamma$1 $<$ 5 \\%', 'naive ?')
    """
    return "".join(_MATH.get(letter) or _ascii(letter) for letter in text)


def _ascii(letter: str) -> str:
    if letter.isascii():
        return letter if letter.isprintable() else " "
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode("ascii")
    return "".join(_MATH.get(part, part) for part in plain) or "?"


def latex_table(table: Table) -> str:
    """The table as one or several floats."""
    return "\n".join(_latex_part(table, lines, number) for number, lines in enumerate(_split_into_pages(table)))


def _split_into_pages(table: Table) -> list[list[Line]]:
    """The lines in parts that fit on a page."""
    parts: list[list[Line]] = [[]]
    room = MOST_PRINTED
    for line in table.lines:
        texts = [("head", text) for text in line.heads]
        texts += [("entry", entry.main) for entry in line.entries if entry is not None and len(entry.text) > WIDE]
        printed = max(-(-len(text) // LETTERS[kind]) for kind, text in texts)
        if parts[-1] and (printed > room or len(parts[-1]) == MOST_LINES):
            parts.append([])
            room = MOST_PRINTED
        parts[-1].append(line)
        room -= printed
    return parts


def _latex_part(table: Table, lines: Sequence[Line], number: int) -> str:
    caption = escape_latex(table.title) + (" (continued)" if number else "") + _n(table)
    body = [f"    {_line(line, table.usual_n)} \\\\" for line in lines]
    head = " & ".join(escape_latex(text) for text in (*table.heads, *table.columns))
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"  \centering\scriptsize\setlength{\tabcolsep}{3pt}",
            f"  \\caption{{{caption}}}",
            f"  \\begin{{tabular}}{{{_columns(table)}}}",
            r"    \toprule",
            f"    {head} \\\\",
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _n(table: Table) -> str:
    return f" ($n = {table.usual_n}$ unless noted)" if table.usual_n else ""


def _columns(table: Table) -> str:
    """The kinds of the columns: texts that are long are broken."""
    heads = [max((len(line.heads[n]) for line in table.lines), default=0) for n in range(len(table.heads))]
    made = [f"p{{{WIDTHS['head']}}}" if length > WIDE else "l" for length in heads]
    for n in range(len(table.columns)):
        entries = [line.entries[n] for line in table.lines]
        length = max((len(e.text) for e in entries if e is not None), default=0)
        made.append(f"p{{{WIDTHS['entry']}}}" if length > WIDE else "r")
    return "".join(made)


def _line(line: Line, usual: int) -> str:
    return " & ".join([*map(escape_latex, line.heads), *(_latex_entry(entry, usual) for entry in line.entries)])


def _latex_entry(entry: TableCell | None, usual: int) -> str:
    if entry is None:
        return "--"
    main = escape_latex(entry.main)
    main = {"best": f"\\textbf{{{main}}}", "second": f"\\underline{{{main}}}", "": main}[entry.mark]
    if entry.low is not None:
        return f"{main} ({escape_latex(entry.spread)})"
    std = "" if entry.std is None else f"\\,$\\pm$\\,{entry.std:.2f}"
    n = f"\\,($n={entry.n}$)" if entry.n and entry.n != usual else ""
    return f"{main}{{\\tiny{std}{n}}}" if std or n else main


def latex_document(names: Sequence[str]) -> str:
    """A document with all tables, on wide pages."""
    inputs = [f"\\input{{tables/{name}}}\n\\clearpage" for name in names]
    return "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage{booktabs}",
            r"\pdfpagewidth=420mm \pdfpageheight=297mm",
            r"\setlength{\textwidth}{37cm}\setlength{\textheight}{25cm}",
            r"\setlength{\oddsidemargin}{0cm}\setlength{\topmargin}{-1.5cm}",
            r"\begin{document}",
            *inputs,
            r"\end{document}",
            "",
        ]
    )


def file_name(name: str) -> str:
    """A name for files that LaTeX, browsers and file systems take.

    >>> file_name("few-shot-4-my data_1")
    'few-shot-4-my-data-1'
    """
    return re.sub(r"[^a-z0-9]+", "-", _plain(name).lower()).strip("-") or "table"


def _plain(name: str) -> str:
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")


def markdown_report(
    title: str,
    parts: Sequence[tuple[RunsSection, Part]],
    left_out: Sequence[tuple[str, str]],
    *,
    text_only: bool = False,
) -> str:
    """The whole report; text_only: without links to figures and LaTeX."""
    lines = [f"# {_markdown_text(title)}", ""]
    for section, part in parts:
        lines += [f"## {section.title}", "", *_markdown_part(part, text_only)]
    if left_out:
        lines += ["## Left out", "", *(f"- {name}: {reason}" for name, reason in left_out), ""]
    return "\n".join(lines)


def _markdown_part(part: Part, text_only: bool) -> Iterator[str]:
    for note in part.notes:
        yield from (_markdown_text(note), "")
    if part.facts:
        yield from (*(f"- {name}: {_markdown_text(value)}" for name, value in part.facts), "")
    for figure in () if text_only else part.figures:
        yield from (f"![{_markdown_text(figure.title)}](figures/{figure.name}.svg)", "")
    for table in part.tables:
        yield from (*markdown_table(table, text_only=text_only), "")


def markdown_table(table: Table, *, text_only: bool = False) -> Iterator[str]:
    """One table, its title above it."""
    latex = "" if text_only else f", [LaTeX](tables/{table.name}.tex)"
    n = f" (n = {table.usual_n} unless noted)" if table.usual_n else ""
    yield from (f"**{_markdown_text(table.title)}**{n}; [CSV](tables/{table.name}.csv){latex}", "")
    yield _row([*table.heads, *table.columns])
    yield _row([*("---" for _ in table.heads), *("---:" for _ in table.columns)])
    for line in table.lines:
        yield _row(
            [*map(_markdown_text, line.heads), *(_markdown_entry(entry, table.usual_n) for entry in line.entries)]
        )
    yield from (line for note in table.notes for line in ("", _markdown_text(note)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_entry(entry: TableCell | None, usual: int) -> str:
    if entry is None:
        return MISSING
    main = _markdown_text(entry.main)
    main = {"best": f"**{main}**", "second": f"<u>{main}</u>", "": main}[entry.mark]
    spread = f" ({entry.spread})" if entry.low is not None else f" {entry.spread}" if entry.spread else ""
    n = f", n = {entry.n}" if entry.n and entry.n != usual else ""
    return f"{main}{spread}{n}"


def _markdown_text(text: str) -> str:
    r"""Text without what Markdown and HTML would read as marks.

    >>> print(_markdown_text("a_b | <c>"))
    a\_b \| &lt;c&gt;
    """
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
