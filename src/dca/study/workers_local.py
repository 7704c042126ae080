"""Jobs of a sweep in processes of this machine.

Results are files that the workers write, each in one rename, so an end of this process or of a worker at any moment
loses only the cells that are being computed. Workers end when this process ends, even if it is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from dca.core.device import resolve_device
from dca.core.processes import end_with_parent
from dca.study.choices import TrackerName
from dca.study.specification import Cell, Job
from dca.study.worker import PULSE, CellResult, Queue, SweepEvent, Worker

# GPU memory that is set aside for one worker: training with a ViT-B/16 at batch size 32 fits into it.
WORKER_BYTES = 8 * 2**30
# Folder of the results, folder of the datasets, and tracker.
WorkerArguments = tuple[Path, Path | None, TrackerName | None]


@dataclass(eq=False)
class _Process:
    """A worker process, its device, and the job it has now."""

    process: BaseProcess
    pipe: Connection
    device: str
    job: Job | None = None
    open: dict[str, Cell] = field(default_factory=dict)


def devices_for(device: str, workers: int | None, jobs: int) -> list[str]:
    """The device of each worker.

    Args:
        device: "auto", "cpu", "cuda", "cuda:1", ...; "auto" and "cuda" are all GPUs of this machine.
        workers: Number of workers; by default one per two cores, on GPUs no more than fit into their free memory. More
            small fits at once keep a GPU no busier, and every process loads its libraries in turn.
        jobs: Number of jobs; there are never more workers.

    Returns:
        One name per worker.

    Raises:
        UserError: If the device cannot be used.
    """
    resolved, half = resolve_device(device), max(1, (os.cpu_count() or 1) // 2)
    if resolved.type != "cuda":
        return [str(resolved)] * max(1, min(workers or half, jobs))
    gpus = [resolved.index] if resolved.index is not None else list(range(torch.cuda.device_count()))
    room = {gpu: max(1, torch.cuda.mem_get_info(gpu)[0] // WORKER_BYTES) for gpu in gpus}
    slots = [gpu for turn in range(max(room.values())) for gpu in gpus if turn < room[gpu]]
    count = workers or min(len(slots), half)
    return [f"cuda:{slots[n % len(slots)]}" for n in range(max(1, min(count, jobs)))]


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
    """Run jobs in processes of this machine.

    Args:
        jobs: What to do.
        runs: Folder of the results.
        root: Folder that holds the public datasets.
        device: "auto", "cpu", "cuda", ...
        workers: Number of processes; see `devices_for`.
        retries: How often a cell that failed is tried again. A worker that runs out of GPU memory beside others on
            the same GPU is ended, and its cells are tried again without counting.
        track: Where the metrics are also shown.

    Yields:
        Events as they happen. Closing the generator ends the workers.

    Raises:
        UserError: If the device cannot be used.
    """
    pool = _Pool(Queue(jobs, retries), devices_for(device, workers, len(jobs)), (runs, root, track))
    try:
        yield from pool.events()
    finally:
        pool.close()


class _Pool:
    """The workers and the queue of jobs. arguments: runs, root and track, as for `run_jobs`."""

    def __init__(self, queue: Queue, devices: Sequence[str], arguments: WorkerArguments) -> None:
        self._queue, self._arguments = queue, arguments
        self._threads = max(1, (os.cpu_count() or 1) // len(devices))
        self._workers = [self._start(device) for device in devices]

    def _start(self, device: str) -> _Process:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, device, self._threads, self._arguments), daemon=True)
        process.start()
        theirs.close()
        return _Process(process, ours, device)

    def events(self) -> Iterator[SweepEvent]:
        """Everything that happens until all jobs are done."""
        while True:
            for worker in self._workers:
                if worker.job is None and self._queue.is_ready(busy=self._is_busy):
                    yield from self._start_job(worker, self._queue.next())
            busy = {worker.pipe: worker for worker in self._workers if worker.job is not None}
            if not busy:
                return
            for pipe in wait(list(busy), PULSE):
                yield from self._receive(busy[pipe])  # type: ignore[index]
            yield SweepEvent("pulse")

    @property
    def _is_busy(self) -> bool:
        """Whether a worker has a job."""
        return any(worker.job is not None for worker in self._workers)

    def _start_job(self, worker: _Process, job: Job) -> Iterator[SweepEvent]:
        worker.job, worker.open = job, {cell.id: cell for cell in job.cells}
        try:
            worker.pipe.send(job)
        except OSError:  # it has just ended; `_receive` sees that
            return
        yield SweepEvent("started", job.cells[0])

    def _receive(self, worker: _Process) -> Iterator[SweepEvent]:
        """One message of a worker: a result, None at the end of a job, or the end of the process."""
        try:
            result = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._replace_lost(worker)
            return
        if result is None:
            worker.job = None
            return
        cell = worker.open.pop(result.id)
        if result.out_of_memory and self._retire(worker, cell):
            return
        yield self._queue.take_result(cell, result)
        if following := next(iter(worker.open.values()), None):
            yield SweepEvent("started", following)

    def _retire(self, worker: _Process, cell: Cell) -> bool:
        """End a worker that found no memory beside others on its GPU; its cells are queued again. False if alone."""
        if not any(other.device == worker.device for other in self._workers if other is not worker):
            return False
        assert worker.job is not None
        self._queue.put(replace(worker.job, cells=(cell, *worker.open.values())))
        self._end(worker)
        self._workers.remove(worker)
        return True

    def _replace_lost(self, worker: _Process) -> Iterator[SweepEvent]:
        """A worker has ended by itself: its cells failed, and another takes its place."""
        worker.process.join()
        message = f"the worker process ended with code {worker.process.exitcode}"
        cells = list(worker.open.values())
        worker.pipe.close()
        self._workers[self._workers.index(worker)] = self._start(worker.device)
        for cell in cells:
            yield self._queue.take_result(cell, CellResult(cell.id, 0.0, message))

    @staticmethod
    def _end(worker: _Process) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            self._end(worker)


def _serve(pipe: Connection, device: str, threads: int, arguments: WorkerArguments) -> None:
    """The main function of a worker process: take jobs, send results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    end_with_parent()
    logging.getLogger("dca").setLevel(logging.ERROR)  # what a run warns of is in its result file
    torch.set_num_threads(threads)
    runs, root, track = arguments
    worker = Worker(runs, root, device, track)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        for result in worker.run(job):
            pipe.send(result)
        pipe.send(None)
