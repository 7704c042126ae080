"""Fitting one method on one drawn dataset."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dca.clip import CLIP
from dca.core.progress import Progress
from dca.data.dataset import Dataset
from dca.data.protocols import Selection
from dca.engine.loop import Tick, Trainer
from dca.engine.resume import STATE, Row
from dca.engine.session import Session
from dca.engine.time_notice import Pace
from dca.engine.training_images import TrainingImages
from dca.methods.interface import Method, Problem, TrainedMethod
from dca.methods.problem import Nested
from dca.methods.recipe import Recipe


def problem_of(dataset: Dataset, seed: int, selection: Selection = "strict") -> Problem:
    """The problem that a drawn dataset poses; its shots are the mean number of images per class."""
    return Problem(
        names=dataset.names,
        shots=max(len(dataset.train) // len(dataset.names), 1),
        seed=seed,
        dataset=dataset.public,
        template=dataset.template,
        selection=selection,
    )


def fit(
    kind: type[Method],
    chosen: Recipe,
    source: Dataset,
    session: Session,
    clip: CLIP,
    *,
    seed: int,
    selection: Selection = "strict",
    folder: Path | None = None,
    nested: Nested | None = None,
    fits: int = 1,
) -> tuple[Method, list[Row]]:
    """Learn from all training images of `source`, in their order.

    Args:
        kind: The method.
        chosen: Its options; values that are left open are filled in.
        source: The drawn training and validation images.
        session: Loads images and features, and receives progress.
        clip: The backbone.
        seed: Decides initial values, the order of images and augmentation.
        selection: "paper" allows values that the authors of a method chose per dataset, "strict" does not.
        folder: Where the state of training is kept, so that an interrupted fit continues.
        nested: Fits other methods for one that is made of others; see `engine.nested`.
        fits: Number of fits of this length to come, this one included, for the notice that training takes long.

    Returns:
        The finished method, and one row of metrics per epoch (none for methods without epochs).

    Raises:
        UserError: If options do not fit the problem, an image cannot be read, or training diverges.
    """
    method = kind.build(clip, problem_of(source, seed, selection), chosen)
    validation = TrainingImages(source.val, session, clip, seed) if source.val else None
    images = TrainingImages(source.train, session, clip, seed, validation, nested)
    rows = _train(method, images, seed, folder, session.progress, session.time_notice.pace(session.progress, fits))
    session.progress("fitting", 0, 1, method.name)
    method.finish(images)
    session.progress("fitting", 1, 1, method.name)
    return method.seal(), rows


def _train(
    method: Method, images: TrainingImages, seed: int, folder: Path | None, progress: Progress, pace: Pace
) -> list[Row]:
    """Run the training loop, for methods that have steps."""
    if not isinstance(method, TrainedMethod):
        method.prepare(images)
        return []
    # A fit that continues has fewer steps to go than all, which are known only after the trial steps.
    continues = folder is not None and (folder / STATE).is_file()
    trainer = Trainer(method, images, method.options, seed, None if continues else pace.step)

    def watch(tick: Tick) -> None:
        accuracy = f"training accuracy {100 * tick.accuracy:.0f} %"
        note = f"epoch {tick.epoch}/{tick.epochs}  loss {tick.loss:.3f}  {accuracy}"
        progress("training", tick.done, tick.total, note)
        pace.step(tick.done, tick.total)

    rows = trainer.run(folder, watch)
    method.options = dataclasses.replace(method.options, learning_rate=trainer.rate)
    return rows
