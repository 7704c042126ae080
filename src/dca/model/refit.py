"""Fit a model again with further labelled images, from stored features and without the original images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.core.errors import UserError
from dca.core.text import pluralize
from dca.datasets.corrections import extend_classes
from dca.datasets.dataset import Dataset, LabelledImage
from dca.features.store import MemoryStore
from dca.images.decode import StoredImage
from dca.methods.base import TrainedMethod
from dca.model.classifier import Classifier
from dca.model.gallery import Gallery
from dca.training.features import feature_space
from dca.training.session import Session


@dataclass(frozen=True)
class LabelledFeatures:
    """A labelled image. features: (D,) of the frozen backbone, not normalised."""

    image: StoredImage
    label: str
    features: Tensor


class Refitter:
    """Fits a model again on its training images, known by their stored features, and on further examples.

    Args:
        model: A fitted classifier.

    Attributes:
        obstacle: Why this model cannot be fitted again without its training images; "" if it can.
    """

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self.obstacle = _find_obstacle(model)
        self._store = MemoryStore()
        self._session = Session(device=str(model.method_.encoder.device), store=self._store)
        gallery = model.gallery()
        if gallery is not None:
            rows = zip(gallery.sha256, gallery.names, gallery.jpegs, strict=True)
            self._images = {row[0]: StoredImage(*row) for row in rows}
            self._add_features(self._store, gallery.sha256, gallery.features)
        self._other = tuple(StoredImage(image.sha256, image.name, b"") for image in model.other_images_)
        stored = model.method_.stored_other_features()
        if stored is not None:
            self._add_features(self._store, [image.sha256 for image in self._other], stored)

    def refit(self, examples: Sequence[LabelledFeatures]) -> Classifier:
        """Fit the model on all images; an example replaces a training image of the same content.

        Args:
            examples: The further images; a label that the model does not have becomes a class.

        Returns:
            Another classifier.

        Raises:
            UserError: If the model cannot be fitted again, or a class would have no image left.
        """
        if self.obstacle:
            raise UserError(self.obstacle, hint="fit it again on all images")
        model, method = self.model, self.model.method_
        # A store of its own: the features of examples that are given once would stay, with those of all the others.
        store = MemoryStore(self._store)
        self._add_features(store, [example.image.sha256 for example in examples], _stack_features(examples))
        other = Classifier(
            model.method,
            seed=model.seed,
            backbone=method.encoder,
            precision=model.precision,
            estimate=model.estimate,
            calibrate=model.calibrate,
            **model.method_options,
        )
        other._fit_drawn(self._source(examples), self._session.with_store(store), rules=method.problem.rules)
        other.gallery_ = self._gallery(examples).select(other.training_images_)
        return other

    def _add_features(self, store: MemoryStore, contents: Sequence[str], features: Tensor) -> None:
        """Store features (n, D) of images where a fit looks for them: those of each encoder apart."""
        encoder = self.model.method_.encoder
        for member in encoder.members if contents else ():
            store.add(feature_space(member), contents, encoder.take_features(member, features))

    def _gallery(self, examples: Sequence[LabelledFeatures]) -> Gallery:
        """The training images and the examples; their class indices are not those of the new model yet."""
        own = self.model.gallery()
        assert own is not None
        replaced = {example.image.sha256 for example in examples}
        kept = own.select([image for image in self.model.training_images_ if image.sha256 not in replaced])
        images = [example.image for example in examples]
        added = Gallery(
            _stack_features(examples).view(len(examples), own.features.shape[1]),
            (0,) * len(images),
            tuple(image.sha256 for image in images),
            tuple(image.name for image in images),
            tuple(image.thumbnail for image in images),
        )
        return kept.concatenate(added)

    def _source(self, examples: Sequence[LabelledFeatures]) -> Dataset:
        """The training images of the model and the examples."""
        model, problem = self.model, self.model.method_.problem
        wanted = [example.label for example in examples]
        labels, names, index = extend_classes(model.classes_.tolist(), problem.names, wanted)
        replaced = {example.image.sha256 for example in examples}
        kept = [
            LabelledImage(self._images[image.sha256], image.label)
            for image in model.training_images_
            if image.sha256 not in replaced
        ]
        added = [LabelledImage(example.image, c) for example, c in zip(examples, index, strict=True)]
        train = (*kept, *added)
        other = tuple(image for image in self._other if image.sha256 not in replaced)
        return Dataset(
            "training images", labels, names, train, other=other, template=problem.template, public=problem.dataset
        )


def _stack_features(examples: Sequence[LabelledFeatures]) -> Tensor:
    return torch.stack([example.features for example in examples]) if examples else torch.empty(0, 0)


def _find_obstacle(model: Classifier) -> str:
    """Why a model cannot be fitted again from the stored features of its training images; "" if it can."""
    method, gallery = model.method_, model.gallery()
    if isinstance(method, TrainedMethod) or method.fits_others:
        return f"{method.name} is trained on the images themselves"
    if getattr(method.options, "views", 0):
        return f"{method.name} uses augmented views of the training images"
    if gallery is None:
        return "the features of the training images were not saved with the model"
    missing = {image.sha256 for image in model.training_images_} - set(gallery.sha256)
    if missing:
        return f"the features of {pluralize(len(missing), 'training image')} were not saved with the model"
    return ""
