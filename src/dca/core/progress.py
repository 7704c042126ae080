"""Progress of long work: the one protocol for reporting it, and ways to show it on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dca.core.text import make_visible

# Seconds between two lines in a log.
LINE_EVERY = 30.0
# Seconds between two changes of a line in a notebook.
REDRAW_EVERY = 0.2
# Steps from which on progress is shown by default.
MANY = 100


class Progress(Protocol):
    """A function that receives the progress of long work. It is called often and must be cheap."""

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


def stage_progress(progress: Progress, stage: str) -> Callable[[int, int], None]:
    """A function of (done, total) that reports to `progress` under the name `stage`."""
    return lambda done, total: progress(stage, done, total, "")


@contextmanager
def default_progress(progress: Progress | None, steps: int = MANY) -> Iterator[Progress]:
    """The given `progress`; if it is None, one that suits where Python runs, or nothing for a few steps.

    That is one line that changes in a notebook, bars on a terminal, and lines for a log elsewhere.
    """
    if progress is not None:
        yield progress
    elif steps < MANY:
        yield silent
    elif in_notebook():
        with notebook_line() as shown:
            yield shown
    elif sys.stderr.isatty():
        with progress_bars(lasting=False) as shown:
            yield shown
    else:
        yield log_lines()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows what is printed but is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _format_line(stage: str, done: int, total: int, note: str) -> str:
    return make_visible(f"{stage} {done:,}/{total:,}  {note}".rstrip())


@contextmanager
def notebook_line() -> Iterator[Progress]:
    """One line on stdout that is written over and over, for notebooks; it is empty when the work is done."""
    last, stage_now, width = 0.0, "", 0

    def progress(stage: str, done: int, total: int, note: str) -> None:
        nonlocal last, stage_now, width
        if stage == stage_now and done < total and time.monotonic() - last < REDRAW_EVERY:
            return
        text = _format_line(stage, done, total, note)
        sys.stdout.write(f"\r{text:<{width}}")
        sys.stdout.flush()
        last, stage_now, width = time.monotonic(), stage, max(width, len(text))

    yield progress
    if stage_now:
        sys.stdout.write(f"\r{'':<{width}}\r")


def log_lines() -> Progress:
    """Plain lines on stderr for logs, at most one per 30 seconds: the stage, done and total, the note."""
    last = time.monotonic()

    def progress(stage: str, done: int, total: int, note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            sys.stderr.write(_format_line(stage, done, total, note) + "\n")

    return progress


@contextmanager
def progress_bars(*, enabled: bool = True, lasting: bool = True) -> Iterator[Progress]:
    """Progress bars on stderr, one per stage, with the time left; nothing if stderr is not a terminal.

    lasting: the bars stay when the work is done. A script that fits in a loop would fill the terminal with them.
    """
    if not (enabled and sys.stderr.isatty()):
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<10}", markup=False),  # names may hold what markup means
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks = {}
    with Bars(*columns, console=Console(stderr=True), transient=not lasting) as table:

        def progress(stage: str, done: int, total: int, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = table.add_task(make_visible(stage), total=total, note="")
            table.update(tasks[stage], completed=done, total=total, note=make_visible(note))

        yield progress
