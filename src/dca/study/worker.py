"""What one worker of a sweep does: a fit, and every cell that shares it.

What every engine of a sweep has: the events that it yields, and the queue with its retries.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from dca.core.choices import TrackerName
from dca.core.errors import UserError
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset
from dca.datasets.protocols import Task
from dca.runs.run import FittedRun, run, task_of
from dca.runs.spec import Spec
from dca.runs.tracking import open_tracker
from dca.study.finished_run import finished_method, run_finished
from dca.study.specification import Cell, Job
from dca.training.session import Session


@dataclass(frozen=True)
class CellResult:
    """How one cell ended.

    Attributes:
        id: Id of the cell.
        seconds: How long it took.
        error: What went wrong; empty if it is finished.
        traceback: Where, for an error that is not the user's.
        memory: Whether memory ran out.
    """

    id: str
    seconds: float
    error: str = ""
    traceback: str = ""
    memory: bool = False


class Worker:
    """Carries out jobs one after the other; they share backbones, datasets, images and features.

    Args:
        runs: Folder of the results.
        root: Folder that holds the public datasets; DCA_DATA by default.
        device: "auto", "cpu", "cuda:1", ...
        track: Where the metrics are also shown.
    """

    def __init__(self, runs: Path, root: Path | None, device: str, track: TrackerName | None = None) -> None:
        self.runs, self.root, self.track = runs, root, track
        self.session = Session(device=device, keep_crops=True)
        self._datasets: dict[tuple[str, bool], Dataset] = {}

    def carry_out(self, job: Job) -> Iterator[CellResult]:
        """Finish the cells of a job, reporting each; an error ends its cell and not the others.

        Args:
            job: What to do; cells that are finished are not done again.

        Yields:
            One report per cell, in their order; if the fit fails, all cells have its error.
        """
        began = time.monotonic()
        try:
            outcome = self._fit(job.spec)
        except Exception as error:
            yield from (_failed(cell, error, time.monotonic() - began) for cell in job.cells)
            return
        model, measured = _Model(self, job.spec, outcome), {cell.id for cell in job.measured}
        for cell in job.cells:
            try:
                if cell.id in measured and not cell.result_file(self.runs).is_file():
                    model.measure(cell)
            except Exception as error:
                yield _failed(cell, error, time.monotonic() - began)
            else:
                yield CellResult(cell.id, time.monotonic() - began)
            began = time.monotonic()

    def _fit(self, spec: Spec) -> FittedRun:
        dataset, targets = self.data_of(spec)
        place = self.runs / spec.id
        return run(spec, place, dataset=dataset, targets=targets, session=self.session, track=self.track)

    def data_of(self, spec: Spec) -> tuple[Dataset, list[Dataset]]:
        """The dataset of a spec and its targets; each is read once per worker."""
        return self._dataset(spec.data, False), [self._dataset(name, True) for name in spec.targets]

    def _dataset(self, name: str, for_evaluation: bool) -> Dataset:
        key = name, for_evaluation
        if key not in self._datasets:
            self._datasets[key] = load_dataset(name, root=self.root, for_evaluation=for_evaluation)
        return self._datasets[key]


class _Model:
    """The finished model of a job, which is loaded when a cell needs it."""

    def __init__(self, worker: Worker, spec: Spec, outcome: FittedRun) -> None:
        self.worker, self.spec, self.folder = worker, spec, outcome.folder
        self._method = outcome.classifier.method_ if outcome.classifier is not None else None
        self._tasks: dict[str, Task] = {}
        self._features: dict[str, dict[str, Tensor]] = {spec.id: outcome.features}  # of test images, for other heads

    def measure(self, cell: Cell) -> None:
        """Measure the model as a cell asks, and record its figures."""
        worker = self.worker
        if self._method is None:
            self._method = finished_method(self.spec, self.folder, worker.session)
        task = self._task(cell.spec)
        if task.source.train != self._task(self.spec).source.train:
            raise RuntimeError(f"{cell.label} is not trained on the images of {self.spec.id}")
        place = worker.runs / cell.id
        config = {**cell.spec.to_dict(), **({"head": dict(cell.head)} if cell.head else {})}
        features = self._features.setdefault(cell.spec.id, {}) if cell.head else None
        with closing(open_tracker(worker.track, place, config)) as tracker:
            found = run_finished(cell.spec, cell.head, self._method, task, worker.session, self.folder, place, features)
            tracker.finish(found)

    def _task(self, spec: Spec) -> Task:
        if spec.id not in self._tasks:
            self._tasks[spec.id] = task_of(spec, *self.worker.data_of(spec))
        return self._tasks[spec.id]


def _failed(cell: Cell, error: Exception, seconds: float) -> CellResult:
    if isinstance(error, UserError):
        return CellResult(cell.id, seconds, "; ".join([error.problem, *error.details[:5]]))
    message = str(error).partition("\n")[0]
    # By name and text, as some allocators of torch raise a plain RuntimeError.
    memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "t allocate mem" in message
    trace = "".join(traceback.format_exception(error))
    return CellResult(cell.id, seconds, f"{type(error).__name__}: {message}", trace, memory)


# Seconds between two looks at the clock while nothing ends.
PULSE = 1.0
EventKind = Literal["started", "finished", "retry", "failed", "pulse"]


@dataclass(frozen=True)
class SweepEvent:
    """Something that a sweep shows.

    Attributes:
        kind: "started" and "finished" of a cell, "retry" or "failed" if it did not end well, "pulse" for the clock.
        cell: The cell; None for "pulse".
        report: How it ended, where it did.
    """

    kind: EventKind
    cell: Cell | None = None
    report: CellResult | None = None


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

    def judged(self, cell: Cell, report: CellResult) -> SweepEvent:
        """The event for a report; a cell that failed is queued again while it may be retried."""
        if not report.error:
            return SweepEvent("finished", cell, report)
        self._tries[cell.id] = self._tries.get(cell.id, 0) + 1
        if self._tries[cell.id] > self._retries:
            return SweepEvent("failed", cell, report)
        self.put(Job(cell.spec, (cell,)))
        return SweepEvent("retry", cell, report)
