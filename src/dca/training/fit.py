"""Fitting one method on one drawn dataset."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dca.core.options import replace_options
from dca.datasets.dataset import Dataset
from dca.methods.base import Fitter, Method, TrainedMethod, TrainingOptions
from dca.training.context import FitContext, prefix_progress
from dca.training.loop import StepProgress, Trainer
from dca.training.resume import STATE, EpochMetrics, write_metrics
from dca.training.support import ImageSupport


def fit(
    kind: type[Method], options: TrainingOptions, dataset: Dataset, context: FitContext, *, fitter: Fitter | None = None
) -> tuple[Method, list[EpochMetrics]]:
    """Learn from all training images of a dataset, in their order.

    Of several candidates of a method (`TrainedMethod.candidate_options`) each is fitted, and the first one with the
    highest accuracy on the validation images is kept.

    Args:
        kind: The method.
        options: Its options; values that are left open are filled in.
        dataset: The drawn training and validation images.
        context: Where and how the fit runs. Of several candidates, the epochs of the best one are shown at the end.
        fitter: Fits other methods for one that is made of others; see `held_out.NestedFits`.

    Returns:
        The finished method, and one row of metrics per epoch (none for methods without epochs).

    Raises:
        UserError: If options do not fit the problem, an image cannot be read, or training diverges.
    """
    problem, support = context.problem(dataset), context.support(dataset, fitter)
    selects = support.validation is not None and issubclass(kind, TrainedMethod)
    candidates = kind.candidate_options(options, problem) if selects else [options]  # type: ignore[attr-defined]
    if len(candidates) == 1:
        return _train_and_finish(kind.build(context.encoder, problem, candidates[0]), support, context)
    methods = (kind.build(context.encoder, problem, candidate) for candidate in candidates)
    method, metrics = _fit_best(methods, len(candidates), support, context)
    if context.on_epoch:
        for row in metrics:
            context.on_epoch(row)
    return method, metrics


def _fit_best(
    methods: Iterator[Method], count: int, support: ImageSupport, context: FitContext
) -> tuple[Method, list[EpochMetrics]]:
    """Fit all methods and return the first one with the highest accuracy on the validation images."""
    best: tuple[float, Method, list[EpochMetrics]] | None = None
    for number, method in enumerate(methods, 1):
        assert isinstance(method, TrainedMethod)
        own = context.part(f"candidate-{number}-of-{count}", fits=context.fits * (count + 1 - number))
        own = own.with_progress(partial(prefix_progress, name=f"candidate {number}/{count}"))
        _, metrics = _train_and_finish(method, support, own)
        if best is None or method.validation_accuracy > best[0]:
            best = method.validation_accuracy, method, metrics
    assert best is not None
    if context.folder is not None:
        write_metrics(context.folder, best[2])
    return best[1:]


def _train_and_finish(method: Method, support: ImageSupport, context: FitContext) -> tuple[Method, list[EpochMetrics]]:
    """Train one method and finish it."""
    metrics = _train(method, support, context)
    context.progress("fitting", 0, 1, method.name)
    method.finish(support)
    context.progress("fitting", 1, 1, method.name)
    return method.build_head(), metrics


def _train(method: Method, support: ImageSupport, context: FitContext) -> list[EpochMetrics]:
    """Run the training loop, for methods that have steps."""
    if not isinstance(method, TrainedMethod):
        method.prepare(support)
        return []
    pace = context.session.time_notice.start_timer(context.progress, context.fits)
    # A fit that continues has fewer steps to go than all, which are known only after the trial steps.
    continues = context.folder is not None and (context.folder / STATE).is_file()
    trainer = Trainer(method, support, method.options, context.seed, None if continues else pace.step)

    def on_step(step: StepProgress) -> None:
        accuracy = f"training accuracy {100 * step.accuracy:.0f} %"
        note = f"epoch {step.epoch}/{step.epochs}  loss {step.loss:.3f}  {accuracy}"
        context.progress("training", step.done, step.total, note)
        pace.step(step.done, step.total)

    metrics = trainer.run(context.folder, on_step, context.on_epoch)
    method.options = replace_options(method.options, learning_rate=trainer.rate)
    return metrics
