"""The notice that training will take long, given early and once.

Fitting one method on one drawn dataset.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

from dca.backbones.clip import CLIP
from dca.core.files import explain_write_errors
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.datasets.protocols import Rules
from dca.methods.base import Fitter, Method, Problem, TrainedMethod, TrainingOptions
from dca.training.loop import StepProgress, Trainer
from dca.training.resume import FOLDS, STATE, EpochCallback, EpochMetrics, write_metrics
from dca.training.session import Pace, Session
from dca.training.training_images import TrainingImages

log = logging.getLogger(__name__)


def problem_of(dataset: Dataset, seed: int, rules: Rules = "strict") -> Problem:
    """The problem that a drawn dataset poses; its shots are the mean number of images per class."""
    return Problem(
        names=dataset.names,
        shots=max(len(dataset.train) // len(dataset.names), 1),
        seed=seed,
        dataset=dataset.public,
        template=dataset.template,
        rules=rules,
    )


def fit(
    kind: type[Method],
    chosen: TrainingOptions,
    source: Dataset,
    session: Session,
    clip: CLIP,
    *,
    seed: int,
    rules: Rules = "strict",
    folder: Path | None = None,
    nested: Fitter | None = None,
    fits: int = 1,
    follow: EpochCallback | None = None,
) -> tuple[Method, list[EpochMetrics]]:
    """Learn from all training images of `source`, in their order.

    Of several candidates of a method (`TrainedMethod.candidate_options`) each is fitted, and the first one with the
    highest accuracy on the validation images is kept.

    Args:
        kind: The method.
        chosen: Its options; values that are left open are filled in.
        source: The drawn training and validation images.
        session: Loads images and features, and receives progress.
        clip: The backbone.
        seed: Decides initial values, the order of images and augmentation.
        rules: "paper" allows values that the authors of a method chose per dataset, "strict" does not.
        folder: Where the state of training is kept, so that an interrupted fit continues.
        nested: Fits other methods for one that is made of others; see `engine.nested`.
        fits: Number of fits of this length to come, this one included, for the notice that training takes long.
        follow: Receives the row of each epoch; of several candidates, the rows of the best one at the end.

    Returns:
        The finished method, and one row of metrics per epoch (none for methods without epochs).

    Raises:
        UserError: If options do not fit the problem, an image cannot be read, or training diverges.
    """
    problem = problem_of(source, seed, rules)
    validation = TrainingImages(source.val, session, clip, seed) if source.val else None
    images = TrainingImages(source.train, session, clip, seed, validation, nested)
    tried = kind.candidate_options(chosen, problem) if validation and issubclass(kind, TrainedMethod) else [chosen]
    if len(tried) == 1:
        return _fit(kind.build(clip, problem, tried[0]), images, seed, folder, session.progress, fits, follow)
    made = (kind.build(clip, problem, candidate) for candidate in tried)
    method, rows = _best_of(made, len(tried), images, seed, folder, fits)
    if follow:
        for row in rows:
            follow(row)
    return method, rows


def _best_of(
    methods: Iterator[Method], count: int, images: TrainingImages, seed: int, folder: Path | None, fits: int
) -> tuple[Method, list[EpochMetrics]]:
    """Fit all methods and return the first one with the highest accuracy on the validation images."""
    best: tuple[float, Method, list[EpochMetrics]] | None = None
    for number, method in enumerate(methods, 1):
        assert isinstance(method, TrainedMethod)
        place = _place(folder, f"candidate-{number}-of-{count}")
        progress = prefix_progress(images.session.progress, f"candidate {number}/{count}")
        _, rows = _fit(method, images, seed, place, progress, fits * (count + 1 - number))
        if best is None or method.validation_accuracy > best[0]:
            best = method.validation_accuracy, method, rows
    assert best is not None
    if folder is not None:
        write_metrics(folder, best[2])
    return best[1:]


def _place(folder: Path | None, name: str) -> Path | None:
    """A folder for a fit that is part of a run, made if it is missing."""
    if folder is None:
        return None
    place = folder / FOLDS / name
    with explain_write_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    return place


def prefix_progress(progress: Progress, name: str) -> Progress:
    """Progress that says which of several fits is running."""
    if progress is silent:
        return silent

    def report(stage: str, done: int, total: int, note: str) -> None:
        progress(stage, done, total, f"{name}  {note}".rstrip())

    return report


def _fit(
    method: Method,
    images: TrainingImages,
    seed: int,
    folder: Path | None,
    progress: Progress,
    fits: int,
    follow: EpochCallback | None = None,
) -> tuple[Method, list[EpochMetrics]]:
    """Train one method and finish it."""
    rows = _train(method, images, seed, folder, progress, images.session.time_notice.pace(progress, fits), follow)
    progress("fitting", 0, 1, method.name)
    method.finish(images)
    progress("fitting", 1, 1, method.name)
    return method.build_head(), rows


def _train(
    method: Method,
    images: TrainingImages,
    seed: int,
    folder: Path | None,
    progress: Progress,
    pace: Pace,
    follow: EpochCallback | None,
) -> list[EpochMetrics]:
    """Run the training loop, for methods that have steps."""
    if not isinstance(method, TrainedMethod):
        method.prepare(images)
        return []
    # A fit that continues has fewer steps to go than all, which are known only after the trial steps.
    continues = folder is not None and (folder / STATE).is_file()
    trainer = Trainer(method, images, method.options, seed, None if continues else pace.step)

    def watch(tick: StepProgress) -> None:
        accuracy = f"training accuracy {100 * tick.accuracy:.0f} %"
        note = f"epoch {tick.epoch}/{tick.epochs}  loss {tick.loss:.3f}  {accuracy}"
        progress("training", tick.done, tick.total, note)
        pace.step(tick.done, tick.total)

    rows = trainer.run(folder, watch, follow)
    method.options = dataclasses.replace(method.options, learning_rate=trainer.rate)
    return rows
