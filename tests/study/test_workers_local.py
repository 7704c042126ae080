from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dca.study import workers_local
from dca.study.specification import Cell, Specification, group_jobs
from dca.study.worker import CellResult, Worker
from dca.study.workers_local import WORKER_BYTES, devices_for, run_jobs


def test_a_worker_that_is_killed_is_replaced_and_its_cell_done_again(
    study: Specification, tmp_path: Path, figures: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one thread, as in this process: equal to the last bit
    killed = False
    kinds: list[str] = []
    for event in run_jobs(group_jobs(study.cells), tmp_path / "runs", None, device="cpu", workers=1, retries=1):
        kinds.append(event.kind)
        if event.kind == "finished" and not killed:  # the next job has been given out, or is about to be
            killed = True
            (child,) = multiprocessing.active_children()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
    assert multiprocessing.active_children() == []
    assert kinds.count("finished") == len(study.cells)
    assert kinds.count("retry") <= 3
    assert "failed" not in kinds
    straight = Worker(tmp_path / "straight", None, "cpu")
    for job in group_jobs(study.cells):
        assert not any(report.error for report in straight.run(job))
    assert figures(tmp_path / "runs") == figures(tmp_path / "straight")
    assert len(figures(tmp_path / "runs")) == len(study.cells)


def test_closing_ends_the_workers(study: Specification, tmp_path: Path):
    events = run_jobs(group_jobs(study.cells), tmp_path, None, device="cpu", workers=1, retries=1)
    assert next(events).kind == "started"
    assert multiprocessing.active_children() != []
    events.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


class Pipe:
    """The parent's end of the pipe of a worker that answers each cell with the next of its reports."""

    def __init__(self, answers: dict[str, list[CellResult]]) -> None:
        self.answers, self.waiting = answers, list[CellResult | None]()

    def send(self, job: Any) -> None:
        self.waiting += [self.answers[cell.id].pop(0) for cell in job.cells]
        self.waiting.append(None)

    def recv(self) -> CellResult | None:
        return self.waiting.pop(0)

    def close(self) -> None: ...


def scripted(
    monkeypatch: pytest.MonkeyPatch, cells: tuple[Cell, ...], answers: dict[str, list[CellResult]], devices: list[str]
) -> list[tuple[str, str]]:
    """The events of workers that answer with these reports: (kind, id)."""
    still = SimpleNamespace(kill=lambda: None, join=lambda: None)
    start = lambda self, device: workers_local._Process(still, Pipe(answers), device)  # type: ignore[arg-type] # noqa: E731
    monkeypatch.setattr(workers_local._Pool, "_start", start)
    monkeypatch.setattr(workers_local, "wait", lambda pipes, timeout: pipes[:1])
    monkeypatch.setattr(workers_local, "devices_for", lambda *_: devices)
    events = run_jobs(group_jobs(cells), Path("runs"), None, device="cuda", workers=None, retries=2)
    return [(event.kind, event.cell.id) for event in events if event.cell is not None and event.kind != "started"]


def test_a_cell_is_retried_as_often_as_stated_and_last(study: Specification, monkeypatch: pytest.MonkeyPatch):
    bad, good = study.cells[:2]
    answers = {bad.id: [CellResult(bad.id, 0, "no")] * 3, good.id: [CellResult(good.id, 0)]}
    seen = scripted(monkeypatch, (bad, good), answers, ["cpu"])
    assert seen == [("retry", bad.id), ("finished", good.id), ("retry", bad.id), ("failed", bad.id)]


def test_a_lack_of_memory_ends_a_worker_beside_others_and_counts_for_one_alone(
    study: Specification, monkeypatch: pytest.MonkeyPatch
):
    (cell,) = study.cells[:1]
    full = CellResult(cell.id, 0, "out of memory", out_of_memory=True)
    assert scripted(monkeypatch, (cell,), {cell.id: [full, CellResult(cell.id, 0)]}, ["cuda:0", "cuda:0"]) == [
        ("finished", cell.id)
    ]
    assert scripted(monkeypatch, (cell,), {cell.id: [full] * 3}, ["cuda:0", "cuda:1"])[-1] == ("failed", cell.id)


def test_a_cpu_has_a_worker_per_two_cores_and_never_more_than_jobs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert devices_for("cpu", None, 100) == ["cpu"] * 4
    assert devices_for("cpu", None, 3) == ["cpu"] * 3
    assert devices_for("cpu", 6, 100) == ["cpu"] * 6


def test_gpus_have_as_many_workers_as_fit(monkeypatch: pytest.MonkeyPatch):
    free = {0: 2.5 * WORKER_BYTES, 1: 0.5 * WORKER_BYTES}
    monkeypatch.setattr(workers_local, "resolve_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (int(free[gpu]), 0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert devices_for("cuda", None, 100) == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices_for("cuda", 5, 100) == ["cuda:0", "cuda:1", "cuda:0", "cuda:0", "cuda:1"]
    assert devices_for("cuda:1", None, 100) == ["cuda:1"]
    assert devices_for("cuda", None, 1) == ["cuda:0"]
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert devices_for("cuda", None, 100) == ["cuda:0", "cuda:1"]
