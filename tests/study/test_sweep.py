from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.study import sweep as sweeps
from dca.study.index import RunIndex, read_failures
from dca.study.specification import Cell, Specification, parse_specification
from dca.study.sweep import SweepCounts, find_missing, plan_sweep, run_sweep
from dca.study.worker import CellResult, SweepEvent, Worker


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are carried out here, without retries."""

    def carry_out(jobs: Any, runs: Path, root: Path | None, **_: Any) -> Any:
        worker = Worker(runs, root, "cpu")
        for job in jobs:
            cells = {cell.id: cell for cell in job.cells}
            for report in worker.run(job):
                yield SweepEvent("failed" if report.error else "finished", cells[report.id], report)

    monkeypatch.setitem(sweeps._RUN_JOBS, "local", carry_out)


@pytest.mark.usefixtures("in_this_process")
def test_finished_cells_are_skipped_by_their_result_files(study: Specification, tmp_path: Path):
    runs = tmp_path / "runs"
    first = plan_sweep(study, runs)
    assert (len(first.finished), len(first.to_do), len(first.jobs)) == (0, 7, 4)
    assert first.expected_seconds is None
    assert not runs.exists()
    *_, (_, counts) = run_sweep(first)
    assert (counts.done, counts.total, counts.failed) == (7, 7, {})
    with RunIndex(runs) as index:
        assert len(index.ids()) == 7, "refreshed at the end of a sweep"
    assert plan_sweep(study, runs).jobs == ()
    assert list(run_sweep(plan_sweep(study, runs))) == []
    for cell in (study.cells[0], study.cells[-1]):
        cell.result_file(runs).unlink()
    again = plan_sweep(study, runs)
    assert {cell.id for cell in again.to_do} == {study.cells[0].id, study.cells[-1].id}
    assert again.expected_seconds is not None


@pytest.mark.usefixtures("in_this_process")
def test_a_failed_cell_is_recorded_until_it_is_finished(
    study: Specification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = tmp_path / "runs"
    real = Worker.run

    def failing(self: Worker, job: Any) -> Any:
        return (CellResult(report.id, 0, "no", "Traceback") for report in real(self, job))

    one = Specification("one", "one", "", study.cells[:1])
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "run", failing)
        *_, (_, counts) = run_sweep(plan_sweep(one, runs))
    (record,) = (runs / "failed").iterdir()
    assert json.loads(record.read_text())["error"] == "no"
    assert [error for _, error in counts.failed.values()] == ["no"]
    study.cells[0].result_file(runs).unlink()  # what the fit left before it "failed"
    (runs / study.cells[0].id).rename(tmp_path / "aside")
    list(run_sweep(plan_sweep(one, runs)))
    assert not record.exists()


def test_the_expected_time_is_that_of_the_cells_most_alike(tmp_path: Path):
    def finished(id: str, method: str, data: str, seconds: float, **head: float) -> None:
        spec = {
            **Cell(
                parse_specification({"common": {"data": data, "method": method}}, "x").cells[0].experiment
            ).experiment.to_dict()
        }
        (tmp_path / id).mkdir()
        (tmp_path / id / "spec.json").write_text(json.dumps({"spec": spec, "head": head}))
        known = {"method": method, "protocol": "few-shot", "shots": None, "seed": 1, "accuracy": 0.5, "targets": []}
        times = {"seconds": seconds, "evaluation_seconds": 1.0}
        (tmp_path / id / "result.json").write_text(json.dumps({**known, **times}))

    for n, seconds in enumerate((9.0, 19.0, 29.0)):
        finished(f"a{n}", "dca", "a", seconds)
    finished("b", "dca", "b", 99.0)
    finished("c", "dca", "a", 500.0, gamma1=5)
    common = {"shots": None, "seed": 5} | {"data": "a", "method": "dca"}
    del common["shots"]

    def expected(**values: Any) -> float | None:
        return plan_sweep(parse_specification({"common": {**common, **values}}, "x"), tmp_path).expected_seconds

    assert expected() == 20
    assert expected(data="b") == 100
    assert expected(data="new") == 25  # the median over all datasets
    assert expected(head={"gamma1": [7, 8]}) == 22  # one fit and two heads of one second
    assert expected(method="coop") is None
    assert expected(method=["coop", "dca"]) == 40  # unknown ones are taken as the known ones


def test_missing_data_and_weights_are_named(photos: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DCA_DATA", raising=False)
    common = {"data": ["sample", str(photos), "eurosat", "nowhere"], "backbone": [str(tiny_folder), "mini", "none"]}
    lines = find_missing(parse_specification({"common": common}, "x"), None)
    assert [error.problem.split(":")[0] for error in lines] == ["data eurosat", "data nowhere", "backbone none"]
    assert "DCA_DATA" in lines[0].hint
    under = find_missing(parse_specification({"common": {"data": ["photos", "eurosat"]}}, "x"), photos.parent)
    assert [error.problem.split(":")[0] for error in under] == ["data eurosat"]


def test_the_time_left_follows_the_pace(study: Specification):
    counts = SweepCounts(total=10, done=4, began=0.0)
    assert counts.seconds_left is None
    counts.count(SweepEvent("started", study.cells[0]))
    assert list(counts.running) == [study.cells[0].id]
    counts.count(SweepEvent("finished", study.cells[0], CellResult("a", 1.0)))
    counts.count(SweepEvent("failed", study.cells[1], CellResult("b", 1.0, "no")))
    counts.count(SweepEvent("retry", study.cells[2], CellResult("c", 1.0, "no")))
    counts.count(SweepEvent("pulse"))
    assert (counts.done, counts.retried, len(counts.failed), counts.running) == (5, 1, 1, {})
    left = counts.seconds_left
    assert left is not None
    counts.done = 9
    assert counts.seconds_left == pytest.approx(0, abs=1e-9)
    assert left > 0


def test_a_damaged_record_of_a_failure_is_an_error_that_names_the_file(tmp_path: Path):
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "0123.json").write_text('{"error": "no"}')
    with pytest.raises(UserError, match=r"0123\.json: no record of a failed cell"):
        read_failures(tmp_path)
