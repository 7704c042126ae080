"""How far long work has come, for whoever wants to show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# (stage, done, total, note): called often, cheap, never printing by itself.
Progress = Callable[[str, int, int, str], None]
# Seconds between two lines in a log.
LINE_EVERY = 30.0


def silent(stage: str, done: int, total: int, note: str = "") -> None:
    """Show nothing."""


def of_stage(progress: Progress, stage: str) -> Callable[[int, int], None]:
    """The same for code that only counts: (done, total)."""
    return lambda done, total: progress(stage, done, total, "")


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """What the caller wants to be told with; bars if nothing was said."""
    if progress is not None:
        yield progress
        return
    with bars() as drawn:
        yield drawn


def lines() -> Progress:
    """A plain line on stderr at most every half minute, for logs: the stage, how far it is, the note."""
    last = time.monotonic()

    def progress(stage: str, done: int, total: int, note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            sys.stderr.write(f"{stage} {done:,}/{total:,}  {note}".rstrip() + "\n")

    return progress


@contextmanager
def bars(*, enabled: bool = True) -> Iterator[Progress]:
    """Progress bars on stderr, one a stage, with the time left; nothing where stderr is no terminal."""
    if not (enabled and sys.stderr.isatty()):
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks = {}
    with Bars(*columns, console=Console(stderr=True)) as table:

        def progress(stage: str, done: int, total: int, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = table.add_task(stage, total=total, note="")
            table.update(tasks[stage], completed=done, total=total, note=note)

        yield progress
