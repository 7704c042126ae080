"""Several sweeps in one folder of runs: parts of a specification, and cells that another process is at."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.core.files import exclusive_lock
from dca.study import sweep as sweeps
from dca.study.experiment import Experiment
from dca.study.specification import Cell, Specification, group_jobs, load_specification
from dca.study.sweep import few_shot_twin, plan_sweep, run_sweep, take_part
from dca.study.worker import CellResult, Queue, SweepEvent, Worker
from helpers.processes import DCA, PATIENCE, start_process, wait_until

PARTS = 4


def carry_out(jobs: Any, runs: Path, root: Path | None, *, retries: int, **_: Any) -> Any:
    """What a backend does, in this process."""
    worker, queue = Worker(runs, root, "cpu"), Queue(jobs, retries)
    while queue.is_ready(busy=False):
        job = queue.next()
        cells = {cell.id: cell for cell in job.cells}
        for result in worker.run(job):
            yield queue.take_result(cells[result.id], result)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sweeps._RUN_JOBS, "local", carry_out)


def moments(runs: Path) -> dict[str, int]:
    """When each cell was finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("[!.]*/result.json")}


@pytest.mark.parametrize("name", ["paper/metric", "paper/gamma", "paper/few-shot", "base-to-new", "cross-dataset"])
@pytest.mark.parametrize("of", [1, 3, 16])
def test_parts_are_all_of_a_study_and_share_neither_cells_nor_fits(name: str, of: int) -> None:
    study = load_specification(name)
    parts = [take_part(study, number, of) for number in range(1, of + 1)]
    ids = [cell.id for part in parts for cell in part.cells]
    assert len(ids) == len(set(ids)) == len(study.cells)
    fits = [{cell.experiment.id for cell in part.cells} for part in parts]
    assert sum(map(len, fits)) == len(set().union(*fits)), "heads of one fit are in one part"
    assert max(map(len, fits)) - min(map(len, fits)) <= 1
    assert parts[0].name == f"{name}, part 1/{of}"


def test_a_part_has_methods_and_shots_of_all_kinds() -> None:
    part = take_part(load_specification("paper/few-shot"), 7, 15)
    assert {cell.experiment.shots for cell in part.cells} == {1, 2, 4, 8, 16}
    assert len({cell.experiment.method for cell in part.cells}) >= 12
    assert len({cell.experiment.data for cell in part.cells}) == 11


def test_cells_that_share_a_fit_with_another_protocol_are_in_its_part() -> None:
    shift = Experiment(data="eurosat", protocol="domain-shift", targets=["eurosat@noise"], shots=4, method="gda")
    twin = few_shot_twin(shift)
    assert twin is not None
    others = [Cell(Experiment(data="eurosat", shots=4, seed=seed, method="gda")) for seed in range(2, 12)]
    study = Specification("s", "s", "", (Cell(shift), *others, Cell(twin)))
    parts = [{cell.id for cell in take_part(study, number, PARTS).cells} for number in range(1, PARTS + 1)]
    assert any({Cell(shift).id, Cell(twin).id} <= part for part in parts)


@pytest.mark.parametrize("text", ["5/4", "0/4", "3", "a/b", "1/0", "-1/3", "1/2/3"])
def test_a_part_that_does_not_exist_is_an_error(dca: Any, text: str) -> None:
    said = dca("study", "sweep", "paper/seeds", f"--part={text}", "--dry-run")
    assert said.code == 2
    assert "part" in said.err
    assert "Traceback" not in said.err


def test_there_may_be_more_parts_than_fits(study: Specification, tmp_path: Path) -> None:
    sizes = [len(take_part(study, number, 9).cells) for number in range(1, 10)]
    assert sorted(sizes)[:5] == [0] * 5
    assert list(run_sweep(plan_sweep(take_part(study, 1 + sizes.index(0), 9), tmp_path))) == []
    with pytest.raises(UserError, match="part 10/9"):
        take_part(study, 10, 9)


@pytest.mark.usefixtures("in_this_process")
def test_parts_that_are_interrupted_and_started_again_do_every_cell_once(study: Specification, tmp_path: Path) -> None:
    """The fast twin of the test below: four parts, two of which end in the middle."""
    runs, marks = tmp_path / "runs", dict[str, int]()
    for number in (1, 2):
        events = run_sweep(plan_sweep(take_part(study, number, PARTS), runs))
        next(events)
        events.close()
        marks |= moments(runs)
    assert 2 <= len(marks) < len(study.cells)
    for number in (3, 4, 1, 2):
        for _, counts in run_sweep(plan_sweep(take_part(study, number, PARTS), runs)):
            assert not counts.failed
    assert {cell.id for cell in study.cells} <= set(moments(runs))
    assert marks.items() <= moments(runs).items(), "what was finished is not done again"
    assert not list(runs.glob("failed/*")) + list(runs.glob("*.partial"))


@pytest.mark.usefixtures("in_this_process")
def test_cells_that_another_process_is_at_are_skipped_and_named(study: Specification, tmp_path: Path, dca: Any) -> None:
    spec = tmp_path / "small.toml"
    one = study.cells[0].experiment
    spec.write_text(
        f'[common]\ndata = "{one.data}"\nbackbone = "{one.backbone}"\nshots = 2\n'
        '[[grid]]\nmethod = ["gda", "zero_shot"]\n'
    )
    runs, (gda, zero_shot) = tmp_path / "runs", load_specification(spec).cells
    arguments = ("study", "sweep", spec, "--runs", runs, "--device", "cpu")
    with exclusive_lock(runs / f"{gda.id}.job"):
        said = dca(*arguments, "--part", "1/1")
        assert said.code == 0
        assert "small.toml, part 1/1: 2 cells, 0 done before, 1 now\n1 cell is held by another process" in said.out
        assert f"  {gda.id}  gda photos 2 shots seed 1" in said.out
        assert "all of small.toml: 1 of 2 cells finished" in said.out
        assert "postponed: another process is at it" in said.err
    assert set(moments(runs)) == {zero_shot.id}
    assert not (runs / "failed").exists()
    with exclusive_lock(runs / gda.id):  # as `dca study run` holds it
        value = json.loads(dca(*arguments, "--json", "-q").out)
    assert [cell["id"] for cell in value["held"]] == [gda.id]
    assert (value["finished_before"], value["finished_now"], value["failed"]) == (1, 0, [])
    value = json.loads(dca(*arguments, "--json", "-q").out)
    assert (value["finished_now"], value["held"], value["all_parts"]) == (1, [], None)


def test_a_held_cell_is_tried_again_when_all_others_are_done(study: Specification) -> None:
    first, second = study.cells[:2]
    queue = Queue(group_jobs((first, second)), retries=0)
    held, done = CellResult(first.id, 0.0, held=True), CellResult(second.id, 0.0)
    assert queue.next().cells == (first,)
    assert queue.take_result(first, held) == SweepEvent("postponed", first, held)
    assert queue.next().cells == (second,)
    assert not queue.is_ready(busy=True), "the second is being done, and the first is still held"
    assert queue.take_result(second, done).kind == "finished"
    assert queue.is_ready(busy=False)
    assert queue.next().cells == (first,)
    assert queue.take_result(first, held).kind == "held"
    assert not queue


def test_a_job_that_another_process_has_finished_is_not_loaded(study: Specification, tmp_path: Path) -> None:
    (job,) = [job for job in group_jobs(study.cells) if len(job.cells) > 2]
    for cell in job.cells:
        cell.result_file(tmp_path).parent.mkdir()
        cell.result_file(tmp_path).write_text("{}")
    results = list(Worker(tmp_path, None, "cpu").run(job))
    assert [result.id for result in results] == [cell.id for cell in job.cells]
    assert all(result.by_others and not result.error for result in results)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_for_slurm_does_the_part_of_its_task(tmp_path: Path) -> None:
    """With the variables of an array, and with PARTS where single tasks are submitted again."""
    script = Path(__file__).resolve().parents[2] / "study" / "sweep.sbatch"
    stand_in = tmp_path / "dca"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    slurm = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "3"}
    for more, part in (
        ({"SLURM_ARRAY_TASK_COUNT": "16"}, "3/16"),
        ({"SLURM_ARRAY_TASK_COUNT": "2", "PARTS": "9"}, "3/9"),
    ):
        command = ["bash", str(script), "paper/seeds", "runs", "data", "--backbone", "mini"]
        done = subprocess.run(command, env={**slurm, **more}, capture_output=True, text=True, check=True)
        expected = f"study sweep paper/seeds --runs runs --data data --part {part} --backbone mini"
        assert done.stdout.split() == expected.split()


SPEC = """
title = "Forty cells"
[common]
data = "{data}"
backbone = "{backbone}"
seed = [1, 2, 3]
[[grid]]
method = ["gda", "closed_form", "tip_adapter", "zero_shot"]
shots = [1, 2, 3]
[[grid]]
method = "dca"
shots = 2
options = {{epochs = 2, warmup_epochs = 1}}
head = {{gamma1 = [500, 600]}}
"""


def start(spec: Path, runs: Path, number: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """One task of a job array."""
    arguments = ["study", "sweep", str(spec), "--runs", str(runs), "--part", f"{number}/{PARTS}", "--json", "-q"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DCA_CACHE": str(runs.with_suffix(".cache"))}
    workers = ["--workers", "1", "--device", "cpu"]
    return start_process([*DCA, *arguments, *workers], env=environment, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_four_parts_at_once_two_of_them_killed_do_every_cell_once(
    tmp_path: Path, photos: Path, tiny_folder: Path
) -> None:
    spec, runs = tmp_path / "spec.toml", tmp_path / "runs"
    spec.write_text(SPEC.format(data=photos, backbone=tiny_folder))
    study = load_specification(spec)
    parts = {number: {cell.id for cell in take_part(study, number, PARTS).cells} for number in range(1, PARTS + 1)}
    marks: dict[str, int] = {}
    with ExitStack() as stack:
        tasks = {number: stack.enter_context(start(spec, runs, number)) for number in parts}
        for number in (2, 4):
            wait_until(lambda own=parts[number]: len(own & moments(runs).keys()) >= 2, tasks[number])
            tasks[number].send_signal(signal.SIGKILL)
            assert tasks[number].wait() == -signal.SIGKILL
            marks |= moments(runs)
            assert not parts[number] <= marks.keys(), "killed before its end"
            time.sleep(0.5)  # its worker ends by itself
            tasks[number] = stack.enter_context(start(spec, runs, number))
        said = {number: json.loads(task.communicate(timeout=2 * PATIENCE)[0]) for number, task in tasks.items()}
        assert [task.returncode for task in tasks.values()] == [0] * PARTS
    assert set(moments(runs)) == {cell.id for cell in study.cells} | {c.experiment.id for c in study.cells}
    assert marks.items() <= moments(runs).items(), "no cell was done twice"
    for number, value in said.items():
        assert value["held"] == value["failed"] == []
        assert value["finished_before"] + value["finished_now"] == value["cells"] == len(parts[number])
    assert not list(runs.glob("*.partial")) + list(runs.glob("failed/*"))
