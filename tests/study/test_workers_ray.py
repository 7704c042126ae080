from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dca.study import workers_ray
from dca.study.specification import Specification, group_jobs, load_specification
from dca.study.worker import CellResult, Queue, Worker
from helpers.processes import DCA, PATIENCE, start_process, wait_until

HAS_RAY = importlib.util.find_spec("ray") is not None


class RayError(Exception):
    pass


class StandIn:
    """The parts of Ray that the engine uses; a task is done when it is waited for."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.most = answers, 0
        self.exceptions = SimpleNamespace(RayError=RayError)

    def remote(self, job: Any, place: Any) -> tuple[int, Any]:
        return len(self.answers), job

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(references))
        return references[:1], references[1:]

    def get(self, reference: tuple[int, Any]) -> list[CellResult]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [CellResult(cell.id, 1.0, answer) for cell in reference[1].cells]


def seen(study: Specification, answers: list[Any], retries: int) -> tuple[list[str], StandIn]:
    ray = StandIn(answers)
    events = workers_ray._events(ray, ray, Queue(group_jobs(study.cells[:2]), retries), 1, None)  # type: ignore[arg-type]
    return [event.kind for event in events if event.kind not in ("pulse", "started")], ray


def test_cells_that_fail_are_retried_and_then_listed(study: Specification):
    kinds, ray = seen(study, ["", "no", "no"], retries=1)
    assert kinds == ["finished", "retry", "failed"]
    assert ray.most == 1


def test_a_task_whose_worker_died_has_failed(study: Specification):
    assert seen(study, [RayError("the node died"), "", ""], retries=1)[0] == ["retry", "finished", "finished"]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
def test_a_cluster_that_loses_a_node_completes_the_sweep(tmp_path: Path, photos: Path, tiny_folder: Path, figures: Any):
    from ray.cluster_utils import Cluster

    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'[common]\ndata = "{photos}"\nbackbone = "{tiny_folder}"\nseed = [1, 2, 3]\nshots = [1, 2]\n'
        '[[grid]]\nmethod = ["gda", "tip_adapter", "zero_shot"]\n'
        '[[grid]]\nmethod = "dca"\noptions = {epochs = 2}\nhead = {test_metric = ["mahalanobis", "cosine"]}\n'
    )
    runs, cells = tmp_path / "runs", load_specification(spec).cells
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    try:
        arguments = ["study", "sweep", str(spec), "--runs", str(runs), "--backend", "ray", "--retries", "2", "-q"]
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        with start_process([*DCA, *arguments], env=environment) as process:
            wait_until(lambda: len(list(runs.glob("*/result.json"))) >= len(cells) // 2, process)
            cluster.remove_node(node, allow_graceful=False)
            assert process.wait(timeout=PATIENCE) == 0
    finally:
        cluster.shutdown()
    straight = Worker(tmp_path / "straight", None, "cpu")
    for job in group_jobs(cells):
        assert not any(report.error for report in straight.run(job))
    found, wanted = figures(runs), figures(straight.runs)
    assert {id: result["accuracy"] for id, result in found.items()} == {id: r["accuracy"] for id, r in wanted.items()}
    assert {cell.id for cell in cells} <= set(found)
