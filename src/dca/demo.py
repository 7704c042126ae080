"""The demonstration: DCA against zero-shot CLIP on the built-in pictures, left in a folder to look at."""

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
from dca.engine.loop import read_metrics
from dca.experiment.run import Outcome, Spec, compare, run
from dca.model.classifier import Classifier

SHOTS = 16
# Enough to show what few images do, within a minute or so on two cores.
QUICK = {"epochs": 12, "warmup_epochs": 1}
PICTURE, CURVES, GRID = "comparison.png", "training.png", "predictions.png"


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
    """Fit DCA on the sample and draw what came of it; returns the run's outcome.

    A finished demonstration is left as it is, but for pictures that are missing.
    """
    spec = Spec(data="sample", shots=SHOTS, seed=seed, backbone=backbone, precision=precision, options=dict(QUICK))
    dataset = load_sample()
    outcome = run(spec, folder, dataset=dataset, device=device, overwrite=overwrite, progress=progress)
    model, zero_shot, adapted = outcome.classifier, outcome.zero_shot, outcome.adapted
    if model is None:
        if all((folder / name).is_file() for name in (PICTURE, CURVES, GRID)):
            return outcome
        model = Classifier.from_pretrained(folder, backbone=backbone, device=device, precision=precision)
        zero_shot, adapted = compare(model, dataset, progress)
    assert zero_shot is not None
    assert adapted is not None
    draw(folder, dataset, zero_shot, adapted, model.method_.term_words)
    return outcome


def draw(
    folder: Path, dataset: Dataset, zero_shot: Evaluation, adapted: Evaluation, term_words: Mapping[str, str]
) -> None:
    """The pictures of a finished run. term_words: what the names of its loss terms mean."""
    labels = adapted.labels
    said, plain = adapted.probabilities.argmax(axis=1), zero_shot.probabilities.argmax(axis=1)
    rows = plots.class_results(labels, plain, said, dataset.classes)
    images = [open_image(item.picture) for item in dataset.test]
    truths, answers = _names(labels, dataset.classes), _names(said, dataset.classes)
    sure = adapted.probabilities.max(axis=1).tolist()
    plots.demo_figure(
        zero_shot.accuracy, adapted.accuracy, rows, images, truths, answers, sure, folder / PICTURE, shots=SHOTS
    )
    plots.prediction_grid(images, truths, answers, sure, folder / GRID)
    plots.training_curves(read_metrics(folder), folder / CURVES, term_words=term_words)


def _names(labels: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    return [classes[int(label)] for label in labels]
