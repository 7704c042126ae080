"""What every engine of a sweep has: the events that it yields, and the queue with its retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dca.studies.cell import Cell, Job
from dca.studies.worker import Report

# Seconds between two looks at the clock while nothing ends.
PULSE = 1.0
EventKind = Literal["started", "finished", "retry", "failed", "pulse"]


@dataclass(frozen=True)
class Event:
    """Something that a sweep shows.

    Attributes:
        kind: "started" and "finished" of a cell, "retry" or "failed" if it did not end well, "pulse" for the clock.
        cell: The cell; None for "pulse".
        report: How it ended, where it did.
    """

    kind: EventKind
    cell: Cell | None = None
    report: Report | None = None


class Queue:
    """The jobs that are left; cells that failed come last.

    Args:
        jobs: What to do.
        retries: How often a cell that failed is tried again.
    """

    def __init__(self, jobs: Iterable[Job], retries: int) -> None:
        self._jobs, self._retries, self._tries = deque(jobs), retries, dict[str, int]()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def next(self) -> Job:
        """The next job, which leaves the queue."""
        return self._jobs.popleft()

    def put(self, job: Job) -> None:
        """Put a job last, without counting it as tried."""
        self._jobs.append(job)

    def judged(self, cell: Cell, report: Report) -> Event:
        """The event for a report; a cell that failed is queued again while it may be retried."""
        if not report.error:
            return Event("finished", cell, report)
        self._tries[cell.id] = self._tries.get(cell.id, 0) + 1
        if self._tries[cell.id] > self._retries:
            return Event("failed", cell, report)
        self.put(Job(cell.spec, (cell,)))
        return Event("retry", cell, report)
