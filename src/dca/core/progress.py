"""Progress of long work: the one protocol for reporting it, and ways to show it on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

# Seconds between two lines in a log.
LINE_EVERY = 30.0


class Progress(Protocol):
    """A function that is called with the progress of long work. It is called often and must be cheap."""

    def __call__(self, stage: str, done: int, total: int, note: str, /) -> None:
        """Report progress.

        Args:
            stage: What is being done, e.g. "training".
            done: How many steps of this stage are done.
            total: How many steps this stage has.
            note: Further text to show, e.g. the loss; may be empty.
        """


def silent(stage: str, done: int, total: int, note: str = "") -> None:
    """Show nothing."""


def of_stage(progress: Progress, stage: str) -> Callable[[int, int], None]:
    """A function of (done, total) that reports to `progress` under the name `stage`."""
    return lambda done, total: progress(stage, done, total, "")


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """The given `progress`; progress bars if it is None."""
    if progress is not None:
        yield progress
        return
    with bars() as drawn:
        yield drawn


def lines() -> Progress:
    """Plain lines on stderr for logs, at most one per 30 seconds: the stage, done and total, the note."""
    last = time.monotonic()

    def progress(stage: str, done: int, total: int, note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            sys.stderr.write(f"{stage} {done:,}/{total:,}  {note}".rstrip() + "\n")

    return progress


@contextmanager
def bars(*, enabled: bool = True) -> Iterator[Progress]:
    """Progress bars on stderr, one per stage, with the time left; nothing if stderr is not a terminal."""
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
