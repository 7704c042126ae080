"""Predictions for the training images by models that have not seen them, and fits inside a fit.

A method that knows held-out predictions in closed form gives them itself (`Method.predict_held_out`); any other one is
cross-validated: the training images are divided into K folds, and each fold is predicted by a model that was fitted on
the others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dca.core import seeds
from dca.core.errors import UserError
from dca.core.files import json_digest, write_bytes
from dca.datasets.dataset import Dataset
from dca.methods.base import HeldOutPredictions, Method, TrainedMethod, TrainingOptions
from dca.methods.registry import choose_encoder
from dca.stats.folds import assign_folds, fold_shortage, number_of_folds
from dca.training.context import FitContext, fold_progress, prefix_progress
from dca.training.evaluate import predict_probabilities
from dca.training.fit import fit
from dca.training.resume import STATE
from dca.training.support import ImageSupport

MOST_FOLDS = 5
# What is kept of a finished fold.
PREDICTED = "predicted.safetensors"


class NothingHeldOutError(UserError):
    """No training image can be left out."""


def predict_held_out(
    method: Method, options: TrainingOptions, dataset: Dataset, context: FitContext
) -> HeldOutPredictions:
    """Predictions for all training images of a dataset by models that have not seen them.

    Args:
        method: The method, fitted on all training images.
        options: Its options as they were given to `fit`; folds keep what a search has found
            (`Method.options_for_folds`).
        dataset: The drawn training and validation images; all folds use the same validation images.
        context: That of the fit; its folder keeps the folds until the fit is finished.

    Returns:
        One row of probabilities per training image.

    Raises:
        NothingHeldOutError: If every class has one training image, or copies or a series of one.
        UserError: As for `fit`.
    """
    support = context.support(dataset)
    predictions = method.predict_held_out(support)
    if predictions is None:
        predictions = Folds(type(method), method.options_for_folds(options), dataset, context).predictions(support)
    if not predictions.known.any():
        raise NothingHeldOutError(
            "nothing can be held out: every class has one training image, or copies or a series of one"
        )
    return predictions


def count_fits(kind: type[Method], source: Dataset, *, estimate: bool) -> int:
    """About how many times as long as the fit alone it takes with the estimate: K folds of (K - 1) / K of the images.

    Methods that are not trained count as one: most know their held-out predictions.
    """
    if not (estimate and issubclass(kind, TrainedMethod)):
        return 1
    labels = np.array([item.label for item in source.train])
    return number_of_folds(labels, np.arange(len(labels)), MOST_FOLDS)


@dataclass(frozen=True)
class Folds:
    """Fits a method on all folds but one, each in turn, and predicts the one; fields as for `predict_held_out`."""

    kind: type[Method]
    options: TrainingOptions
    dataset: Dataset
    context: FitContext

    def predictions(self, support: ImageSupport, most: int = MOST_FOLDS) -> HeldOutPredictions:
        """Cross-validation of the training images in at most `most` folds."""
        labels, groups = support.labels.cpu().numpy(), support.groups.cpu().numpy()
        K = number_of_folds(labels, groups, most)
        order = torch.randperm(len(labels), generator=seeds.generator(self.context.seed, "folds")).numpy()
        left_out = assign_folds(labels, groups, order, K)
        probabilities = self.predict_folds(left_out)
        return HeldOutPredictions(probabilities, f"{K}-fold cross-validation", fold_shortage(labels, groups, left_out))

    def predict_folds(self, left_out: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Probabilities (N, C) of all images, the mean over folds that leave an image out; NaN where none does.

        left_out: (K, N), of `stats.folds.assign_folds`.
        """
        K, N = left_out.shape
        total, times = np.zeros((N, len(self.dataset.names))), left_out.sum(axis=0)
        for fold, out in enumerate(left_out):
            if out.any():
                context = self.context.with_progress(partial(fold_progress, fold=fold, K=K))
                total[out] += self.predict(out, context.part(f"{fold + 1}-of-{K}", fits=K - fold))
        total[times == 0] = np.nan
        total /= times.clip(min=1)[:, None]
        return total

    def predict(self, left_out: NDArray[np.bool_], context: FitContext) -> NDArray[np.float64]:
        """Probabilities (n, C) of the n images left out; a finished fold in the context's folder is read there."""
        session, folder = context.session, context.folder
        rest = tuple(item for item, out in zip(self.dataset.train, left_out, strict=True) if not out)
        images = [item.image for item, out in zip(self.dataset.train, left_out, strict=True) if out]
        content = json_digest([session.hash_images(images), session.hash_images([item.image for item in rest])])
        if folder and (folder / PREDICTED).is_file():
            return read_fold(folder, content, (len(images), len(self.dataset.names)))
        context.progress("fitting", 0, 1, "")
        method, _ = fit(self.kind, self.options, dataclasses.replace(self.dataset, train=rest), context)
        (probabilities,) = predict_probabilities([method], images, session, stage="predicting")
        if folder:
            tensors = {"probabilities": torch.from_numpy(probabilities)}
            write_bytes(folder / PREDICTED, save(tensors, {"content": content}))
            (folder / STATE).unlink(missing_ok=True)
        return probabilities


def read_fold(folder: Path, content: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    """The probabilities of a finished fold.

    content: hash of the images left out and of the others. shape: (n, C).
    """
    try:
        with safe_open(folder / PREDICTED, framework="pt") as file:
            found: NDArray[np.float64] = file.get_tensor("probabilities").numpy()
            same = (file.metadata() or {}).get("content") == content
        if not same or found.shape != shape or found.dtype != np.float64 or not np.isfinite(found).all():
            raise ValueError("predictions of other images")
    except (SafetensorError, ValueError, OSError) as error:
        raise UserError(
            f"{folder}: the interrupted cross-validation cannot be continued ({error})",
            hint="delete that folder to fit this part again",
        ) from None
    return found


@dataclass(frozen=True)
class NestedFits:
    """Fits other methods on the training images of a fit; see `methods.base.Fitter`.

    The state of a nested fit is that of the run: the context's folder holds one of them, and the folds beside it.
    """

    dataset: Dataset
    context: FitContext

    def fit(self, kind: type[Method], options: TrainingOptions) -> Method:
        """The finished method `kind`, fitted on all training images."""
        method, _ = fit(kind, options, self.dataset, self._context_of(kind))
        return method

    def predict_held_out(self, kind: type[Method], options: TrainingOptions, folds: int) -> HeldOutPredictions:
        """Predictions by the method's own way where it has one, else by cross-validation in at most `folds` folds."""
        context = self._context_of(kind)
        support = ImageSupport(self.dataset.train, context.session, context.encoder, context.seed)
        own = (
            None
            if kind.predict_held_out is Method.predict_held_out
            else self.fit(kind, options).predict_held_out(support)
        )
        return own if own is not None else Folds(kind, options, self.dataset, context).predictions(support, folds)

    def _context_of(self, kind: type[Method]) -> FitContext:
        """The context of a nested fit, whose progress names the method."""
        context = self.context.with_progress(partial(prefix_progress, name=kind.name))
        encoder = choose_encoder(kind, context.encoder)
        return dataclasses.replace(context, encoder=encoder, on_epoch=None, fits=1)
