"""What a page about a model shows: the model, its training images, and predictions for images it has not seen."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.backbones.encoder import Ability
from dca.core.progress import Progress, silent
from dca.core.text import pluralize, to_printable
from dca.datasets.dataset import Dataset
from dca.images.decode import ImageLike
from dca.model.classifier import Classifier
from dca.model.findings import missing_classes, recall_by_class
from dca.model.gallery import Gallery
from dca.model.inputs import evaluation_items
from dca.report import thumbnails
from dca.stats.confusion import confusion_matrix
from dca.training.evaluate import Evaluation
from dca.training.session import Session

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UnseenPredictions:
    """Predictions for N images that the model has not seen.

    Attributes:
        tested: Whether these are test images; otherwise they are training images that were held out.
        basis: What the images are, in words.
        truth: Class of each image, (N,).
        predicted: Predicted class, (N,).
        confidence: Probability of the predicted class, (N,).
        own: Probability of the image's own class, (N,).
        zero_shot: Class that zero-shot CLIP predicts, (N,); None where it is not known.
        names: Short name of each image.
        images: The images; empty where only thumbnails are left.
        gallery_indices: Index of each image in the gallery, -1 where it has none.
        missing: Class -> why none of its images could be held out.
    """

    tested: bool
    basis: str
    truth: Ints
    predicted: Ints
    confidence: Floats
    own: Floats
    zero_shot: Ints | None
    names: tuple[str, ...]
    images: tuple[ImageLike, ...]
    gallery_indices: tuple[int, ...]
    missing: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.truth)

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether each prediction is right, (N,)."""
        hits: NDArray[np.bool_] = self.predicted == self.truth
        return hits

    @cached_property
    def mistakes(self) -> list[int]:
        """Indices of wrong predictions, the most confident first."""
        wrong = np.flatnonzero(~self.right)
        return [int(n) for n in wrong[np.argsort(-self.confidence[wrong], kind="stable")]]

    def confusion(self, classes: int) -> Ints:
        """Number of images by true class (row) and predicted class (column), (C, C)."""
        return confusion_matrix(self.truth, self.predicted, classes)


@dataclass(frozen=True)
class ReportedModel:
    """A model and what a page says about it.

    Attributes:
        model: The fitted classifier.
        name: Name of the model.
        folder: Its folder; None for a model in memory.
        session: Reads images and features.
        dataset: The data that was given, if any.
        data: Path of that data, as the user gave it.
        evaluation: Its evaluation on that data.
        predictions: Predictions for test images, or else for held-out training images; None if there are none.
        progress: Receives the progress of slow sections.
    """

    model: Classifier
    name: str
    folder: Path | None
    session: Session
    dataset: Dataset | None = None
    data: str = ""
    evaluation: Evaluation | None = None
    predictions: UnseenPredictions | None = None
    progress: Progress = silent

    @property
    def reads_texts(self) -> bool:
        """Whether the encoder knows texts, so that there is a zero-shot model to compare with."""
        return Ability.TEXT_FEATURES in self.model.method_.encoder.abilities

    @property
    def labels(self) -> list[str]:
        """Label of each class that the predictions are about."""
        labels = self.evaluation.labels if self.evaluation is not None else self.model.classes_.tolist()
        return list(map(str, labels))

    @cached_property
    def gallery(self) -> Gallery | None:
        """The training images, if the model has kept them."""
        gallery = self.model.gallery()
        return gallery if gallery is not None and len(gallery) else None

    @cached_property
    def training_labels(self) -> list[str]:
        """Label of each image of the gallery."""
        labels = list(map(str, self.model.classes_.tolist()))
        return [] if self.gallery is None else [labels[c] for c in self.gallery.labels]

    def thumbnails(self, indices: Sequence[int], side: int) -> list[str]:
        """Data URLs of predicted images with at most `side` pixels; "" where an image is not at hand."""
        assert self.predictions is not None
        if self.predictions.images:
            return thumbnails.thumbnail_urls([self.predictions.images[n] for n in indices], side)
        return [self.training_thumbnail(self.predictions.gallery_indices[n], side) for n in indices]

    def training_thumbnail(self, gallery_index: int, side: int) -> str:
        """Data URL of an image of the gallery; "" where there is none."""
        if self.gallery is None or gallery_index < 0:
            return ""
        return thumbnails.shrink_jpeg(self.gallery.jpegs[gallery_index], side)

    def features(self, indices: Sequence[int]) -> Tensor | None:
        """Frozen features (n, D) of predicted images; None where they are not at hand."""
        assert self.predictions is not None
        if self.predictions.images:
            images = [self.predictions.images[n] for n in indices]
            return self.session.frozen_features(self.model.method_.encoder, images, stage="test images: features")
        kept = [self.predictions.gallery_indices[n] for n in indices]
        return self.gallery.features[kept] if self.gallery is not None and min(kept, default=0) >= 0 else None

    def nearest(self, indices: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
        """Gallery index and similarity of the k training images nearest to predicted images, other than itself."""
        features = self.features(indices) if self.gallery is not None and indices else None
        if features is None or self.gallery is None or self.predictions is None:
            return [[] for _ in indices]
        neighbours, similarities = self.gallery.nearest(features, k + 1)
        rows = []
        for n, own, values in zip(indices, neighbours.tolist(), similarities.tolist(), strict=True):
            itself = -1 if self.predictions.tested else self.predictions.gallery_indices[n]
            pairs = zip(own, values, strict=True)
            rows.append([(index, value) for index, value in pairs if index != itself][:k])
        return rows


def prepare_report(
    model: Classifier,
    name: str,
    session: Session,
    *,
    folder: Path | None = None,
    dataset: Dataset | None = None,
    data: str = "",
    progress: Progress = silent,
) -> ReportedModel:
    """Predict the images of a page: test images where data is given, else held-out training images.

    Args:
        model: A fitted classifier.
        name: What to call it.
        session: Reads images and features.
        folder: Folder of the model.
        dataset: Labelled images to measure it on.
        data: Path of these, as the user gave it.
        progress: Receives the progress.

    Returns:
        The model with its predictions.

    Raises:
        UserError: If a class of the data is not one of the model's, or an image cannot be read.
    """
    if dataset is None:
        predictions, evaluation = list_held_out(model), None
    else:
        evaluation = model.evaluate(dataset, progress=progress)
        reads = Ability.TEXT_FEATURES in model.method_.encoder.abilities
        zero_shot = to_zero_shot(model).evaluate(dataset, progress=progress) if reads else None
        predictions = _list_tested(dataset, evaluation, zero_shot)
    return ReportedModel(model, name, folder, session, dataset, data, evaluation, predictions, progress)


def to_zero_shot(model: Classifier) -> Classifier:
    """Zero-shot CLIP for the same classes as a classifier."""
    other = copy.copy(model)
    other.method_, other.training_images_, other.held_out_auc_ = model.zero_shot(), (), ()
    return other


def _list_tested(dataset: Dataset, evaluation: Evaluation, zero_shot: Evaluation | None) -> UnseenPredictions:
    """Predictions for the labelled images of a dataset."""
    items = evaluation_items(dataset)
    part = "test" if dataset.test else "validation" if dataset.val else "labelled"
    rows = np.arange(evaluation.n)
    return UnseenPredictions(
        tested=True,
        basis=f"{pluralize(evaluation.n, f'{part} image')} of {to_printable(dataset.name)}",
        truth=evaluation.truth,
        predicted=evaluation.probabilities.argmax(axis=1),
        confidence=evaluation.probabilities.max(axis=1),
        own=evaluation.probabilities[rows, evaluation.truth],
        zero_shot=None if zero_shot is None else zero_shot.probabilities.argmax(axis=1),
        names=tuple(dataset.path_of(item) or f"image {n}" for n, item in enumerate(items)),
        images=tuple(item.image for item in items),
        gallery_indices=(-1,) * evaluation.n,
    )


def list_held_out(model: Classifier) -> UnseenPredictions | None:
    """Predictions for training images by models that have not seen them; None if the fit made none."""
    rows = [(image, image.held_out) for image in model.training_images_ if image.held_out]
    if not rows:
        return None
    gallery = model.gallery()
    indices = {} if gallery is None else {sha256: index for index, sha256 in enumerate(gallery.sha256)}
    how = model.estimate_.how if model.estimate_ is not None else "held out"
    return UnseenPredictions(
        tested=False,
        basis=f"{pluralize(len(rows), 'training image')}, each predicted without it ({how})",
        truth=np.array([image.label for image, _ in rows], dtype=np.int64),
        predicted=np.array([held.predicted for _, held in rows], dtype=np.int64),
        confidence=np.array([held.probability for _, held in rows]),
        own=np.array([held.own for _, held in rows]),
        zero_shot=None,
        names=tuple(to_printable(image.name) for image, _ in rows),
        images=(),
        gallery_indices=tuple(indices.get(image.sha256, -1) for image, _ in rows),
        missing=missing_classes(recall_by_class(model.training_images_, model.classes_.tolist())),
    )


def collect_training_features(reported: ReportedModel) -> tuple[Tensor, list[int]] | None:
    """Features (n, D) of training images as the head sees them, and their classes; None where none are kept.

    Methods that change the image tower have stored theirs; others make them from the gallery. Some heads take further
    numbers after the D of the whole image, which are dropped.
    """
    method, gallery = reported.model.method_, reported.gallery
    if method.has_frozen_image_tower and gallery is not None:
        with torch.no_grad():
            features = method.adapt_features(gallery.features.to(method.encoder.device)).cpu()
        return features[:, : method.encoder.feature_dim], list(gallery.labels)
    kept = method.stored_training_features()
    return None if kept is None else (kept[0].cpu(), kept[1].tolist())
