"""Writes the report about a folder of runs: page, Markdown, LaTeX, CSV and drawings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dca.core.errors import UserError
from dca.core.files import encode_utf8, explain_write_errors, read_json, write_bytes, write_json
from dca.core.text import pluralize
from dca.report import page
from dca.report.page import Section
from dca.report.svg import to_standalone
from dca.study.index import is_results_file
from dca.study.report.figures import anchor
from dca.study.report.sections import SECTIONS
from dca.study.report.subject import Subject
from dca.study.report.tables import (
    Part,
    RunsSection,
    TableCell,
    csv_runs,
    csv_table,
    file_name,
    latex_document,
    latex_table,
    markdown_report,
)

INDEX, MARKDOWN, LATEX, MANIFEST = "index.html", "report.md", "tables.tex", "files.json"


@dataclass(frozen=True)
class Built:
    """The sections of a report, built; left_out: titles of those without anything to show, and why."""

    parts: tuple[tuple[RunsSection, Part], ...]
    left_out: tuple[tuple[str, str], ...]


def build(subject: Subject, sections: Sequence[RunsSection] = SECTIONS) -> Built:
    """Build all sections; every table and figure gets a name for its files."""
    parts, left_out = [], []
    for section in sections:
        if not section.belongs_to(subject):
            continue
        part = section.build(subject)
        if isinstance(part, str):
            left_out.append((section.title, part))
        else:
            parts.append((section, _with_file_names(part)))
    return Built(tuple(parts), tuple(left_out))


def _with_file_names(part: Part) -> Part:
    tables = tuple(replace(table, name=file_name(table.name)) for table in part.tables)
    return replace(part, tables=tables, figures=tuple(replace(f, name=file_name(f.name)) for f in part.figures))


def write_runs_report(subject: Subject, folder: Path, *, text_only: bool = False) -> Path:
    """Write the report.

    Args:
        subject: The runs.
        folder: Where it goes; files that an earlier report left there and that are not made again are removed.
        text_only: Write only report.md and tables/*.csv: what is small and can be compared line by line.

    Returns:
        The page, or report.md.

    Raises:
        UserError: If jinja2 is missing, or the folder cannot be written.
    """
    built = build(subject)
    if text_only:
        files = text_files(subject, built)
    else:
        page.require_jinja()
        files = all_files(subject, built, _relative_address(subject.runs, folder))
    with explain_write_errors(folder):
        for name in {str(Path(file).parent) for file in files}:
            (folder / name).mkdir(parents=True, exist_ok=True)
    for name in sorted(_read_manifest(folder) - set(files)):
        (folder / name).unlink(missing_ok=True)
    for name, text in files.items():
        write_bytes(folder / name, encode_utf8(text))
    write_json(folder / MANIFEST, {"files": sorted(files)})
    return folder / (MARKDOWN if text_only else INDEX)


def _read_manifest(folder: Path) -> set[str]:
    """Names of the files that an earlier report wrote, as far as they are of such a report."""
    try:
        listed = read_json(folder / MANIFEST).get("files", [])
    except UserError:
        return set()
    kinds = {"tables": (".csv", ".tex"), "figures": (".svg",)}
    parts = {name: Path(name).parts for name in listed if isinstance(name, str)}
    inside = {name for name, own in parts.items() if len(own) == 2 and own[1].endswith(kinds.get(own[0], ("\0",)))}
    return inside | ({INDEX, LATEX, MARKDOWN} & parts.keys())


def _relative_address(runs: Path, folder: Path) -> str | None:
    """The address of the folder of runs, seen from the report; None for a results file, which has no file per run."""
    return None if is_results_file(runs) else quote(Path(os.path.relpath(runs.resolve(), folder.resolve())).as_posix())


def _title(subject: Subject) -> str:
    if len(subject.studies) == 1:
        return subject.studies[0].title
    runs = subject.runs.resolve()
    return f"Report about {runs.stem if is_results_file(runs) else runs.name}"


def text_files(subject: Subject, built: Built) -> dict[str, str]:
    """The report in Markdown and its tables as CSV, by name."""
    tables = [table for _, part in built.parts for table in part.tables]
    return {
        **{f"tables/{table.name}.csv": csv_table(table) for table in tables},
        "tables/runs.csv": csv_runs(subject.rows, subject.names),
        MARKDOWN: markdown_report(_title(subject), built.parts, built.left_out, text_only=True),
    }


def all_files(subject: Subject, built: Built, base: str | None) -> dict[str, str]:
    """All files of a report by name; base: address of the folder of runs, seen from the report."""
    tables = [table for _, part in built.parts for table in part.tables]
    figures = [figure for _, part in built.parts for figure in part.figures]
    return {
        **text_files(subject, built),
        **{f"tables/{table.name}.tex": latex_table(table) for table in tables},
        **{
            f"figures/{figure.name}.svg": to_standalone(figure.svg, page.read_chart_style(), f"../{INDEX}")
            for figure in figures
        },
        LATEX: latex_document([table.name for table in tables]),
        MARKDOWN: markdown_report(_title(subject), built.parts, built.left_out),
        INDEX: _page(subject, built, _title(subject), base),
    }


def _page(subject: Subject, built: Built, title: str, base: str | None) -> str:
    """The HTML page: every section, and the lists of runs that numbers and marks lead to."""
    groups = {anchor(runs): runs for _, part in built.parts for runs in part.groups}

    def link(runs: Sequence[str]) -> str:
        return f"#{anchor(runs)}" if base is None or len(runs) > 1 else f"{base}/{runs[0]}/result.json"

    def values(part: Part) -> Mapping[str, Any]:
        return {"part": part, "link": link, "said": _describe_entry}

    shown = [_section(section.name, section.title, "part.html", values(part)) for section, part in built.parts]
    shown.append(_section("run_lists", "Runs", "run_lists.html", {"groups": groups, "base": base}))
    shown += [Section(name, name, lambda _, why=why: why) for name, why in built.left_out]  # type: ignore[misc]
    methods = {row.method for row in subject.rows}
    about = f"{pluralize(len(subject.rows), 'finished run')} of {pluralize(len(methods), 'method')}"
    return page.render(shown, subject, title=title, about=about, folder=Path(__file__).parent)


def _section(name: str, title: str, template: str, values: Mapping[str, Any]) -> Section[Subject]:
    return Section(name, title, lambda _: values, template)


def _describe_entry(entry: TableCell) -> str:
    """What is shown when a number is pointed at: the note, and the ids of its runs."""
    few = ", ".join(entry.runs[:6]) + (", ..." if len(entry.runs) > 6 else "")
    return f"{entry.note + '; ' if entry.note else ''}{pluralize(len(entry.runs), 'run')}: {few}"
