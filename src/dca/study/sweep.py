"""Sweeps: what of a specification is finished, and running the rest in workers.

Experiments that differ only in what they are tested on share one fit.

Any number of sweeps may share a folder of runs. One process at a time works at a fit, so each cell is done once, and a
part of a specification is the same for every process, whatever is finished: parts are what the tasks of a job array do.

A model that was trained on a dataset is the same whether it is then tested on that dataset (few-shot) or on others
(cross-dataset, domain shift): draw, validation images and options are equal, unless authors publish another recipe for
the protocol.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dca.backbones.sources import ADAPTED, ADAPTERS, MINI, hub_id, list_backbones, split_prefix
from dca.core.errors import UserError
from dca.core.files import explain_write_errors, write_json
from dca.core.hints import choose_backbone, list_datasets
from dca.datasets import catalog
from dca.datasets.load import SAMPLE, find_dataset_folder
from dca.datasets.shifts import split_shift_name
from dca.model.checkpoint import holds_model
from dca.study import workers_local, workers_ray
from dca.study.choices import Backend, TrackerName
from dca.study.experiment import Experiment
from dca.study.index import FAILED_FOLDER, RunIndex, RunRecord
from dca.study.resolved_options import resolve_cell_options
from dca.study.specification import Cell, Job, Specification, group_jobs
from dca.study.tracking import require_tracker
from dca.study.worker import SweepEvent

_TRAINED_ALIKE = ("cross-dataset", "domain-shift", "transductive")


def few_shot_twin(experiment: Experiment) -> Experiment | None:
    """The few-shot experiment with the same training, or None.

    Only for public datasets: those have test images of their own, so that none are held out of the training images.

    Example:
        >>> shifted = Experiment(data="imagenet", protocol="domain-shift", targets=["imagenet_a"], shots=16)
        >>> few_shot_twin(shifted) == Experiment(data="imagenet", shots=16)
        True
    """
    if experiment.protocol not in _TRAINED_ALIKE or catalog.find(experiment.data) is None:
        return None
    return dataclasses.replace(experiment, protocol="few-shot", targets=())


def choose_fits(cells: Iterable[Cell], runs: Path) -> Callable[[Experiment], Experiment]:
    """Which fit an experiment uses: that of its twin, if the twin is to be fitted, too, or is finished; else its own.

    Args:
        cells: What is to be done.
        runs: Folder of the results.

    Returns:
        From an experiment to the one that is fitted for it.
    """
    wanted = {cell.experiment.id for cell in cells}

    def fit(experiment: Experiment) -> Experiment:
        twin = few_shot_twin(experiment)
        shared = twin is not None and (twin.id in wanted or holds_model(runs / twin.id))
        return twin if twin is not None and shared else experiment

    return fit


def take_part(study: Specification, number: int, of: int) -> Specification:
    """One of so many parts of a study, which together are all of it and have no cell in common.

    Cells that share a fit are in one part. Parts differ by at most one fit, and mix methods, datasets and shots: fits
    are dealt out in the order of their ids, which are hashes.

    Args:
        study: The study.
        number: Which part, from 1.
        of: Number of parts.

    Returns:
        The study with the cells of this part, in their order; there are none where there are more parts than fits.

    Raises:
        UserError: If there is no such part.

    Example:
        >>> from dca.study import load_specification
        >>> study = load_specification("paper/metric")
        >>> sum(len(take_part(study, number, 4).cells) for number in (1, 2, 3, 4)) == len(study.cells)
        True
    """
    if not 1 <= number <= of:
        raise UserError(f"part {number}/{of}: there is no such part", hint="parts are 1/N to N/N")
    ids = {cell.experiment.id for cell in study.cells}

    def fit(experiment: Experiment) -> Experiment:
        twin = few_shot_twin(experiment)
        return twin if twin is not None and twin.id in ids else experiment

    jobs = sorted(group_jobs(study.cells, fit), key=lambda job: job.experiment.id)
    own = {cell.id for job in jobs[number - 1 :: of] for cell in job.cells}
    cells = tuple(cell for cell in study.cells if cell.id in own)
    return dataclasses.replace(study, name=f"{study.name}, part {number}/{of}", cells=cells)


_RUN_JOBS = {"local": workers_local.run_jobs, "ray": workers_ray.run_jobs}
# What two cells may share so that the time of one is expected of the other, the most telling first.
_ALIKE = (
    ("method", "dataset", "protocol", "shots", "backbone"),
    ("method", "shots", "backbone"),
    ("method", "backbone"),
)


@dataclass(frozen=True)
class Plan:
    """What a sweep has to do.

    Attributes:
        study: The study.
        runs: Folder of the results.
        finished: Cells that have a result file.
        jobs: The others, grouped by their fit.
        expected_seconds: Time of the jobs one after the other, from finished cells like them; None if there are none.
    """

    study: Specification
    runs: Path
    finished: tuple[Cell, ...]
    jobs: tuple[Job, ...]
    expected_seconds: float | None

    @property
    def new_fits(self) -> int:
        """How many models are to be fitted."""
        return sum(not holds_model(self.runs / job.experiment.id) for job in self.jobs)

    @property
    def to_do(self) -> tuple[Cell, ...]:
        """The cells that are not finished."""
        return tuple(cell for job in self.jobs for cell in job.cells)


def plan_sweep(study: Specification, runs: Path) -> Plan:
    """Find out what is finished, without opening an image or a model.

    Args:
        study: The study.
        runs: Folder of the results; it need not exist.

    Returns:
        The plan.
    """
    with RunIndex(runs) as index:
        index.refresh()
        done, rows = index.ids(), index.rows()
    finished = tuple(cell for cell in study.cells if cell.id in done)
    left = [cell for cell in study.cells if cell.id not in done]
    jobs = group_jobs(left, choose_fits(left, runs))
    return Plan(study, runs, finished, jobs, expect_seconds(jobs, done, rows))


def expect_seconds(jobs: Sequence[Job], done: set[str], rows: Iterable[RunRecord]) -> float | None:
    """Seconds of the jobs, one after the other: medians over finished cells like theirs.

    Args:
        jobs: What is to be done.
        done: Ids of finished cells.
        rows: Finished cells.

    Returns:
        The sum over the cells that have cells like them, scaled to all; None if none has.
    """
    fits, heads = dict[tuple[Any, ...], list[float]](), dict[tuple[Any, ...], list[float]]()
    for row in rows:
        times, seconds = (heads, row.evaluation_seconds) if row.head else (fits, row.seconds + row.evaluation_seconds)
        for names in _ALIKE:
            times.setdefault((names, *(getattr(row, name) for name in names)), []).append(seconds)
    expected: list[float | None] = []
    for job in jobs:
        expected += [] if job.experiment.id in done else [_median(fits, job.cells[0])]
        expected += [_median(heads, cell) for cell in job.measured]
    known = [seconds for seconds in expected if seconds is not None]
    return sum(known) * len(expected) / len(known) if known else None


def _median(times: dict[tuple[Any, ...], list[float]], cell: Cell) -> float | None:
    """Median time of the cells that are most like this one."""
    record, entry = cell.experiment.to_dict(), catalog.find(cell.experiment.data)
    named = {**record, "dataset": entry.name if entry else record["data"]}
    keys = ((names, *(named[name] for name in names)) for names in _ALIKE)
    return next((statistics.median(times[key]) for key in keys if key in times), None)


def find_missing(study: Specification, root: Path | None) -> list[UserError]:
    """Data and weights of a study that are not on this machine, each as the error that a run would end with.

    Args:
        study: The study.
        root: Folder that holds the public datasets; DCA_DATA by default.

    Returns:
        The errors, one per dataset or backbone; none if nothing is missing. Changed versions of a dataset need the
        dataset itself.
    """
    experiments = {cell.experiment.id: cell.experiment for cell in study.cells}.values()
    data = dict.fromkeys(split_shift_name(name)[0] for one in experiments for name in (one.data, *one.targets))
    sources = dict.fromkeys(one.backbone for one in experiments)
    errors = [*(_data_problem(name, root) for name in data), *(_backbone_problem(name) for name in sources)]
    return [error for error in errors if error is not None]


def _data_problem(name: str, root: Path | None) -> UserError | None:
    """Why a dataset cannot be read; None if it is there."""
    path = Path(name).expanduser() if root is None else root / name
    entry = catalog.find(name)
    if name == SAMPLE or path.exists():
        return None
    if entry is None:
        return UserError(f"data {name}: no such folder, and no public dataset of this name", hint=list_datasets())
    try:
        find_dataset_folder(entry, root)
    except UserError as error:
        return UserError(f"data {name}: {error.problem}", hint=error.hint_parts)
    return None


def _backbone_problem(name: str) -> UserError | None:
    """Why a backbone cannot be loaded without the network; None if it can."""
    prefix, place = split_prefix(name)
    if prefix in ADAPTERS or name in ADAPTED:
        return None  # the library says what is missing
    if name == MINI or Path(place).expanduser().exists() or list_backbones().get(name):
        return None
    if (repo := hub_id(name)) is None:
        return UserError(f"backbone {name}: no such file or folder", hint=choose_backbone())
    return UserError(f"backbone {name}: not in the cache; {repo} is fetched on first use")


@dataclass
class SweepCounts:
    """Counts of a sweep as it goes on, for tables and lines.

    Attributes:
        total: Cells of the study.
        done: Cells that are finished, those of earlier sweeps included.
        running: Cells that are being computed, with the time at which each began.
        failed: Cells that failed for good, with their errors.
        held: Cells that another process was at until the end.
        retried: How often a cell was tried again.
        by_others: Cells that another process has finished in the meantime; they are among the done ones.
        done_now: Cells that this sweep has finished.
    """

    total: int
    done: int
    running: dict[str, tuple[Cell, float]] = field(default_factory=dict)
    failed: dict[str, tuple[Cell, str]] = field(default_factory=dict)
    held: dict[str, Cell] = field(default_factory=dict)
    retried: int = 0
    by_others: int = 0
    began: float = field(default_factory=time.monotonic)
    done_now: int = 0

    @property
    def seconds_left(self) -> float | None:
        """Expected time until the end, from the pace of this sweep; None before the first cell has ended."""
        ended = self.done_now + len(self.failed)
        if not ended:
            return None
        left = self.total - self.done - len(self.failed) - len(self.held)
        return (time.monotonic() - self.began) / ended * left

    def count(self, event: SweepEvent) -> None:
        """Count an event."""
        cell = event.cell
        if cell is None:
            return
        self.running.pop(cell.id, None)
        if event.kind == "started":
            self.running[cell.id] = cell, time.monotonic()
        elif event.kind == "finished" and event.result is not None and event.result.by_others:
            self.done, self.by_others = self.done + 1, self.by_others + 1
        elif event.kind == "finished":
            self.done, self.done_now = self.done + 1, self.done_now + 1
        elif event.kind == "held":
            self.held[cell.id] = cell
        elif event.kind == "retry":
            self.retried += 1
        elif event.kind == "failed":
            self.failed[cell.id] = cell, event.result.error if event.result else ""


def run_sweep(
    plan: Plan,
    *,
    backend: Backend = "local",
    root: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    retries: int = 1,
    track: TrackerName | None = None,
) -> Generator[tuple[SweepEvent, SweepCounts]]:
    """Run what a plan has left, in processes of this machine or on a Ray cluster.

    A cell that fails is tried again `retries` times and then recorded in `runs/failed`; the next sweep tries it again.
    One that another process is at is tried once more when all others are done, and is left to that process then.

    Args:
        plan: The plan.
        backend: "local" or "ray".
        root: Folder that holds the public datasets.
        device: "auto", "cpu", "cuda", ...
        workers: Cells at once; see `workers_local.devices_for` and `workers_ray.run_jobs`.
        retries: How often a cell that failed is tried again.
        track: "tensorboard" or "wandb" also show the metrics there.

    Yields:
        Each event with the counts after it. Closing the generator ends the workers; only cells in flight are lost.

    Raises:
        UserError: If device or tracker cannot be used, or the folder cannot be written.
    """
    require_tracker(track)
    counts = SweepCounts(len(plan.study.cells), len(plan.finished))
    if not plan.jobs:
        return
    with explain_write_errors(plan.runs):
        plan.runs.mkdir(parents=True, exist_ok=True)
    shared: dict[str, Any] = {"device": device, "workers": workers, "retries": retries, "track": track}
    for event in _RUN_JOBS[backend](plan.jobs, plan.runs, root, **shared):
        counts.count(event)
        if event.kind in ("finished", "failed"):
            _record_end(plan.runs, event)
        yield event, counts
    with RunIndex(plan.runs) as index:
        index.refresh()


def _record_end(runs: Path, event: SweepEvent) -> None:
    """Record a cell that failed; remove the record of one that is finished now."""
    assert event.cell is not None
    assert event.result is not None
    if event.kind == "finished":
        (runs / FAILED_FOLDER / f"{event.cell.id}.json").unlink(missing_ok=True)
    else:
        record_failure(runs, event.cell, event.result.error, event.result.traceback)


def record_failure(runs: Path, cell: Cell, error: str, traceback: str = "") -> None:
    """Record that a cell failed; `dca.study.index` reads the file."""
    path = runs / FAILED_FOLDER / f"{cell.id}.json"
    with explain_write_errors(path):
        path.parent.mkdir(exist_ok=True)
    record = {
        "id": cell.id,
        "cell": cell.label,
        "spec": cell.experiment.to_dict(),
        "head": dict(cell.head),
        "error": error,
        "traceback": traceback,
    }
    with suppress(UserError):  # some methods have no values for some datasets, which is the error that is recorded
        record["options"] = resolve_cell_options(cell)
    write_json(path, record)
