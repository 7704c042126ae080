"""What a page about a model shows: the model, its training images, and predictions for images it has not seen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.core.progress import Progress, silent
from dca.core.text import pluralize, to_printable
from dca.datasets.dataset import Dataset
from dca.images.decode import ImageLike
from dca.model.classifier import Classifier
from dca.model.gallery import Gallery
from dca.model.inputs import measured_items
from dca.report import images
from dca.training.evaluate import Evaluation
from dca.training.session import Session

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """Answers for N images that the model has not seen.

    Attributes:
        tested: Whether these are test images; otherwise they are training images that were left out.
        basis: What the images are, in words.
        truth: Class of each image, (N,).
        answer: Predicted class, (N,).
        sure: Probability of the predicted class, (N,).
        own: Probability of the image's own class, (N,).
        zero_shot: Class that zero-shot CLIP predicts, (N,); None where it is not known.
        names: Short name of each image.
        images: The images; empty where only thumbnails are left.
        places: Place of each image in the gallery, -1 where it has none.
    """

    tested: bool
    basis: str
    truth: Ints
    answer: Ints
    sure: Floats
    own: Floats
    zero_shot: Ints | None
    names: tuple[str, ...]
    images: tuple[ImageLike, ...]
    places: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.truth)

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether each answer is right, (N,)."""
        found: NDArray[np.bool_] = self.answer == self.truth
        return found

    @cached_property
    def mistakes(self) -> list[int]:
        """Places of wrong answers, the surest first."""
        wrong = np.flatnonzero(~self.right)
        return [int(n) for n in wrong[np.argsort(-self.sure[wrong], kind="stable")]]

    def confusion(self, classes: int) -> Ints:
        """Number of images by true class (row) and predicted class (column), (C, C)."""
        counts = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(counts, (self.truth, self.answer), 1)
        return counts


@dataclass(frozen=True)
class Subject:
    """A model and what is known about it.

    Attributes:
        model: The fitted classifier.
        name: Name of the model.
        folder: Its folder; None for a model in memory.
        session: Reads images and features.
        dataset: The data that was given, if any.
        data: Where that data is, as the user named the place.
        evaluation: How the model did on it.
        predictions: Answers for test images, or else for training images that were left out; None if there are none.
        progress: Receives the progress of slow sections.
    """

    model: Classifier
    name: str
    folder: Path | None
    session: Session
    dataset: Dataset | None = None
    data: str = ""
    evaluation: Evaluation | None = None
    predictions: Predictions | None = None
    progress: Progress = silent

    @property
    def labels(self) -> list[str]:
        """Label of each class that the predictions are about."""
        given = self.evaluation.labels if self.evaluation is not None else self.model.classes_.tolist()
        return list(map(str, given))

    @cached_property
    def gallery(self) -> Gallery | None:
        """The training images, if the model has kept them."""
        found = self.model.gallery()
        return found if found is not None and len(found) else None

    @cached_property
    def training_labels(self) -> list[str]:
        """Label of each image of the gallery."""
        labels = list(map(str, self.model.classes_.tolist()))
        return [] if self.gallery is None else [labels[c] for c in self.gallery.labels]

    def thumbnails(self, numbers: Sequence[int], side: int) -> list[str]:
        """Predicted images as addresses with at most `side` pixels; "" where an image is not at hand."""
        found = self.predictions
        assert found is not None
        if found.images:
            return images.addresses([found.images[n] for n in numbers], side)
        return [self.training_thumbnail(found.places[n], side) for n in numbers]

    def training_thumbnail(self, place: int, side: int) -> str:
        """An image of the gallery as an address; "" where there is none."""
        return "" if self.gallery is None or place < 0 else images.smaller(self.gallery.jpegs[place], side)

    def features(self, numbers: Sequence[int]) -> Tensor | None:
        """Frozen features (n, D) of predicted images; None where they are not at hand."""
        found = self.predictions
        assert found is not None
        if found.images:
            wanted = [found.images[n] for n in numbers]
            return self.session.frozen_features(self.model.method_.clip, wanted, stage="test images: features")
        places = [found.places[n] for n in numbers]
        return self.gallery.features[places] if self.gallery is not None and min(places, default=0) >= 0 else None

    def nearest(self, numbers: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
        """Place and similarity of the k training images nearest to predicted images, an image itself left out."""
        features = self.features(numbers) if self.gallery is not None and numbers else None
        if features is None or self.gallery is None or self.predictions is None:
            return [[] for _ in numbers]
        places, similar = self.gallery.nearest(features, k + 1)
        rows = []
        for n, own, values in zip(numbers, places.tolist(), similar.tolist(), strict=True):
            itself = -1 if self.predictions.tested else self.predictions.places[n]
            pairs = zip(own, values, strict=True)
            rows.append([(place, value) for place, value in pairs if place != itself][:k])
        return rows


def about(
    model: Classifier,
    name: str,
    session: Session,
    *,
    folder: Path | None = None,
    dataset: Dataset | None = None,
    data: str = "",
    progress: Progress = silent,
) -> Subject:
    """The subject of a page: test images where data is given, else training images that were left out.

    Args:
        model: A fitted classifier.
        name: What to call it.
        session: Reads images and features.
        folder: Folder of the model.
        dataset: Labelled images to measure it on.
        data: Where these are, as the user named the place.
        progress: Receives the progress.

    Returns:
        The subject, measured.

    Raises:
        UserError: If a class of the data is not one of the model's, or an image cannot be read.
    """
    shared: dict[str, Any] = {"folder": folder, "data": data, "progress": progress}
    if dataset is None:
        return Subject(model, name, session=session, predictions=left_out(model), **shared)
    found = model.evaluate(dataset, progress=progress)
    plain = zero_shot_of(model).evaluate(dataset, progress=progress)
    tested = _tested(dataset, found, plain)
    return Subject(model, name, session=session, dataset=dataset, evaluation=found, predictions=tested, **shared)


def zero_shot_of(model: Classifier) -> Classifier:
    """Zero-shot CLIP for the same classes as a classifier."""
    other = copy.copy(model)
    other.method_, other.training_images_ = model.zero_shot(), ()
    return other


def _tested(dataset: Dataset, found: Evaluation, plain: Evaluation) -> Predictions:
    """Answers for the labelled images of a dataset."""
    items = measured_items(dataset)
    part = "test" if dataset.test else "validation" if dataset.val else "labelled"
    rows = np.arange(found.n)
    return Predictions(
        True,
        f"{pluralize(found.n, f'{part} image')} of {to_printable(dataset.name)}",
        found.truth,
        found.probabilities.argmax(axis=1),
        found.probabilities.max(axis=1),
        found.probabilities[rows, found.truth],
        plain.probabilities.argmax(axis=1),
        tuple(dataset.path_of(item) or f"image {n}" for n, item in enumerate(items)),
        tuple(item.image for item in items),
        (-1,) * found.n,
    )


def left_out(model: Classifier) -> Predictions | None:
    """Answers for training images by models that have not seen them; None if the fit made none."""
    rows = [(image, image.held_out) for image in model.training_images_ if image.held_out]
    if not rows:
        return None
    gallery = model.gallery()
    known = {} if gallery is None else {sha256: place for place, sha256 in enumerate(gallery.sha256)}
    how = model.estimate_.how if model.estimate_ is not None else "left out"
    return Predictions(
        False,
        f"{pluralize(len(rows), 'training image')}, each predicted without it ({how})",
        np.array([image.label for image, _ in rows], dtype=np.int64),
        np.array([held.predicted for _, held in rows], dtype=np.int64),
        np.array([held.probability for _, held in rows]),
        np.array([held.own for _, held in rows]),
        None,
        tuple(to_printable(image.name) for image, _ in rows),
        (),
        tuple(known.get(image.sha256, -1) for image, _ in rows),
    )


def head_features(subject: Subject) -> tuple[Tensor, list[int]] | None:
    """Features (n, D) of training images as the head sees them, and their classes; None where none are kept.

    Methods that change the image tower have stored theirs; others make them from the gallery. Some heads take further
    numbers after the D of the whole image, which are dropped.
    """
    method, gallery = subject.model.method_, subject.gallery
    if method.has_frozen_image_tower and gallery is not None:
        with torch.no_grad():
            found = method.adapt_features(gallery.features.to(method.clip.device)).cpu()
        return found[:, : method.clip.config.embed_dim], list(gallery.labels)
    kept = method.training_features()
    return None if kept is None else (kept[0].cpu(), kept[1].tolist())
