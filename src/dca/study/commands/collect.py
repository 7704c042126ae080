"""dca study collect: the results of many runs as one file."""

from __future__ import annotations

from pathlib import Path

import click

from dca.cli.common import emit, json_flag, print_lines
from dca.core.text import format_bytes


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE.jsonl",
    help="Results file to create or to extend.",
)
@json_flag
def command(runs: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Collect the results of RUNS into one file: one run per line, sorted by id.

    RUNS are folders of `dca study sweep`, or files of this command. Cells that failed are kept with their error. Runs
    that the file has already are replaced where the folder has newer results; the order of RUNS and repeated calls
    change nothing. `dca study report` and `dca study select` read the file in place of a folder: it is small and can
    be committed, while a folder of runs holds models.

    \b
    dca study collect runs/ -o results.jsonl
    dca study report results.jsonl -o report/
    """
    from dataclasses import asdict

    from dca.study.index import collect

    counts = collect(runs, output)
    if as_json:
        emit(asdict(counts))
        return
    words = f"{counts.finished:,} finished and {counts.failed:,} failed cells"
    news = f"{counts.added:,} new, {counts.changed:,} changed"
    print_lines(f"wrote {output} ({format_bytes(output.stat().st_size)}): {words}; {news}")
