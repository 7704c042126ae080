"""A table as LaTeX that needs only the article class and booktabs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from dca.report.runs.table import Entry, Line, Table

# Longer tables are continued, so that each part fits on a page.
MOST_LINES = 40
# Longer texts are broken into lines.
WIDE, WIDTHS = 30, {"head": "5.5cm", "entry": "3.2cm"}
_MATH = {
    **{"–": "--", "−": "$-$", "±": "$\\pm$", "→": "$\\to$", "×": "$\\times$", "…": "\\ldots{}", "∞": "$\\infty$"},
    **{"α": "$\\alpha$", "β": "$\\beta$", "γ": "$\\gamma$", "τ": "$\\tau$", "<": "$<$", ">": "$>$", "|": "$|$"},
    **{"&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}"},
    **{"~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\\": "\\textbackslash{}", "’": "'"},
}


def escaped(text: str) -> str:
    r"""Text for LaTeX; letters that plain LaTeX lacks lose their accents or become "?".

    >>> escaped("a_b & γ1 < 5 %"), escaped("naïve 図")
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
    parts = [table.lines[n : n + MOST_LINES] for n in range(0, len(table.lines), MOST_LINES)]
    return "\n".join(_part(table, lines, number) for number, lines in enumerate(parts))


def _part(table: Table, lines: Sequence[Line], number: int) -> str:
    caption = escaped(table.title) + (" (continued)" if number else "") + _n(table)
    body = [f"    {_line(line, table.usual_n)} \\\\" for line in lines]
    head = " & ".join(escaped(text) for text in (*table.heads, *table.columns))
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
    return " & ".join([*map(escaped, line.heads), *(_entry(entry, usual) for entry in line.entries)])


def _entry(entry: Entry | None, usual: int) -> str:
    if entry is None:
        return "--"
    main = escaped(entry.main)
    main = {"best": f"\\textbf{{{main}}}", "second": f"\\underline{{{main}}}", "": main}[entry.mark]
    if entry.low is not None:
        return f"{main} ({escaped(entry.spread)})"
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
