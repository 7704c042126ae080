"""The demonstration: DCA against zero-shot CLIP on the built-in images, with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dca import plots
from dca.core.progress import Progress, silent
from dca.data.dataset import Dataset
from dca.data.decode import open_image
from dca.data.sources.sample import load_sample
from dca.engine.evaluate import Evaluation
from dca.engine.resume import read_metrics
from dca.engine.session import Session
from dca.experiment.run import Outcome, evaluate, run, task_of
from dca.experiment.spec import Spec
from dca.model.classifier import Classifier

SHOTS = 16
# Enough epochs to show the gain, in about a minute on two cores.
QUICK = {"epochs": 12, "warmup_epochs": 1}
COMPARISON, CURVES, GRID = "comparison.png", "training.png", "predictions.png"


def demo(
    folder: Path,
    *,
    backbone: str = "mini",
    seed: int = 1,
    device: str = "auto",
    precision: str = "auto",
    overwrite: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Fit DCA on the sample and plot the results; returns the run's outcome.

    A finished demonstration is not fitted again; only missing plots are drawn.
    """
    spec = Spec(data="sample", shots=SHOTS, seed=seed, backbone=backbone, precision=precision, options=QUICK)
    dataset, session = load_sample(), Session(device=device, progress=progress)
    outcome = run(spec, folder, dataset=dataset, session=session, overwrite=overwrite, progress=progress)
    model, measured = outcome.classifier, outcome.targets
    if model is None:
        if all((folder / name).is_file() for name in (COMPARISON, CURVES, GRID)):
            return outcome
        model = Classifier.from_pretrained(folder, backbone=backbone, precision=precision, session=session)
        measured = evaluate(model.method_, task_of(spec, dataset).targets, session)
    (target,) = measured
    plot(folder, dataset, target.zero_shot, target.adapted, model.method_.term_words)
    return outcome


def plot(
    folder: Path, dataset: Dataset, zero_shot: Evaluation, adapted: Evaluation, term_words: Mapping[str, str]
) -> None:
    """Write the plots of a finished run. term_words: readable names of its loss terms."""
    truth = adapted.truth
    answer, plain = adapted.probabilities.argmax(axis=1), zero_shot.probabilities.argmax(axis=1)
    rows = plots.class_results(truth, plain, answer, dataset.names)
    images = [open_image(item.image) for item in dataset.test]
    truths, answers = _names(truth, dataset.names), _names(answer, dataset.names)
    sure = adapted.probabilities.max(axis=1).tolist()
    plots.demo_figure(
        zero_shot.accuracy, adapted.accuracy, rows, images, truths, answers, sure, folder / COMPARISON, shots=SHOTS
    )
    plots.prediction_grid(images, truths, answers, sure, folder / GRID)
    plots.training_curves(read_metrics(folder), folder / CURVES, term_words=term_words)


def _names(labels: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    return [names[int(label)] for label in labels]
