"""How far an exported model is from the original, measured on images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca.core.errors import UserError
from dca.core.progress import Progress
from dca.data.dataset import Dataset, ImageLike, StoredImage
from dca.data.sources.sample import load_sample
from dca.export import predict
from dca.model.classifier import Classifier
from dca.model.inputs import as_dataset, match_classes

# Images on which the exported model is compared with torch.
COMPARED = 100
# Largest difference of a probability that rounding explains.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Checked:
    """Images to measure on. truth: class index of each, (N,); None if they are not of the model's classes."""

    images: list[ImageLike]
    truth: NDArray[np.int64] | None


@dataclass(frozen=True)
class Parity:
    """The exported model against torch. difference: largest |Δp| over all classes of `images` images."""

    difference: float
    images: int


@dataclass(frozen=True)
class Int8Cost:
    """The 8-bit model against the float one on `images` images.

    same: images with the same answer. difference: largest |Δp|. accuracy, accuracy_int8: fractions; None if the images
    have no labels that the model knows.
    """

    images: int
    same: int
    difference: float
    accuracy: float | None
    accuracy_int8: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return asdict(self)


def images_to_check(model: Classifier, data: str | Path | Dataset | None) -> Checked:
    """The labelled images of `data`; without data, images of the built-in sample, whose labels rarely fit.

    Raises:
        UserError: If the data cannot be read, or has classes that the model does not know.
    """
    if data is not None:
        return _matched(model, as_dataset(data, None, measuring=True))
    sample = load_sample(per_class_train=1, per_class_test=COMPARED // 10)
    try:
        return _matched(model, sample)
    except UserError:
        return Checked([item.image for item in sample.test], None)


def _matched(model: Classifier, dataset: Dataset) -> Checked:
    problem = model.method_.problem
    items = match_classes(dataset, model.classes_.tolist(), problem.names, problem.dataset).items
    return Checked([item.image for item in items], np.array([item.label for item in items]))


def parity(model: Classifier, file: Path, checked: Checked, progress: Progress) -> Parity:
    """Compare an ONNX file with the classifier on at most `COMPARED` of the images, evenly spread."""
    n = len(checked.images)
    chosen = [checked.images[i] for i in np.unique(np.linspace(0, n - 1, min(n, COMPARED)).astype(int))]
    expected = model.predict_proba(chosen, progress=progress)
    found = probabilities(model, file, chosen, progress)
    return Parity(float(np.abs(found - expected).max()), len(chosen))


def int8_cost(model: Classifier, files: tuple[Path, Path], checked: Checked, progress: Progress) -> Int8Cost:
    """Compare the 8-bit file, the second, with the float file."""
    whole, small = (probabilities(model, file, checked.images, progress) for file in files)
    answers, others = whole.argmax(axis=1), small.argmax(axis=1)
    right = [None if checked.truth is None else float((a == checked.truth).mean()) for a in (answers, others)]
    return Int8Cost(len(answers), int((answers == others).sum()), float(np.abs(small - whole).max()), *right)


def probabilities(
    model: Classifier, file: Path, images: Sequence[ImageLike], progress: Progress
) -> NDArray[np.float32]:
    """Probabilities (N, C) of an ONNX file, by the code that is exported with it."""
    preprocess = model.method_.clip.preprocess.to_dict()
    session, found = predict.open_session(file), []
    opened = [image for image in images if not isinstance(image, StoredImage)]  # which only a refit has
    for crops in predict.batches(opened, preprocess):
        found.append(predict.run(session, crops))
        progress("comparing", sum(map(len, found)), len(images), "")
    return np.concatenate(found)
