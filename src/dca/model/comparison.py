"""Several models on the same images: accuracies, paired differences, where they disagree, and what they cost."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dca.core.errors import UserError
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.images.decode import ImageLike, open_image
from dca.methods.base import Method
from dca.model.classifier import Classifier
from dca.model.inputs import evaluation_items
from dca.stats.intervals import wilson_interval
from dca.stats.paired import PairedDifference, paired_difference
from dca.training.evaluate import Evaluation

# Images of the batch that is timed, and how often; the median counts.
TIMED, REPEATS = 16, 5


@dataclass(frozen=True)
class Cost:
    """What a model costs.

    Attributes:
        parameters: Trained values.
        milliseconds: Per image, encoding and classifying in batches of 16 on this machine, without reading files.
        fit_seconds: Of the fit; None where it is not recorded.
    """

    parameters: int
    milliseconds: float
    fit_seconds: float | None


@dataclass(frozen=True)
class ModelResult:
    """One model of a comparison.

    Attributes:
        name: Name of the model.
        method: Name of its method.
        backbone: Name of its backbone.
        evaluation: Its evaluation.
        low: Lower end of the 95 % interval (Wilson) of its accuracy.
        high: Upper end.
        cost: What it costs.
        difference: Its accuracy minus that of the first model; None for the first.
    """

    name: str
    method: str
    backbone: str
    evaluation: Evaluation
    low: float
    high: float
    cost: Cost
    difference: PairedDifference | None = None

    @property
    def right(self) -> list[bool]:
        """Whether the prediction for each image is right."""
        found: list[bool] = (self.evaluation.probabilities.argmax(axis=1) == self.evaluation.truth).tolist()
        return found

    @property
    def predicted_labels(self) -> list[str]:
        """Predicted label of each image."""
        return [str(self.evaluation.labels[c]) for c in self.evaluation.probabilities.argmax(axis=1)]


@dataclass(frozen=True)
class Disagreement:
    """An image for which models give different answers.

    index: of the image. truth: its label. answers: of each model the label, its probability, and whether
    it is right.
    """

    index: int
    truth: str
    answers: tuple[tuple[str, float, bool], ...]


@dataclass(frozen=True)
class Comparison:
    """Several models on the same images.

    Attributes:
        data: Name of the data.
        images: The images.
        models: The models; differences are to the first.
        disagreements: Images with different answers: those that only the first model gets right, then those that
            only others get right, then those that all get wrong; the surest answers first.
    """

    data: str
    images: tuple[ImageLike, ...]
    models: tuple[ModelResult, ...]
    disagreements: tuple[Disagreement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dca compare --json` prints them."""
        rows = []
        for model in self.models:
            figures: dict[str, Any] = {"name": model.name, "method": model.method, "backbone": model.backbone}
            figures |= {"accuracy": model.evaluation.accuracy, "low": model.low, "high": model.high}
            figures |= {"ece": model.evaluation.ece, **dataclasses.asdict(model.cost)}
            found = model.difference
            rows.append({**figures, "difference": None if found is None else dataclasses.asdict(found)})
        differing = [
            {
                "image": str(self.images[row.index]),
                "truth": row.truth,
                "answers": [{"label": label, "probability": p, "right": hit} for label, p, hit in row.answers],
            }
            for row in self.disagreements
        ]
        return {"data": self.data, "n": len(self.images), "models": rows, "disagreements": differing}


def compare(models: Sequence[tuple[str, Classifier]], dataset: Dataset, *, progress: Progress = silent) -> Comparison:
    """Measure models on the same labelled images.

    Args:
        models: Names and fitted classifiers, at least two; differences are to the first.
        dataset: Its test part is used, or else its validation part, or else its training part.
        progress: Receives the progress.

    Returns:
        Accuracies, paired differences, disagreements and costs.

    Raises:
        UserError: If there are fewer than two models, or a model does not know a class of the data.

    Example:
        >>> from dca import Classifier
        >>> from dca.datasets.sample import load_sample
        >>> from dca.model.comparison import compare
        >>> sample = load_sample(per_class_train=2, per_class_test=1)
        >>> fit = lambda name: Classifier(name, device="cpu").fit(sample)
        >>> found = compare([("a", fit("gda")), ("b", fit("zero_shot"))], sample)
        >>> found.models[1].difference.n
        10
    """
    if len(models) < 2:
        raise UserError("a comparison needs at least two models", hint="dca compare MODEL MODEL DATA")
    images = [item.image for item in evaluation_items(dataset)]
    results = [_measure_model(name, model, dataset, images, progress) for name, model in models]
    first, *others = results
    rows = [dataclasses.replace(row, difference=paired_difference(row.right, first.right)) for row in others]
    compared = (first, *rows)
    return Comparison(dataset.name, tuple(images), compared, tuple(_list_disagreements(compared)))


def _measure_model(
    name: str, model: Classifier, dataset: Dataset, images: Sequence[ImageLike], progress: Progress
) -> ModelResult:
    """One model on all images."""
    method, found = model.method_, model.evaluate(dataset, progress=progress)
    low, high = wilson_interval(found.accuracy, found.n)
    seconds = model.results_.get("seconds")
    cost = Cost(method.count_parameters(), time_per_image(method, images[:TIMED]), seconds)
    return ModelResult(name, method.name, method.encoder.source, found, low, high, cost)


@torch.no_grad()
def time_per_image(method: Method, images: Sequence[ImageLike]) -> float:
    """Time per image of encoding and classifying a batch of these images, the median of several."""
    pixels = method.encoder.preprocess([open_image(image) for image in images]).to(method.encoder.device)
    times = []
    for _ in range(1 + REPEATS):  # the first warms up
        began = time.perf_counter()
        method.classify(method.encode(pixels)).cpu()  # waits for a GPU
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[1:]) / len(images)


def _list_disagreements(models: Sequence[ModelResult]) -> list[Disagreement]:
    """Images with different answers, in the order that `Comparison` states."""
    answers = list(zip(*(model.predicted_labels for model in models), strict=True))
    right = list(zip(*(model.right for model in models), strict=True))
    sure = list(zip(*(model.evaluation.probabilities.max(axis=1).tolist() for model in models), strict=True))
    first, ranked = models[0].evaluation, []
    for index, (said, hits, p) in enumerate(zip(answers, right, sure, strict=True)):
        # Right answers agree, also where two models have different labels for a class.
        if len({True if hit else label for label, hit in zip(said, hits, strict=True)}) == 1:
            continue
        group = 0 if hits[0] else 1 if any(hits) else 2
        wrong = max(one for one, hit in zip(p, hits, strict=True) if not hit)
        row = Disagreement(index, str(first.labels[first.truth[index]]), tuple(zip(said, p, hits, strict=True)))
        ranked.append((group, -wrong, row))
    return [row for *_, row in sorted(ranked, key=lambda row: row[:2])]
