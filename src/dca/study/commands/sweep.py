"""dca study sweep: many experiments from one specification."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from dca.cli.common import emit, json_flag, only_results_on_stdout, print_lines, quiet_flag
from dca.core.text import format_long_duration, format_seconds, make_visible, pluralize
from dca.study.choices import BACKENDS
from dca.study.commands.run import track_option

if TYPE_CHECKING:
    from rich.table import Table

    from dca.core.errors import UserError
    from dca.study.sweep import Plan, SweepCounts
    from dca.study.worker import SweepEvent

MOST_LISTED = 40


class Display(Protocol):
    """Shows a sweep as it goes on."""

    def __call__(self, event: SweepEvent, counts: SweepCounts, /) -> None:
        """Show the counts after an event."""


@click.command(epilog="Specifications that come with dca: see docs/studies.md, or give any name for the list.")
@click.argument("spec", metavar="SPEC")
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder of the results, one folder per cell.",
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="local",
    show_default=True,
    help="Where cells run: processes of this machine, or an existing Ray cluster.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Processes at once. [one per two cores, as far as GPU memory goes]",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="How often a cell that failed is tried again.",
)
@click.option(
    "--part",
    metavar="N/M",
    default=None,
    help="Only part N of M, for the tasks of a job array: --part $SLURM_ARRAY_TASK_ID/16.",
)
@click.option("--dry-run", is_flag=True, help="Show the cells, the expected time and what is missing; run nothing.")
@click.option(
    "--data",
    "root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=None,
    help="Folder that holds the datasets. [DCA_DATA]",
)
@click.option("--backbone", default=None, help="Used instead of the backbones of the specification.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")
@track_option
@quiet_flag
@json_flag
def command(
    spec: str,
    runs: Path,
    part: str | None,
    dry_run: bool,
    backbone: str | None,
    quiet: bool,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Run every cell of SPEC: a TOML file, or a specification that comes with dca.

    Each cell is one experiment as `dca study run` runs it, in RUNS/ID. Finished cells are skipped, and an
    interrupted or killed sweep loses only the cells in flight: give the same command again. Several sweeps may share
    RUNS: each cell is done once, and one that another process is at is skipped.

    \b
    dca study sweep paper/few-shot --dry-run
    dca study sweep paper/few-shot --backbone vit-b-16 --data ~/datasets --runs runs
    dca study sweep my.toml --runs runs --workers 4
    dca study sweep my.toml --runs runs --part 3/16

    \b
    my.toml:
      title = "DCA against CoOp"
      [common]
      data = ["eurosat", "dtd"]      # a list is an axis of the grid
      shots = [1, 4, 16]
      seed = [1, 2, 3]
      [[grid]]
      method = "coop"
      [[grid]]
      method = "dca"
      options = {alpha = [1, 10]}    # options of the method
      head = {gamma1 = [100, 500]}   # measured on the finished model, without another fit
    """
    from dca.study.specification import load_specification
    from dca.study.sweep import plan_sweep, take_part

    whole = load_specification(spec, backbone=backbone)
    plan = plan_sweep(whole if part is None else take_part(whole, *parse_part(part)), runs)
    if dry_run:
        show_plan(plan, arguments["root"], as_json=as_json)
        return
    with open_display(quiet=quiet) as display:
        counts = run_and_show(plan, display, **arguments)
    all_parts = None if part is None else plan_sweep(whole, runs)
    if as_json:
        emit(summarize(plan, counts, all_parts))
    else:
        print_lines(*format_end(plan, counts, all_parts))
    if counts.failed:
        raise click.exceptions.Exit(2)


def parse_part(text: str) -> tuple[int, int]:
    """The numbers of --part.

    >>> parse_part("3/16")
    (3, 16)
    """
    from dca.core.errors import UserError

    numbers = text.split("/")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise UserError(f"--part {text}: not a part", hint="give it as N/M, e.g. --part 3/16")
    return int(numbers[0]), int(numbers[1])


def run_and_show(plan: Plan, display: Display, **arguments: Any) -> SweepCounts:
    """Run the sweep and show it; returns the counts at its end."""
    from contextlib import closing

    from dca.study.sweep import SweepCounts, run_sweep

    counts = SweepCounts(len(plan.study.cells), len(plan.finished))
    try:
        with only_results_on_stdout(), closing(run_sweep(plan, **arguments)) as events:
            for event, counts in events:
                display(event, counts)
    except KeyboardInterrupt:
        print_lines("interrupted; the same command does the cells that are left", err=True)
        raise click.exceptions.Exit(130) from None
    return counts


def summarize(plan: Plan, counts: SweepCounts, all_parts: Plan | None) -> dict[str, Any]:
    """The end of a sweep, for --json; all_parts: the plan of the whole study after a part of it."""
    failed = [{"id": id, "cell": cell.label, "error": error} for id, (cell, error) in counts.failed.items()]
    whole = all_parts or plan
    return {
        "study": plan.study.name,
        "runs": str(plan.runs),
        "cells": len(plan.study.cells),
        "finished_before": len(plan.finished),
        "finished_now": counts.done_now,
        "finished_by_others": counts.by_others,
        "held": [{"id": id, "cell": cell.label} for id, cell in counts.held.items()],
        "failed": failed,
        "all_parts": {"cells": len(whole.study.cells), "finished": len(whole.finished)} if all_parts else None,
    }


def format_end(plan: Plan, counts: SweepCounts, all_parts: Plan | None) -> Iterator[str]:
    """The end of a sweep as text; all_parts: the plan of the whole study after a part of it."""
    said = [pluralize(len(plan.study.cells), "cell"), f"{len(plan.finished):,} done before", f"{counts.done_now:,} now"]
    if counts.by_others:
        said.append(f"{counts.by_others:,} by other processes")
    yield f"{plan.study.name}: {', '.join(said)}"
    if counts.held:
        yield f"{pluralize(len(counts.held), 'cell', 'are')} held by another process and skipped:"
        yield from (f"  {id}  {cell.label}" for id, cell in counts.held.items())
    if counts.failed:
        yield f"{pluralize(len(counts.failed), 'cell')} failed; the same command tries them again:"
        yield from (f"  {id}  {cell.label}: {error}" for id, (cell, error) in counts.failed.items())
        yield f"where: {plan.runs / 'failed'}/ID.json"
    if all_parts is not None:
        study = all_parts.study
        yield f"all of {study.name}: {len(all_parts.finished):,} of {pluralize(len(study.cells), 'cell')} finished"


def show_plan(plan: Plan, root: Path | None, *, as_json: bool) -> None:
    """Print what a sweep would do."""
    from dca.study.sweep import find_missing

    lacking = find_missing(plan.study, root)
    if as_json:
        emit(plan_to_dict(plan, lacking))
        return
    study, left = plan.study, plan.to_do
    print_lines(f"{study.name}: {study.title}" + (f" ({study.paper})" if study.paper else ""))
    done = f"{len(plan.finished):,} done before, {len(left):,} to do with {pluralize(plan.new_fits, 'fit')}"
    print_lines(f"{pluralize(len(study.cells), 'cell')}, {done}")
    for line in format_cells(plan):
        print_lines(f"  {line}")
    print_lines(f"expected time: {format_expected_time(plan.expected_seconds) if left else 'nothing to do'}")
    for error in lacking:
        print_lines(f"missing: {error.problem}")
    if lacking:
        print_lines(
            "  fix: --data DIR is the folder that holds the datasets (`dca datasets`), --backbone PATH the weights"
        )


def format_expected_time(seconds: float | None) -> str:
    """The expected time in words."""
    if seconds is None:
        return "unknown: no cell like these is finished"
    return f"about {format_long_duration(seconds)} in one process"


def plan_to_dict(plan: Plan, lacking: Sequence[UserError]) -> dict[str, Any]:
    """The plan, for --json."""
    left = {cell.id for cell in plan.to_do}
    cells = [
        {"id": c.id, "finished": c.id not in left, "rows": list(c.rows), **c.experiment.to_dict(), "head": dict(c.head)}
        for c in plan.study.cells
    ]
    return {
        "study": plan.study.name,
        "title": plan.study.title,
        "paper": plan.study.paper,
        "fits": plan.new_fits,
        "expected_seconds": plan.expected_seconds,
        "missing": [error.problem for error in lacking],
        "cells": cells,
    }


def format_cells(plan: Plan) -> Iterator[str]:
    """One line per cell, or per row and method where there are many cells."""
    left = {cell.id for cell in plan.to_do}
    if len(plan.study.cells) <= MOST_LISTED:
        yield from (f"{c.id}  {c.label}{'' if c.id in left else '  (done)'}" for c in plan.study.cells)
        return
    groups = Counter(", ".join(c.rows) or c.experiment.method for c in plan.study.cells)
    yield from (f"{name}: {pluralize(number, 'cell')}" for name, number in groups.items())
    yield "every cell: --json"


@contextmanager
def open_display(*, quiet: bool) -> Iterator[Display]:
    """Show a sweep on stderr: a live table on a terminal, a line per cell elsewhere."""
    if quiet:
        yield lambda event, counts: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), refresh_per_second=4) as live:
            yield lambda event, counts: live.update(build_table(counts))
    else:
        yield print_line


def print_line(event: SweepEvent, counts: SweepCounts) -> None:
    """A plain line for each cell that ended."""
    if event.cell is None or event.result is None:
        return
    left = counts.seconds_left
    ending = f", about {format_long_duration(left)} left" if left else ""
    state = f"{event.kind} in {format_seconds(event.result.seconds)}" if event.kind == "finished" else event.kind
    if event.kind in ("postponed", "held"):
        state = f"{event.kind}: another process is at it"
    elif event.result.by_others:
        state = "finished by another process"
    error = f": {event.result.error}" if event.result.error else ""
    failed = f", {len(counts.failed):,} failed" if counts.failed else ""
    print_lines(f"{counts.done:,}/{counts.total:,}{failed}{ending}  {event.cell.label}  {state}{error}", err=True)


def build_table(counts: SweepCounts) -> Table:
    """The live table: counts, and the cells that are running."""
    import time

    from rich.table import Table
    from rich.text import Text

    left = counts.seconds_left
    drawn = Table(box=None, pad_edge=False)
    for name in ("done", "running", "failed", "retried", "time left"):
        drawn.add_column(name, justify="right")
    drawn.add_column("cell")
    drawn.add_row(
        f"{counts.done:,}/{counts.total:,}",
        f"{len(counts.running):,}",
        f"{len(counts.failed):,}",
        f"{counts.retried:,}",
        format_long_duration(left) if left else "-",
    )
    for cell, began in counts.running.values():
        name = f"{cell.label}  {format_seconds(time.monotonic() - began)}"
        drawn.add_row("", "", "", "", "", Text(make_visible(name)))
    return drawn
