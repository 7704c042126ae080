"""Fitted once, tested on several targets: what the protocols of `data/protocols.py` ask for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from dca.core.progress import Progress, silent
from dca.data.feature_store import FeatureCache
from dca.data.protocols import Target, Task
from dca.engine.evaluate import Evaluation, evaluation, probabilities
from dca.methods.interface import Method
from dca.model.classifier import Classifier


@dataclass(frozen=True)
class TargetResult:
    """How a model did on one target. metric: the distance its head used there, where it has a choice."""

    name: str
    evaluation: Evaluation
    metric: str | None


@dataclass(frozen=True)
class TaskResult:
    """What came of a task, with the protocol, its mode and what hyper-parameters were selected on."""

    protocol: str
    mode: str
    selection: str
    method: str
    shots: int | None
    seed: int
    targets: tuple[TargetResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for files and tables."""
        head = {k: getattr(self, k) for k in ("protocol", "mode", "selection", "method", "shots", "seed")}
        rows = [{"name": t.name, "metric": t.metric, **t.evaluation.to_dict()} for t in self.targets]
        return {**head, "targets": rows}


def retargeted(method: Method, target: Target) -> Method:
    """The finished method for the target's classes; the method itself where they are its own."""
    if target.from_source == tuple(range(len(method.problem.names))):
        return method
    task = dataclasses.replace(method.problem, names=target.classes, dataset=target.dataset, template=target.template)
    return method.retarget(task, target.from_source)


def run_task(model: Classifier, task: Task, *, progress: Progress = silent) -> TaskResult:
    """Fit `model` on the task's source, which holds no test image, and test it on every target."""
    model.fit_drawn(task.source, mode=task.mode, progress=progress)
    results = []
    for target in task.targets:
        method = retargeted(model.method_, target)
        pictures = [item.picture for item in target.test]
        (probs,) = probabilities([method], pictures, stage=target.name, progress=progress, cache=FeatureCache())
        labels = np.array([item.label for item in target.test])
        metric = getattr(method.options, "test_metric", None)
        results.append(TargetResult(target.name, evaluation(probs, labels, target.classes), metric))
    return TaskResult(
        task.protocol, task.mode, task.selection, model.method_.name, task.shots, task.seed, tuple(results)
    )
