"""Plots of how a model did: confusion matrix, mistakes, calibration and accuracy per class."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca import plots
from dca.core.progress import Progress
from dca.datasets.dataset import LabelledImage
from dca.datasets.task import Task
from dca.images.decode import ImageLike, Unreadable, try_decode_all
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.model.findings import missing_classes, recall_by_class
from dca.model.records import Estimate, TrainingImage
from dca.plots.style import can_draw
from dca.training.evaluate import Evaluation

PLOT_FILES = ("confusion.png", "mistakes.png", "reliability.png", "classes.png")
# Side in pixels at which images are kept for the grid of mistakes.
_SIDE = 320


@dataclass(frozen=True)
class EvaluatedImages:
    """Predictions for N labelled images of C classes.

    images: the images. labels: label of each class. truth, predicted: class index of each image, (N,). probability: of
    the predicted class, (N,). zero_shot: class that zero-shot CLIP predicts, (N,), where it was measured. what: what
    the images are, for titles. estimate: the estimated accuracy, where they are held-out training images. missing:
    class -> why none of its images could be held out.
    """

    images: Sequence[ImageLike]
    labels: Sequence[Any]
    truth: NDArray[np.int64]
    predicted: NDArray[np.int64]
    probability: NDArray[np.float64]
    zero_shot: NDArray[np.int64] | None = None
    what: str = "test images"
    estimate: Estimate | None = None
    missing: Mapping[int, str] = field(default_factory=dict)


def list_test_predictions(
    items: Sequence[LabelledImage], report: Evaluation, zero_shot: Evaluation | None = None
) -> EvaluatedImages:
    """The predictions of an evaluation of these images."""
    probs = report.probabilities
    plain = None if zero_shot is None else zero_shot.probabilities.argmax(axis=1)
    images = [item.image for item in items]
    return EvaluatedImages(images, report.labels, report.truth, probs.argmax(axis=1), probs.max(axis=1), plain)


def list_held_out_predictions(
    items: Sequence[LabelledImage],
    records: Sequence[TrainingImage],
    labels: Sequence[Any],
    estimate: Estimate | None = None,
) -> EvaluatedImages | None:
    """The predictions for training images by models that have not seen them; None if there are none.

    records: the images in the record of a model, see `Classifier.training_images_`. estimate: what they gave.
    """
    known = [(item, record, record.held_out) for item, record in zip(items, records, strict=True) if record.held_out]
    if not known:
        return None
    return EvaluatedImages(
        [item.image for item, *_ in known],
        labels,
        np.array([record.label for _, record, _ in known]),
        np.array([held.predicted for *_, held in known]),
        np.array([held.probability for *_, held in known]),
        what="training images, each left out",
        estimate=estimate,
        missing=missing_classes(recall_by_class(records, labels)),
    )


def plot_evaluation(predictions: EvaluatedImages, folder: Path, model: str) -> list[Path]:
    """Write all plots into a folder, which is made; returns their paths in the order of `PLOT_FILES`.

    model: name of the model for titles. Raises UserError if matplotlib is not installed.
    """
    names, size = list(map(str, predictions.labels)), len(predictions.labels)
    matrix = np.zeros((size, size), dtype=int)
    np.add.at(matrix, (predictions.truth, predictions.predicted), 1)
    right, estimate = predictions.predicted == predictions.truth, predictions.estimate
    results = plots.count_correct_by_class(
        predictions.truth, predictions.zero_shot, predictions.predicted, names, missing=predictions.missing
    )
    confusion, mistakes, reliability, classes = (folder / name for name in PLOT_FILES)
    return [
        plots.plot_confusion(matrix, names, confusion, missing=predictions.missing),
        _mistakes(predictions, names, mistakes),
        plots.plot_reliability(
            predictions.probability, right, reliability, accuracy=estimate.accuracy if estimate else None
        ),
        plots.plot_accuracies(
            results,
            classes,
            label=model,
            what=predictions.what,
            estimate=plots.Share(estimate.accuracy, estimate.low, estimate.high) if estimate else None,
        ),
    ]


def _mistakes(predictions: EvaluatedImages, names: Sequence[str], path: Path) -> Path:
    """The grid of mistakes; only images that it shows are opened."""
    truths, said = [names[c] for c in predictions.truth], [names[c] for c in predictions.predicted]
    places = plots.select_informative(truths, said, predictions.probability.tolist())
    opened = try_decode_all([predictions.images[k] for k in places], _small)
    shown = [(k, image) for k, image in zip(places, opened, strict=True) if not isinstance(image, Unreadable)]
    return plots.plot_selected_predictions(
        [image for _, image in shown],
        [truths[k] for k, _ in shown],
        [said[k] for k, _ in shown],
        [float(predictions.probability[k]) for k, _ in shown],
        path,
        counts=(int((predictions.predicted != predictions.truth).sum()), len(truths)),
    )


def _small(image: Any) -> NDArray[np.uint8]:
    """An RGB image with its long side at most 320 pixels, as an array (H, W, 3)."""
    image.thumbnail((_SIDE, _SIDE))
    return np.asarray(image)


def folder_name(name: str) -> str:
    """A name of data as the name of a folder.

    >>> folder_name("my photos/2024"), folder_name("..")
    ('my photos_2024', '_')
    """
    return re.sub(r'[\x00-\x1f/\\:*?"<>|]', "_", name).strip(". ")[:80] or "_"


def plot_run(
    folder: Path,
    model: Classifier,
    task: Task,
    reports: Sequence[tuple[Evaluation, Evaluation | None]],
    progress: Progress,
) -> list[str]:
    """Write the plots of a finished fit into the folder of its model; returns their paths inside of it.

    They show the test images, or else the training images as predicted by models that have not seen them. Several
    targets have a folder each. Without matplotlib nothing is drawn.

    reports: evaluations of the model and of zero-shot CLIP on each target of the task.
    """
    if not can_draw():
        return []
    place = folder / checkpoint.PLOTS
    predictions = {
        folder_name(target.name): list_test_predictions(target.test, *both)
        for target, both in zip(task.targets, reports, strict=True)
    }
    if not predictions:
        left_out = list_held_out_predictions(
            task.source.train, model.training_images_, model.classes_.tolist(), model.estimate_
        )
        predictions = {} if left_out is None else {"": left_out}
    drawn: list[Path] = []
    for number, (name, each) in enumerate(predictions.items()):
        progress("drawing", number, len(predictions), "plots")
        drawn += plot_evaluation(each, place / name if len(predictions) > 1 else place, model.method)
        progress("drawing", number + 1, len(predictions), "plots")
    return [path.relative_to(folder).as_posix() for path in drawn]
