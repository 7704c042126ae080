"""What a worker of a sweep does: it fits a model, and measures it for every cell that shares the fit.

The backends of a sweep (`workers_local`, `workers_ray`) run workers. They yield events, and share the queue of jobs
with its retries.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from dca.core.errors import UserError
from dca.core.files import InUseError, atomic_folder, exclusive_lock, read_json, write_json
from dca.core.options import as_json
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset
from dca.datasets.task import Task
from dca.methods.base import Method
from dca.model import checkpoint
from dca.model.checkpoint import RESULT, SPEC
from dca.runs.evaluate import evaluate
from dca.runs.run import FittedRun
from dca.study.choices import TrackerName
from dca.study.experiment import Experiment, ExperimentResult, experiment_figures
from dca.study.run import make_experiment_task, run_experiment
from dca.study.specification import Cell, Job
from dca.study.tracking import open_tracker
from dca.training.session import Session


@dataclass(frozen=True)
class CellResult:
    """How one cell ended.

    Attributes:
        id: Id of the cell.
        seconds: How long it took.
        error: What went wrong; empty if it is finished.
        traceback: Where, for an error that is not the user's.
        out_of_memory: Whether memory ran out.
        held: Whether another process is at it, so that nothing was done.
        by_others: Whether another process has finished it.
    """

    id: str
    seconds: float
    error: str = ""
    traceback: str = ""
    out_of_memory: bool = False
    held: bool = False
    by_others: bool = False


class Worker:
    """Runs jobs one after the other; they share backbones, datasets, images and features.

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

    def run(self, job: Job) -> Iterator[CellResult]:
        """Finish the cells of a job; an error ends its cell and not the others.

        One process at a time works at a job, of all that share the folder of runs.

        Args:
            job: What to do; cells that are finished are not done again.

        Yields:
            One result per cell, in their order; if the fit fails, all cells have its error.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(self.runs / f"{job.experiment.id}.job", "sweep"))
            except Exception as error:
                yield from (_failed_result(cell, error, 0.0) for cell in job.cells)
                return
            if all(cell.result_file(self.runs).is_file() for cell in job.cells):
                yield from (CellResult(cell.id, 0.0, by_others=True) for cell in job.cells)
            else:
                yield from self._finish(job)

    def _finish(self, job: Job) -> Iterator[CellResult]:
        """Finish the cells of a job that no other process is at."""
        began = time.monotonic()
        try:
            fitted = self._fit(job.experiment)
        except Exception as error:
            yield from (_failed_result(cell, error, time.monotonic() - began) for cell in job.cells)
            return
        model, measured = _FinishedModel(self, job.experiment, fitted), {cell.id for cell in job.measured}
        for cell in job.cells:
            try:
                if cell.id in measured and not cell.result_file(self.runs).is_file():
                    model.measure(cell)
            except Exception as error:
                yield _failed_result(cell, error, time.monotonic() - began)
            else:
                yield CellResult(cell.id, time.monotonic() - began)
            began = time.monotonic()

    def _fit(self, experiment: Experiment) -> FittedRun:
        dataset, targets = self.load_data(experiment)
        folder = self.runs / experiment.id
        return run_experiment(
            experiment, folder, dataset=dataset, targets=targets, session=self.session, track=self.track
        )

    def load_data(self, experiment: Experiment) -> tuple[Dataset, list[Dataset]]:
        """The dataset of an experiment and its targets; each is read once per worker."""
        targets = [self._load_dataset(name, True) for name in experiment.targets]
        return self._load_dataset(experiment.data, False), targets

    def _load_dataset(self, name: str, for_evaluation: bool) -> Dataset:
        key = name, for_evaluation
        if key not in self._datasets:
            self._datasets[key] = load_dataset(name, root=self.root, for_evaluation=for_evaluation)
        return self._datasets[key]


class _FinishedModel:
    """The finished model of a job, which is loaded when a cell needs it."""

    def __init__(self, worker: Worker, experiment: Experiment, fitted: FittedRun) -> None:
        self.worker, self.experiment, self.folder = worker, experiment, fitted.folder
        self._method = fitted.classifier.method_ if fitted.classifier is not None else None
        self._tasks: dict[str, Task] = {}
        # Features of the test images, for other heads.
        self._features: dict[str, dict[str, Tensor]] = {experiment.id: fitted.features}

    def measure(self, cell: Cell) -> None:
        """Measure the model as a cell asks, and record its figures."""
        worker, experiment = self.worker, cell.experiment
        if self._method is None:
            self._method = load_method(self.experiment, self.folder, worker.session)
        task = self._task(experiment)
        if task.source.train != self._task(self.experiment).source.train:
            raise RuntimeError(f"{cell.label} is not trained on the images of {self.experiment.id}")
        folder = worker.runs / cell.id
        config = {**experiment.to_dict(), **({"head": dict(cell.head)} if cell.head else {})}
        features = self._features.setdefault(experiment.id, {}) if cell.head else None
        with closing(open_tracker(worker.track, folder, config)) as tracker:
            result = measure_finished(
                experiment, cell.head, self._method, task, worker.session, self.folder, folder, features
            )
            tracker.finish(result.to_dict())

    def _task(self, experiment: Experiment) -> Task:
        if experiment.id not in self._tasks:
            self._tasks[experiment.id] = make_experiment_task(experiment, *self.worker.load_data(experiment))
        return self._tasks[experiment.id]


def load_method(experiment: Experiment, folder: Path, session: Session) -> Method:
    """The method of a finished run on the backbone of its experiment.

    Args:
        experiment: What was run.
        folder: Folder of the finished run.
        session: Loads the backbone.

    Returns:
        The finished method.

    Raises:
        UserError: If the folder holds no complete model, or one of another backbone.
    """
    record = checkpoint.read_record(folder)
    encoder = session.load_backbone(experiment.backbone, experiment.precision, kind=experiment.kind)
    return checkpoint.load_model(folder, record, encoder)


def measure_finished(
    experiment: Experiment,
    head: Mapping[str, Any],
    method: Method,
    task: Task,
    session: Session,
    fit: Path,
    folder: Path,
    features: dict[str, Tensor] | None = None,
) -> ExperimentResult:
    """Measure a finished method and record the figures as those of an experiment with the same training.

    The parameters are those of the fit: training reads no option of the head. With other options of the head the
    probabilities are not calibrated.

    Args:
        experiment: The experiment; its protocol and targets may differ from those of the fit.
        head: Options of the head by name; none for the head of the fit.
        method: The finished method.
        task: The task of the experiment.
        session: Loads images and features.
        fit: Folder of the finished run.
        folder: Where `result.json` and `spec.json` go, in one rename; "options" in the latter are all values of the
            head's options, those that follow from others included.
        features: Features of the test images, shared by the heads of this method (`runs.evaluate`).

    Returns:
        The figures: those of the fit, with the accuracies of this head and these targets.

    Raises:
        UserError: If the head cannot have these options, or an image cannot be read.
    """
    changed, began = method.with_options(head), time.monotonic()
    training = session.hash_images([item.image for item in task.source.train])
    evaluations = evaluate(changed, task.targets, session, features, training)
    result = dataclasses.replace(
        ExperimentResult.from_dict(read_json(fit / RESULT)),
        **experiment_figures(experiment.protocol, tuple(one.result for one in evaluations)),
        protocol=experiment.protocol,
        temperature=changed.temperature,
        evaluation_seconds=round(time.monotonic() - began, 2),
        fit=fit.name,
    )
    if head:  # the estimate and the findings are those of the fit's own head
        result = dataclasses.replace(result, estimate=None, findings=None, head=dict(head))
    with atomic_folder(folder) as partial:
        options = as_json({name: getattr(changed.options, name) for name in changed.head_options})
        write_json(partial / SPEC, {"spec": experiment.to_dict(), "head": dict(head), "options": options})
        write_json(partial / RESULT, result.to_dict())
    return result


def _failed_result(cell: Cell, error: Exception, seconds: float) -> CellResult:
    if isinstance(error, InUseError):
        return CellResult(cell.id, seconds, held=True)
    if isinstance(error, UserError):
        return CellResult(cell.id, seconds, "; ".join([error.problem, *error.details[:5]]))
    message = str(error).partition("\n")[0]
    # By name and text, as some allocators of torch raise a plain RuntimeError.
    memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "t allocate mem" in message
    trace = "".join(traceback.format_exception(error))
    return CellResult(cell.id, seconds, f"{type(error).__name__}: {message}", trace, memory)


# Seconds between two looks at the clock while nothing ends.
PULSE = 1.0
EventKind = Literal["started", "finished", "retry", "failed", "postponed", "held", "pulse"]


@dataclass(frozen=True)
class SweepEvent:
    """Something that a sweep shows.

    Attributes:
        kind: "started" and "finished" of a cell, "retry" or "failed" if it did not end well; "postponed" if another
            process is at it, and "held" if one still is when all others are done; "pulse" for the clock.
        cell: The cell; None for "pulse".
        result: How it ended, where it did.
    """

    kind: EventKind
    cell: Cell | None = None
    result: CellResult | None = None


class Queue:
    """The jobs that are left; cells that failed come last, and after all others those that another process held.

    Args:
        jobs: What to do.
        retries: How often a cell that failed is tried again.
    """

    def __init__(self, jobs: Iterable[Job], retries: int) -> None:
        self._jobs, self._retries, self._tries = deque(jobs), retries, dict[str, int]()
        self._fits = {cell.id: job.experiment for job in self._jobs for cell in job.cells}
        self._postponed = dict[str, Cell]()
        self._last_chance = False

    def __bool__(self) -> bool:
        return bool(self._jobs or self._postponed)

    def is_ready(self, *, busy: bool) -> bool:
        """Whether a job can be given out; busy: whether others are being done, before which no held one is tried."""
        return bool(self._jobs) or (bool(self._postponed) and not busy)

    def next(self) -> Job:
        """The next job, which leaves the queue."""
        if not self._jobs:
            fits: dict[str, list[Cell]] = {}
            for cell in self._postponed.values():
                fits.setdefault(self._fits[cell.id].id, []).append(cell)
            self._jobs.extend(Job(self._fits[cells[0].id], tuple(cells)) for cells in fits.values())
            self._postponed, self._last_chance = {}, True
        return self._jobs.popleft()

    def put(self, job: Job) -> None:
        """Put a job last, without counting it as tried."""
        self._jobs.append(job)

    def take_result(self, cell: Cell, result: CellResult) -> SweepEvent:
        """The event for a result; a cell that failed is queued again while it may be retried, a held one once."""
        if result.held:
            if self._last_chance:
                return SweepEvent("held", cell, result)
            self._postponed[cell.id] = cell
            return SweepEvent("postponed", cell, result)
        if not result.error:
            return SweepEvent("finished", cell, result)
        self._tries[cell.id] = self._tries.get(cell.id, 0) + 1
        if self._tries[cell.id] > self._retries:
            return SweepEvent("failed", cell, result)
        self.put(Job(cell.experiment, (cell,)))
        return SweepEvent("retry", cell, result)
