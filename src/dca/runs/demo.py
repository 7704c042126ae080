"""The demonstration: zero-shot CLIP, the default method and DCA on the built-in images, with plots."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dca import plots
from dca.backbones.sources import AUTO
from dca.core.choices import DEFAULT_METHOD
from dca.core.files import write_json
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.datasets.sample import load_sample
from dca.datasets.task import Task
from dca.images.decode import open_image
from dca.model.checkpoint import RESULT, write_manifest
from dca.model.classifier import Classifier
from dca.plots.style import can_draw
from dca.runs.evaluate import evaluate
from dca.runs.result import MethodResult, RunResult
from dca.runs.run import FittedRun, make_fit_task, run
from dca.runs.spec import FitSpec
from dca.training.evaluate import Evaluation
from dca.training.resume import read_metrics
from dca.training.session import Session

SHOTS = 16
# Enough epochs to show the gain, in about a minute on two cores.
QUICK = {"epochs": 12, "warmup_epochs": 1}
COMPARISON, CURVES, GRID = "comparison.png", "training.png", "predictions.png"


def run_demo(
    folder: Path,
    *,
    backbone: str = AUTO,
    seed: int = 1,
    device: str = "auto",
    precision: str = "auto",
    overwrite: bool = False,
    progress: Progress = silent,
) -> FittedRun:
    """Fit the default method and DCA on the sample and plot the results; returns the run of DCA.

    The result of the run has a `comparison` with zero-shot CLIP and the default method, whose model is not kept. A
    finished demonstration is not fitted again; only missing plots are drawn. Without matplotlib there are none.
    """
    spec = FitSpec(
        data="sample", method="dca", shots=SHOTS, seed=seed, backbone=backbone, precision=precision, options=QUICK
    )
    dataset, session = load_sample(), Session(device=device, progress=progress)
    task = make_fit_task(spec, [dataset])
    # First, so that its time includes the features of the images.
    default = fit_default(spec, task, session) if overwrite or not (folder / RESULT).is_file() else None
    finished = run(spec, folder, dataset=dataset, session=session, overwrite=overwrite, progress=progress)
    rows = finished.result.comparison
    drawable = can_draw()
    if rows and (not drawable or all((folder / name).is_file() for name in (COMPARISON, CURVES, GRID))):
        return finished
    default = default or fit_default(spec, task, session)
    model, evaluations = finished.classifier, finished.evaluations
    if model is None:
        model = Classifier.from_pretrained(folder, precision=precision, session=session)
        evaluations = evaluate(model.method_, task.targets, session)
    (target,) = evaluations
    if not rows:
        rows = compare_results(finished.result, default)
        finished = dataclasses.replace(finished, result=dataclasses.replace(finished.result, comparison=rows))
        write_json(folder / RESULT, finished.result.to_dict())
        write_manifest(folder)
    if not drawable:
        return finished
    assert target.zero_shot is not None, "DCA needs an encoder that knows texts"
    seconds = [row.seconds for row in rows[1:]]
    plot_results(folder, dataset, target.zero_shot, default[0], target.adapted, seconds, model.method_.term_titles)
    return finished


def fit_default(spec: FitSpec, task: Task, session: Session) -> tuple[Evaluation, float]:
    """Fit the default method on the same images; returns its evaluation and the seconds of the fit."""
    model = Classifier(DEFAULT_METHOD, seed=spec.seed, backbone=spec.backbone, precision=spec.precision)
    session.load_backbone(spec.backbone, spec.precision)  # loading it does not count
    start = time.monotonic()
    model._fit_drawn(task.source, session)
    seconds = time.monotonic() - start
    (target,) = evaluate(model.method_, task.targets, session)
    return target.adapted, seconds


def compare_results(result: RunResult, default: tuple[Evaluation, float]) -> tuple[MethodResult, ...]:
    """Accuracy on the test images and seconds of the fit: zero-shot CLIP, the default method, the run's method."""
    figures = [
        ("zero_shot", result.zero_shot_accuracy or 0.0, 0.0),
        (DEFAULT_METHOD, default[0].accuracy, round(default[1], 2)),
        (result.method, result.accuracy or 0.0, result.seconds),
    ]
    return tuple(
        MethodResult(method=method, accuracy=accuracy, test_images=result.test_images, seconds=seconds)
        for method, accuracy, seconds in figures
    )


def plot_results(
    folder: Path,
    dataset: Dataset,
    zero_shot: Evaluation,
    default: Evaluation,
    adapted: Evaluation,
    seconds: Sequence[float],
    term_titles: Mapping[str, str],
) -> None:
    """Write the plots of a finished run.

    seconds: of the fits of the default method and of the run. term_titles: readable names of the run's loss terms.
    """
    truth = adapted.truth
    by_zero_shot, by_default, predicted = (one.probabilities.argmax(axis=1) for one in (zero_shot, default, adapted))
    rows = plots.count_correct_by_class(truth, by_zero_shot, predicted, dataset.names, by_default)
    images = [open_image(item.image) for item in dataset.test]
    truths, answers = _name_labels(truth, dataset.names), _name_labels(predicted, dataset.names)
    confidence = adapted.probabilities.max(axis=1).tolist()
    labels = (f"{DEFAULT_METHOD} (default)", "DCA")
    plots.plot_demo(
        rows, images, truths, answers, confidence, folder / COMPARISON, labels=labels, seconds=seconds, shots=SHOTS
    )
    plots.plot_selected_predictions(images, truths, answers, confidence, folder / GRID)
    plots.plot_training(read_metrics(folder), folder / CURVES, term_titles=term_titles)


def _name_labels(labels: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    return [names[int(label)] for label in labels]
