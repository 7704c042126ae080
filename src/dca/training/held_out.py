"""Predictions for the training images by models that have not seen them.

A method that knows them in closed form gives them itself (`Method.predict_held_out`); any other one is
cross-validated: the training images are divided into K folds, and each fold is predicted by a model that was fitted on
the others.

Fits of other methods inside a fit, for methods that are made of others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.core.errors import UserError
from dca.core.files import explain_write_errors, json_digest, write_bytes
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.datasets.protocols import Rules
from dca.methods.base import HeldOutPredictions, Method, TrainedMethod, TrainingOptions
from dca.training.evaluate import predict_probabilities
from dca.training.fit import fit, prefix_progress
from dca.training.resume import FOLDS, STATE
from dca.training.session import Session
from dca.training.training_images import TrainingImages

MOST_FOLDS = 5
# What is kept of a finished fold.
PREDICTED = "predicted.safetensors"
Labels = NDArray[np.int64]


class NothingHeldOutError(UserError):
    """No training image can be left out."""


def held_out(
    method: Method,
    chosen: TrainingOptions,
    source: Dataset,
    session: Session,
    clip: CLIP,
    *,
    seed: int,
    rules: Rules = "strict",
    folder: Path | None = None,
) -> HeldOutPredictions:
    """Predictions for all training images of `source` by models that have not seen them.

    Args:
        method: The method, fitted on all training images.
        chosen: Its options as they were given to `fit`; folds keep what a search has found, see
            `Method.options_for_folds`.
        source: The drawn training and validation images; all folds use the same validation images.
        session: Loads images and features, and receives progress.
        clip: The backbone.
        seed: Decides the folds and their training.
        rules: As for `fit`.
        folder: Where the folds are kept until the fit is finished, so that an interrupted one continues.

    Returns:
        One row of probabilities per training image.

    Raises:
        NothingHeldOutError: If every class has one training image, or copies of one.
        UserError: As for `fit`.
    """
    validation = TrainingImages(source.val, session, clip, seed) if source.val else None
    images = TrainingImages(source.train, session, clip, seed, validation)
    found = method.predict_held_out(images)
    if found is None:
        each = Folds(type(method), method.options_for_folds(chosen), source, session, clip, seed, rules, folder)
        found = each.predictions(images)
    if not found.known.any():
        raise NothingHeldOutError("nothing can be held out: every class has one training image, or copies of one")
    return found


def count_fits(kind: type[Method], source: Dataset, *, estimate: bool) -> int:
    """About how many times as long as the fit alone it takes with the estimate: K folds of (K - 1) / K of the images.

    Methods that are not trained count as one: most know their held-out predictions.
    """
    if not (estimate and issubclass(kind, TrainedMethod)):
        return 1
    labels = np.array([item.label for item in source.train])
    return number_of_folds(labels, np.arange(len(labels)))


def number_of_folds(labels: Labels, groups: Labels, most: int = MOST_FOLDS) -> int:
    """K: `most`, or the largest number of groups that a class has, and at least 2. labels, groups: (N,)."""
    _, counts = np.unique(np.unique(np.stack([labels, groups]), axis=1)[0], return_counts=True)
    return max(2, min(most, int(counts.max(initial=0))))


def assign_folds(labels: Labels, groups: Labels, K: int, seed: int) -> Labels:
    """Fold of each image, (N,): 0 to K - 1, or -1 for images that always stay in training.

    labels, groups: (N,). The groups of each class are dealt out to the folds in random order, each class going on where
    the one before it stopped, so that folds are about equally large. Images of a group are in one fold. Every class
    keeps an image in training: classes of a single group stay there. Classes follow each other as their first images
    do, so that their numbers do not matter.
    """
    members: dict[int, set[int]] = {}  # group -> its classes, the first image's first
    of_class: dict[int, list[int]] = {}
    for label, group in zip(labels.tolist(), groups.tolist(), strict=True):
        if group not in members:
            of_class.setdefault(label, []).append(group)
        members.setdefault(group, set()).add(label)
    fold_of: dict[int, int] = {}
    for number, own in enumerate(of_class.values()):
        for place in torch.randperm(len(own), generator=seeds.generator(seed, "folds", number)).tolist():
            fold_of[own[place]] = len(fold_of) % K
    for label in dict.fromkeys(labels.tolist()):
        own = [group for group, classes in members.items() if label in classes]
        if len({fold_of[group] for group in own}) == 1 and fold_of[own[0]] >= 0:
            fold_of[own[0]] = -1
    return np.array([fold_of[group] for group in groups.tolist()], dtype=np.int64)


def fold_progress(progress: Progress, fold: int, K: int) -> Progress:
    """Progress that says which fold is being fitted."""
    if progress is silent:
        return silent

    def report(stage: str, done: int, total: int, note: str) -> None:
        progress("validating", done, total, f"fold {fold + 1}/{K}  {stage}  {note}".rstrip())

    return report


@dataclass(frozen=True)
class Folds:
    """What the fits of all folds share; see `held_out`."""

    kind: type[Method]
    chosen: TrainingOptions
    source: Dataset
    session: Session
    clip: CLIP
    seed: int
    rules: Rules
    folder: Path | None

    def predictions(self, images: TrainingImages, most: int = MOST_FOLDS) -> HeldOutPredictions:
        """Cross-validation of the training images in at most so many folds."""
        labels, groups = images.labels.cpu().numpy(), images.groups.cpu().numpy()
        K = number_of_folds(labels, groups, most)
        return HeldOutPredictions(
            self.gather(assign_folds(labels, groups, K, self.seed), K), f"{K}-fold cross-validation"
        )

    def gather(self, numbers: Labels, K: int) -> NDArray[np.float64]:
        """Probabilities (N, C) of all images; NaN for images in no fold. numbers: (N,) fold of each image."""
        found = np.full((len(numbers), len(self.source.names)), np.nan)
        for fold in range(K):
            if (left_out := numbers == fold).any():
                session = self.session.with_progress(fold_progress(self.session.progress, fold, K))
                place = self.folder / FOLDS / f"{fold + 1}-of-{K}" if self.folder else None
                found[left_out] = self.predict(left_out, session, place, fits=K - fold)
        return found

    def predict(
        self, left_out: NDArray[np.bool_], session: Session, place: Path | None, fits: int = 1
    ) -> NDArray[np.float64]:
        """Probabilities (n, C) of the n images left out; what is finished in the folder `place` is read there.

        fits: folds to come, this one included.
        """
        rest = tuple(item for item, out in zip(self.source.train, left_out, strict=True) if not out)
        images = [item.image for item, out in zip(self.source.train, left_out, strict=True) if out]
        content = json_digest([session.sha256_all(images), session.sha256_all([item.image for item in rest])])
        shape = (len(images), len(self.source.names))
        if place and (place / PREDICTED).is_file():
            return read_predicted(place, content, shape)
        if place:
            with explain_write_errors(place):
                place.mkdir(parents=True, exist_ok=True)
        session.progress("fitting", 0, 1, "")
        part = dataclasses.replace(self.source, train=rest)
        shared: dict[str, Any] = {"seed": self.seed, "rules": self.rules}
        method, _ = fit(self.kind, self.chosen, part, session, self.clip, folder=place, fits=fits, **shared)
        (found,) = predict_probabilities([method], images, session, stage="predicting")
        if place:
            write_bytes(place / PREDICTED, save({"probabilities": torch.from_numpy(found)}, {"content": content}))
            (place / STATE).unlink(missing_ok=True)
        return found


def read_predicted(folder: Path, content: str, shape: tuple[int, int]) -> NDArray[np.float64]:
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
    """Fits on the training images of one fit; see `methods.problem.Nested`. The fields are those of `engine.fit`.

    The state of a nested fit is that of the run: `folder` holds one of them, and the folds beside it.
    """

    source: Dataset
    session: Session
    clip: CLIP
    seed: int
    rules: Rules = "strict"
    folder: Path | None = None

    def fit(self, kind: type[Method], chosen: TrainingOptions) -> Method:
        """The finished method `kind`, fitted on all training images."""
        session = self._named(kind)
        method, _ = fit(
            kind,
            chosen,
            self.source,
            session,
            self.clip,
            seed=self.seed,
            rules=self.rules,
            folder=self.folder,
        )
        return method

    def predict_held_out(self, kind: type[Method], chosen: TrainingOptions, folds: int) -> HeldOutPredictions:
        """Predictions by the method's own way where it has one, else by cross-validation in at most `folds` folds."""
        session = self._named(kind)
        images = TrainingImages(self.source.train, session, self.clip, self.seed)
        exact = kind.predict_held_out is not Method.predict_held_out
        own = self.fit(kind, chosen).predict_held_out(images) if exact else None
        if own is not None:
            return own
        each = Folds(kind, chosen, self.source, session, self.clip, self.seed, self.rules, self.folder)
        return each.predictions(images, folds)

    def _named(self, kind: type[Method]) -> Session:
        return self.session.with_progress(prefix_progress(self.session.progress, kind.name))
