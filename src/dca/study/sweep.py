"""Experiments that differ only in what they are tested on share one fit.

A model that was trained on a dataset is the same whether it is then tested on that dataset (few-shot) or on others
(cross-dataset, domain shift): draw, validation images and options are equal, unless authors publish another recipe for
the protocol.

A study, what of it is finished, and carrying out the rest.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dca.backbones.sources import MINI, hub_id, list_backbones
from dca.core.choices import TrackerName
from dca.core.errors import UserError
from dca.core.files import explain_write_errors
from dca.core.hints import choose_backbone, list_datasets
from dca.datasets import catalog
from dca.datasets.load import SAMPLE, find_dataset_folder
from dca.datasets.shifts import split_shift_name
from dca.model.checkpoint import holds_model
from dca.runs.spec import Spec
from dca.runs.tracking import require_tracker
from dca.study import workers_local, workers_ray
from dca.study.failures import forget_failure, record_failure
from dca.study.index import RunIndex, RunRecord
from dca.study.specification import Cell, Job, Specification, jobs_of
from dca.study.worker import SweepEvent

_TESTED_ELSEWHERE = ("cross-dataset", "domain-shift")


def few_shot_twin(spec: Spec) -> Spec | None:
    """The few-shot experiment with the same training, or None.

    Only for public datasets: those have test images of their own, so that none are held out of the training images.

    Example:
        >>> spec = Spec(data="imagenet", protocol="domain-shift", targets=["imagenet_a"], method="dca", shots=16)
        >>> few_shot_twin(spec) == Spec(data="imagenet", method="dca", shots=16)
        True
    """
    if spec.protocol not in _TESTED_ELSEWHERE or catalog.find(spec.data) is None:
        return None
    twin = dataclasses.replace(spec, protocol="few-shot", targets=(), options=spec.settings)
    return twin if spec.kind.parse_options(twin.settings) == spec.kind.parse_options(spec.settings) else None


def fits_of(cells: Iterable[Cell], runs: Path) -> Callable[[Spec], Spec]:
    """Which fit an experiment uses: that of its twin, if the twin is to be fitted, too, or is finished; else its own.

    Args:
        cells: What is to be done.
        runs: Folder of the results.

    Returns:
        From an experiment to the one that is fitted for it.
    """
    wanted = {cell.spec.id for cell in cells}

    def fit(spec: Spec) -> Spec:
        twin = few_shot_twin(spec)
        return twin if twin is not None and (twin.id in wanted or holds_model(runs / twin.id)) else spec

    return fit


EngineName = Literal["local", "ray"]
ENGINES = {"local": workers_local.run_jobs, "ray": workers_ray.run_jobs}
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
        return sum(not holds_model(self.runs / job.spec.id) for job in self.jobs)

    @property
    def to_do(self) -> tuple[Cell, ...]:
        """The cells that are not finished."""
        return tuple(cell for job in self.jobs for cell in job.cells)


def plan(study: Specification, runs: Path) -> Plan:
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
    jobs = jobs_of(left, fits_of(left, runs))
    return Plan(study, runs, finished, jobs, expected_seconds(jobs, done, rows))


def expected_seconds(jobs: Sequence[Job], done: set[str], rows: Iterable[RunRecord]) -> float | None:
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
    found: list[float | None] = []
    for job in jobs:
        found += [] if job.spec.id in done else [_median(fits, job.cells[0])]
        found += [_median(heads, cell) for cell in job.measured]
    known = [seconds for seconds in found if seconds is not None]
    return sum(known) * len(found) / len(known) if known else None


def _median(times: dict[tuple[Any, ...], list[float]], cell: Cell) -> float | None:
    """Median time of the cells that are most like this one."""
    spec = cell.spec
    entry = catalog.find(spec.data)
    named = {**spec.to_dict(), "dataset": entry.name if entry else spec.to_dict()["data"]}
    keys = ((names, *(named[name] for name in names)) for names in _ALIKE)
    return next((statistics.median(times[key]) for key in keys if key in times), None)


def missing(study: Specification, root: Path | None) -> list[UserError]:
    """Data and weights of a study that are not on this machine, each as the error that a run would end with.

    Args:
        study: The study.
        root: Folder that holds the public datasets; DCA_DATA by default.

    Returns:
        The errors, one per dataset or backbone; none if nothing is missing. Changed versions of a dataset need the
        dataset itself.
    """
    specs = {cell.spec.id: cell.spec for cell in study.cells}.values()
    data = dict.fromkeys(split_shift_name(name)[0] for spec in specs for name in (spec.data, *spec.targets))
    sources = dict.fromkeys(spec.backbone for spec in specs)
    found = [*(_data_problem(name, root) for name in data), *(_backbone_problem(name) for name in sources)]
    return [error for error in found if error is not None]


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
    if name == MINI or Path(name).expanduser().exists() or list_backbones().get(name):
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
        retried: How often a cell was tried again.
    """

    total: int
    done: int
    running: dict[str, tuple[Cell, float]] = field(default_factory=dict)
    failed: dict[str, tuple[Cell, str]] = field(default_factory=dict)
    retried: int = 0
    began: float = field(default_factory=time.monotonic)
    done_now: int = 0

    @property
    def seconds_left(self) -> float | None:
        """Expected time until the end, from the pace of this sweep; None before the first cell has ended."""
        ended = self.done_now + len(self.failed)
        if not ended:
            return None
        left = self.total - self.done - len(self.failed)
        return (time.monotonic() - self.began) / ended * left

    def take(self, event: SweepEvent) -> None:
        """Count an event."""
        cell = event.cell
        if cell is None:
            return
        self.running.pop(cell.id, None)
        if event.kind == "started":
            self.running[cell.id] = cell, time.monotonic()
        elif event.kind == "finished":
            self.done, self.done_now = self.done + 1, self.done_now + 1
        elif event.kind == "retry":
            self.retried += 1
        elif event.kind == "failed":
            self.failed[cell.id] = cell, event.report.error if event.report else ""


def sweep(
    made: Plan,
    *,
    engine: EngineName = "local",
    root: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    retries: int = 1,
    track: TrackerName | None = None,
) -> Generator[tuple[SweepEvent, SweepCounts]]:
    """Carry out a plan, in processes of this machine or on a Ray cluster.

    A cell that fails is tried again `retries` times and then recorded in `runs/failed`; the next sweep tries it again.

    Args:
        made: The plan.
        engine: "local" or "ray".
        root: Folder that holds the public datasets.
        device: "auto", "cpu", "cuda", ...
        workers: Cells at once; see `local_engine.devices_for` and `ray_engine.carry_out`.
        retries: How often a cell that failed is tried again.
        track: "tensorboard" or "wandb" also show the metrics there.

    Yields:
        Each event with the counts after it. Closing the generator ends the workers; only cells in flight are lost.

    Raises:
        UserError: If device or tracker cannot be used, or the folder cannot be written.
    """
    require_tracker(track)
    counts = SweepCounts(len(made.study.cells), len(made.finished))
    if not made.jobs:
        return
    with explain_write_errors(made.runs):
        made.runs.mkdir(parents=True, exist_ok=True)
    shared: dict[str, Any] = {"device": device, "workers": workers, "retries": retries, "track": track}
    for event in ENGINES[engine](made.jobs, made.runs, root, **shared):
        counts.take(event)
        if event.kind in ("finished", "failed"):
            _note(made.runs, event)
        yield event, counts
    with RunIndex(made.runs) as index:
        index.refresh()


def _note(runs: Path, event: SweepEvent) -> None:
    """Record a cell that failed; remove the record of one that is finished now."""
    assert event.cell is not None
    assert event.report is not None
    if event.kind == "finished":
        forget_failure(runs, event.cell)
    else:
        record_failure(runs, event.cell, event.report.error, event.report.traceback)
