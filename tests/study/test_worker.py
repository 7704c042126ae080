from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.model.classifier import Classifier
from dca.study import worker as workers
from dca.study.run import run_experiment
from dca.study.specification import Cell, Specification, group_jobs
from dca.study.tracking import TRACKERS, Tracker
from dca.study.worker import Worker
from dca.training.evaluate import encode_images


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path / "runs", None, "cpu")


def heads_of(study: Specification) -> list[Cell]:
    return [cell for cell in study.cells if cell.head]


def test_cells_that_differ_in_the_head_share_one_fit(
    study: Specification, worker: Worker, photos: Path, monkeypatch: pytest.MonkeyPatch
):
    fits: list[str] = []
    learn = Classifier._fit_drawn
    monkeypatch.setattr(
        Classifier, "_fit_drawn", lambda self, *a, **k: fits.append(self.method) or learn(self, *a, **k)
    )
    (job,) = group_jobs(heads_of(study))
    assert len(job.cells) == 3
    reports = list(worker.run(job))
    assert [(report.id, report.error) for report in reports] == [(cell.id, "") for cell in job.cells]
    assert fits == ["dca"]
    model = Classifier.from_pretrained(worker.runs / job.experiment.id, backbone=job.experiment.backbone, device="cpu")
    for cell in job.cells:
        result = json.loads(cell.result_file(worker.runs).read_text())
        assert result["accuracy"] == model.with_options(**cell.head).evaluate(photos / "test").accuracy
        assert (result["fit"], result["head"]) == (job.experiment.id, dict(cell.head))


@pytest.mark.parametrize("finished_before", [False, True])
def test_a_test_image_passes_the_tower_once_for_all_heads(
    finished_before: bool, study: Specification, worker: Worker, photos: Path, monkeypatch: pytest.MonkeyPatch
):
    (job,) = group_jobs(heads_of(study))
    if finished_before:
        run_experiment(job.experiment, worker.runs / job.experiment.id, device="cpu")
    seen: list[int] = []

    def counted(methods: Any, *given: Any, **named: Any) -> Any:
        seen.extend(1 for method in methods if not method.has_frozen_image_tower)
        return encode_images(methods, *given, **named)

    monkeypatch.setattr("dca.runs.evaluate.encode_images", counted)
    assert not any(report.error for report in worker.run(job))
    assert len(seen) == 1


def test_heads_of_a_fit_that_was_finished_before_are_the_same(study: Specification, worker: Worker, figures: Any):
    (job,) = group_jobs(heads_of(study))
    list(worker.run(job))
    later = Worker(worker.runs.with_name("later"), None, "cpu")
    run_experiment(job.experiment, later.runs / job.experiment.id, device="cpu")
    assert not any(report.error for report in later.run(job))
    assert figures(later.runs) == figures(worker.runs)


def test_every_cell_is_tracked(study: Specification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shown: dict[str, tuple[Any, Any]] = {}

    class Recorder(Tracker):
        def __init__(self, folder: Path, config: Any) -> None:
            self.folder, self.config = folder, config

        def finish(self, result: Any) -> None:
            shown[self.folder.name] = self.config, dict(result)

    monkeypatch.setattr("dca.study.run.require_tracker", lambda name: None)
    monkeypatch.setattr("dca.study.tracking.require_tracker", lambda name: None)
    monkeypatch.setitem(TRACKERS, "wandb", (Recorder, "wandb"))
    worker = Worker(tmp_path / "runs", None, "cpu", "wandb")
    for job in group_jobs(study.cells):
        assert not any(report.error for report in worker.run(job))
    assert {cell.id for cell in study.cells} == shown.keys()
    for cell in study.cells:
        config, result = shown[cell.id]
        assert result == json.loads(cell.result_file(worker.runs).read_text())
        assert config == {**cell.experiment.to_dict(), **({"head": dict(cell.head)} if cell.head else {})}


def test_a_finished_head_is_not_measured_again(study: Specification, worker: Worker, monkeypatch: pytest.MonkeyPatch):
    (job,) = group_jobs(heads_of(study))
    list(worker.run(job))
    monkeypatch.setattr(workers, "measure_finished", lambda *a: pytest.fail("measured again"))
    assert not any(report.error for report in worker.run(job))


def test_an_error_ends_its_cell_and_not_the_others(study: Specification, worker: Worker):
    (job,) = group_jobs([Cell(heads_of(study)[0].experiment, {"gamma1": 0.0, "gamma2": 1e6}), *heads_of(study)])
    errors = [report.error for report in worker.run(job)]
    assert "not positive definite" in errors[0]
    assert errors[1:] == ["", "", ""]


def test_an_error_of_the_fit_is_that_of_all_cells(
    study: Specification, worker: Worker, monkeypatch: pytest.MonkeyPatch
):
    (job,) = group_jobs(heads_of(study))

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(workers, "run_experiment", fail)
    reports = list(worker.run(job))
    assert {report.error for report in reports} == {"ZeroDivisionError: a bug"}
    assert "in fail" in reports[0].traceback
    assert not reports[0].out_of_memory


@pytest.mark.parametrize(
    ("error", "memory"),
    [(MemoryError(), True), (RuntimeError("can't allocate memory"), True), (UserError("no"), False)],
)
def test_a_lack_of_memory_is_told_from_other_errors(
    error: Exception, memory: bool, study: Specification, worker: Worker, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(workers, "run_experiment", fail)
    assert {report.out_of_memory for report in worker.run(group_jobs(study.cells)[0])} == {memory}


def test_datasets_are_found_under_the_root(study: Specification, worker: Worker, photos: Path):
    rooted = Worker(worker.runs, photos.parent, "cpu")
    assert rooted._load_dataset("photos", False).counts() == worker._load_dataset(str(photos), False).counts()
