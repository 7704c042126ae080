"""dca study report: a report about finished runs."""

from __future__ import annotations

from pathlib import Path

import click

from dca.cli.common import print_lines
from dca.core.text import format_bytes


@click.command()
@click.argument("runs", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="Folder of the report.  [report/ in RUNS]",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--spec",
    "specifications",
    multiple=True,
    metavar="SPEC",
    help="Name rows as the grids of this specification and list its missing cells; repeatable.",
)
@click.option(
    "--selection",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Show the sha256 of this file of `dca study select`.  [RUNS/selection.json, if it is there]",
)
@click.option(
    "--reference",
    default="",
    metavar="METHOD",
    help="Compare all others with this method or row.  [the best one; DCA in a study of its paper]",
)
@click.option("--text-only", is_flag=True, help="Write only report.md and tables/*.csv, to be committed.")
def command(
    runs: Path,
    output: Path | None,
    open_it: bool,
    specifications: tuple[str, ...],
    selection: Path | None,
    reference: str,
    text_only: bool,
) -> None:
    """Write a report about RUNS, the folder of results of a sweep, or a file of `dca study collect`.

    The report is a folder with index.html, report.md, tables (LaTeX, CSV) and figures (SVG): accuracies, paired
    differences, variants and costs. Rows are in the order of the specification. With a specification of the DCA paper
    it also says which of its claims hold.

    \b
    dca study report runs/
    dca study report runs/ -o report/ --spec my.toml --reference coop --open
    dca study report runs/ --spec paper/few-shot
    """
    from dca.cli.report import open_page
    from dca.report.page import require_jinja
    from dca.study.report.folder import write_runs_report
    from dca.study.report.subject import read_subject

    require_jinja()
    subject = read_subject(runs, specifications=specifications, selection=selection, reference=reference)
    folder = output or (runs if runs.is_dir() else runs.parent) / "report"
    page = write_runs_report(subject, folder, text_only=text_only)
    print_lines(f"wrote {page} ({format_bytes(page.stat().st_size)})")
    if open_it:
        open_page(page)
