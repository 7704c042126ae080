"""What the parts of one fit share, as one value instead of six arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dca.backbones.encoder import Encoder
from dca.core.choices import Rules
from dca.core.files import explain_write_errors
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.methods.base import Fitter, Problem
from dca.training.resume import FOLDS, EpochCallback
from dca.training.session import Session
from dca.training.support import ImageSupport


@dataclass(frozen=True, kw_only=True)
class FitContext:
    """Where and how one fit runs; its parts (folds, candidates, fits inside a fit) have contexts derived from it.

    Args:
        session: Loads images and features, and receives progress.
        encoder: The backbone.
        seed: Decides initial values, the order of images, augmentation and folds.
        rules: "paper" allows options that the authors of a method chose per dataset, "strict" does not.
        folder: Where the state of training is kept, so that an interrupted fit continues; None keeps none.
        on_epoch: Receives the metrics of each epoch.
        fits: Number of fits of this length to come, this one included, for the notice that training takes long.
    """

    session: Session
    encoder: Encoder
    seed: int
    rules: Rules = "strict"
    folder: Path | None = None
    on_epoch: EpochCallback | None = None
    fits: int = 1

    @property
    def progress(self) -> Progress:
        """Receives the progress of the fit."""
        return self.session.progress

    def with_progress(self, rename: Callable[[Progress], Progress]) -> Self:
        """The same context with another receiver of progress, made from the present one."""
        return dataclasses.replace(self, session=self.session.with_progress(rename(self.progress)))

    def part(self, name: str, *, fits: int = 1) -> Self:
        """The context of a part of this fit: its state is kept in a folder of its own, and its epochs are not shown."""
        folder = None if self.folder is None else self.folder / FOLDS / name
        if folder is not None:
            with explain_write_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        return dataclasses.replace(self, folder=folder, on_epoch=None, fits=fits)

    def problem(self, dataset: Dataset) -> Problem:
        """The problem that a drawn dataset poses."""
        return make_problem(dataset, self.seed, self.rules)

    def support(self, dataset: Dataset, fitter: Fitter | None = None) -> ImageSupport:
        """The training images of a drawn dataset, with its validation images, as methods see them."""
        validation = ImageSupport(dataset.val, self.session, self.encoder, self.seed) if dataset.val else None
        return ImageSupport(dataset.train, self.session, self.encoder, self.seed, validation, fitter)


def make_problem(dataset: Dataset, seed: int, rules: Rules) -> Problem:
    """The problem that a drawn dataset poses; its shots are the mean number of images per class."""
    return Problem(
        names=dataset.names,
        shots=max(len(dataset.train) // len(dataset.names), 1),
        seed=seed,
        dataset=dataset.public,
        template=dataset.template,
        rules=rules,
    )


def prefix_progress(progress: Progress, name: str) -> Progress:
    """Progress whose notes say which of several fits is running."""
    if progress is silent:
        return silent

    def report(stage: str, done: int, total: int, note: str) -> None:
        progress(stage, done, total, f"{name}  {note}".rstrip())

    return report


def fold_progress(progress: Progress, fold: int, K: int) -> Progress:
    """Progress that says which fold is being fitted."""
    if progress is silent:
        return silent

    def report(stage: str, done: int, total: int, note: str) -> None:
        progress("validating", done, total, f"fold {fold + 1}/{K}  {stage}  {note}".rstrip())

    return report
