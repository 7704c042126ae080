"""Jobs of a sweep on an existing Ray cluster: one task per job, with its share of a GPU where there are some.

The working folder, the runs and the data must be shared by all nodes, and `dca` be installed on them. Ray starts tasks
again whose worker or node has died; folders, locks and result files are those of every other sweep.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dca.model.shards import connect_ray, share_resources
from dca.study.choices import TrackerName
from dca.study.specification import Job
from dca.study.worker import PULSE, CellResult, Queue, SweepEvent, Worker


def run_jobs(
    jobs: Sequence[Job],
    runs: Path,
    root: Path | None,
    *,
    device: str,
    workers: int | None,
    retries: int,
    track: TrackerName | None = None,
) -> Iterator[SweepEvent]:
    """Run jobs as tasks of the Ray cluster that RAY_ADDRESS names, or that runs on this machine.

    Args:
        jobs: What to do.
        runs: Folder of the results, shared by all nodes.
        root: Folder that holds the public datasets, on all nodes.
        device: "auto" takes the GPUs of the cluster if it has some; "cpu" none.
        workers: Tasks at once; by default 4 per GPU, or one per CPU.
        retries: How often a cell that failed is tried again; also how often Ray restarts a task whose worker died.
        track: Where the metrics are also shown.

    Yields:
        Events as they happen. Closing the generator cancels the tasks.

    Raises:
        UserError: If Ray is not installed, or there is no cluster.
    """
    ray = connect_ray()
    try:
        at_once, gpus = share_resources(ray.cluster_resources(), device, workers)
        data = None if root is None else str(root.resolve())
        arguments = _WorkerArguments(os.getcwd(), str(runs.resolve()), data, "auto" if gpus else "cpu", track)
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=retries)(_run_job)
        yield from _events(ray, task, Queue(jobs, retries), at_once, arguments)
    finally:
        ray.shutdown()  # cancels what this sweep has submitted; the cluster goes on


@dataclass(frozen=True)
class _WorkerArguments:
    """Where a task finds things, as on the machine that gives the tasks.

    folder: working folder. runs, root, track: as for `run_jobs`. device: of the worker. data: value of DCA_DATA.
    """

    folder: str
    runs: str
    root: str | None
    device: str
    track: TrackerName | None
    data: str | None = field(default_factory=lambda: os.environ.get("DCA_DATA"))


def _events(ray: Any, task: Any, queue: Queue, at_once: int, arguments: _WorkerArguments) -> Iterator[SweepEvent]:
    """Everything that happens until all jobs are done."""
    running: dict[Any, Job] = {}
    while queue or running:
        while queue.is_ready(busy=bool(running)) and len(running) < at_once:
            job = queue.next()
            running[task.remote(job, arguments)] = job
            yield SweepEvent("started", job.cells[0])
        ended, _ = ray.wait(list(running), timeout=PULSE)
        for reference in ended:
            job = running.pop(reference)
            results = _cell_results(ray, reference, job)
            yield from (queue.take_result(cell, results[cell.id]) for cell in job.cells)
        yield SweepEvent("pulse")


def _cell_results(ray: Any, reference: Any, job: Job) -> dict[str, CellResult]:
    """The result of each cell of a task; a cell whose task ended without results has failed."""
    try:
        return {result.id: result for result in ray.get(reference)}
    except ray.exceptions.RayError as error:
        message = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return {cell.id: CellResult(cell.id, 0.0, message, str(error)) for cell in job.cells}


def _run_job(job: Job, arguments: _WorkerArguments) -> list[CellResult]:
    """The task: all cells of a job."""
    return list(_worker(arguments).run(job))


@cache
def _worker(arguments: _WorkerArguments) -> Worker:
    """The worker of this process. Ray gives a process the GPU of its task and keeps processes for further tasks."""
    os.chdir(arguments.folder)
    if arguments.data is not None:
        os.environ["DCA_DATA"] = arguments.data
    return Worker(
        Path(arguments.runs),
        None if arguments.root is None else Path(arguments.root),
        arguments.device,
        arguments.track,
    )
