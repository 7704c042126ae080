"""A run: draw, fit, test and record, in a folder that an interrupted run continues from.

`run` fits a `FitSpec`. `run_task` is what it has in common with other programs, such as a study, which make their tasks
themselves: it knows folders, locks, records and callbacks, and nothing of protocols.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.core.device import require_device
from dca.core.errors import UserError
from dca.core.files import exclusive_lock, write_json
from dca.core.hints import omit
from dca.core.progress import Progress, silent
from dca.datasets.classes import name_warnings
from dca.datasets.corrections import CORRECTIONS, add_corrections, read_corrections
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_training_part, hold_out
from dca.datasets.task import Task, make_target
from dca.images.decode import ImageLike, Unreadable, unreadable_error
from dca.methods.base import TrainedMethod
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.model.findings import examine_training
from dca.model.inputs import as_dataset, as_images, require_learnable, require_shots
from dca.runs.evaluate import TargetEvaluation, evaluate
from dca.runs.folder import RunFolder, identify
from dca.runs.plots import plot_run
from dca.runs.result import RunResult, record_targets
from dca.runs.spec import FitSpec
from dca.training.resume import EpochMetrics
from dca.training.session import Session

# From the data of a run, what is learned from first, to its task.
MakeTask = Callable[[Sequence[Dataset]], Task]


class RunCallbacks:
    """Functions that are called as a run goes on; these do nothing. A run that is finished already calls none."""

    def on_start(self, spec: FitSpec, folder: Path) -> None:
        """The run begins or continues; `folder` is where it goes."""

    def on_epoch(self, metrics: EpochMetrics) -> None:
        """An epoch has ended."""

    def on_success(self, result: RunResult) -> None:
        """The run is finished and in its folder."""

    def on_exit(self) -> None:
        """The run has ended, finished or not."""


@dataclass(frozen=True)
class RunOutputs:
    """What a run writes beside the model: plots, and thumbnails and features of the training images."""

    plots: bool = False
    gallery: bool = False


@dataclass(frozen=True)
class FittedRun:
    """A finished run.

    Attributes:
        folder: Folder of the run.
        result: Its figures, as `result.json` holds them.
        evaluations: Evaluations on each target; empty if the run was finished before.
        classifier: The fitted model; None if the run was finished before.
        features: Features of the test images by target, for testing other heads of the model (`runs.evaluate`);
            empty if its head has no options, or the run was finished before.
    """

    folder: Path
    result: RunResult
    evaluations: tuple[TargetEvaluation, ...] = ()
    classifier: Classifier | None = None
    features: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)


def run(
    spec: FitSpec,
    folder: str | Path,
    *,
    dataset: Dataset | None = None,
    session: Session | None = None,
    device: str = "auto",
    overwrite: bool = False,
    skip_bad: bool = False,
    plots: bool = False,
    gallery: bool = False,
    callbacks: RunCallbacks | None = None,
    progress: Progress = silent,
) -> FittedRun:
    """Fit, test and record, and leave a finished model with its figures at `folder`.

    A finished run of the same spec, images and backbone is returned as it is; an interrupted one continues.

    Args:
        spec: What to fit.
        folder: Where the finished run goes; until then it is in `folder` + ".partial".
        dataset: What `spec.data` names, if it is loaded already.
        session: Backbones, images and features shared with other runs; its device is used.
        device: "auto", "cpu", "cuda", ...
        overwrite: Replace a finished run that is there.
        skip_bad: Leave out images that cannot be read before the draw; `result.skipped` names them.
        plots: Plot how the model did into its folder, if matplotlib is installed; `result.plots` names the files.
        gallery: Also write thumbnails and features of the training images.
        callbacks: Called as the run goes on.
        progress: Receives the progress of the run.

    Returns:
        The finished run.

    Raises:
        UserError: If data, spec or folder cannot be used, or another run's model is there.

    Example:
        >>> import tempfile
        >>> from dca.datasets.sample import load_sample
        >>> spec = FitSpec(data="sample", method="zero_shot")
        >>> sample = load_sample(per_class_train=1, per_class_test=2)
        >>> run(spec, tempfile.mkdtemp() + "/model", dataset=sample, device="cpu").result.test_images
        20
    """
    run_folder = prepare_folder(spec, folder, device)
    session = (session or Session(device=device)).with_progress(progress)
    data = [load_data(spec, dataset)]
    outputs = RunOutputs(plots, gallery)
    return run_task(
        spec, partial(make_fit_task, spec), data, run_folder, session,
        outputs=outputs, callbacks=callbacks, overwrite=overwrite, skip_bad=skip_bad,
    )  # fmt: skip


def prepare_folder(spec: FitSpec, folder: str | Path, device: str) -> RunFolder:
    """The folder of a run; raises, before anything is loaded, if it or the device cannot be used."""
    run_folder = RunFolder(Path(folder))
    run_folder.require_usable(spec.data)
    require_device(device, spec.precision)
    return run_folder


def load_data(spec: FitSpec, dataset: Dataset | None = None) -> Dataset:
    """The data of a spec, with its corrections and other images.

    Args:
        spec: What to fit.
        dataset: What `spec.data` names, if it is loaded already.

    Returns:
        The dataset.

    Raises:
        UserError: If there is no such data, the model has no corrections, or there are no other images.
    """
    dataset = dataset if dataset is not None else as_dataset(spec.data, None)
    if spec.other is not None:
        dataset = dataclasses.replace(dataset, other=tuple(as_images(spec.other)))
    if spec.corrections is None:
        return dataset
    corrections = read_corrections(Path(spec.corrections))
    if not corrections:
        raise UserError(f"{spec.corrections} holds no corrections", hint=omit("corrections"))
    return add_corrections(dataset, corrections)


def make_fit_task(spec: FitSpec, data: Sequence[Dataset]) -> Task:
    """The few-shot task of a fit, tested on the test part of the data where there is one.

    Args:
        spec: What to fit.
        data: The dataset, as `load_data` returns it.

    Returns:
        The task.

    Raises:
        UserError: If nothing can be learned from the data, or a class has no images.
    """
    (dataset,) = data
    require_learnable(dataset)
    return draw_task(spec, hold_out_test_part(spec, dataset))


def hold_out_test_part(spec: FitSpec, dataset: Dataset) -> Dataset:
    """The dataset with the share of its images that the spec sets aside as test part."""
    if not spec.hold_out:
        return dataset
    if dataset.test:
        raise UserError(f"{dataset.name} has test images, so none can be held out", hint=omit("hold_out"))
    return hold_out(dataset, spec.hold_out, spec.seed)


def draw_task(spec: FitSpec, dataset: Dataset) -> Task:
    """Draw training and validation images; test on the test part of the dataset, where there is one."""
    require_shots(dataset, spec.shots)
    source, selected_on = draw_training_part(
        dataset, spec.shots, spec.seed, rules=spec.rules, validation=spec.kind.validation_for(spec.options)
    )
    targets = (make_target(dataset, dataset),) if dataset.test else ()
    return Task(spec.rules, selected_on, spec.shots, spec.seed, source, targets)


def run_task(
    spec: FitSpec,
    make_task: MakeTask,
    data: Sequence[Dataset],
    folder: RunFolder,
    session: Session,
    *,
    outputs: RunOutputs | None = None,
    callbacks: RunCallbacks | None = None,
    overwrite: bool = False,
    skip_bad: bool = False,
    complete: Callable[[RunResult], RunResult] = lambda result: result,
) -> FittedRun:
    """Fit and test a task and record it under a description; see `run`.

    Args:
        spec: Description of the run.
        make_task: Makes the task from the data; with skip_bad it is called until all drawn images can be read.
        data: What is learned from, and further data to test on.
        folder: Where the run goes, as `prepare_folder` returns it.
        session: Loads backbones, images and features, and receives progress.
        outputs: What is written beside the model; nothing by default.
        callbacks: Called as the run goes on.
        overwrite: Replace a finished run that is there.
        skip_bad: Leave out images that cannot be read before the draw.
        complete: Adds figures of the caller's own to the result before it is written.

    Returns:
        The finished run.

    Raises:
        UserError: If the task cannot be fitted, or another run's model is there.
    """
    task, skipped = make_task(data), list[str]()
    encoder = session.load_backbone(spec.backbone, spec.precision, kind=spec.kind)
    outputs = outputs or RunOutputs()
    summaries = spec.estimate or outputs.gallery
    if skip_bad:
        task, skipped = _readable_task(make_task, data, session, encoder, summaries=summaries)
    if overwrite or not checkpoint.holds_model(folder.target):  # a new fit: one pass hashes and decodes its images
        _read_images(task, session, encoder, summaries=summaries)
    identity = identify(spec, task, session, encoder)
    if not overwrite and (result := folder.read_finished(identity)):
        return FittedRun(folder.target, complete(result))
    callbacks = callbacks or RunCallbacks()
    with exclusive_lock(folder.target):
        if not overwrite and (result := folder.read_finished(identity)):  # by a fit that has just ended
            return FittedRun(folder.target, complete(result))
        try:
            callbacks.on_start(spec, folder.target)
            fitted = _fit_and_record(spec, task, folder, session, identity, skipped, outputs, callbacks, complete)
            callbacks.on_success(fitted.result)
        finally:
            callbacks.on_exit()
        return fitted


def _readable_task(
    make_task: MakeTask, data: Sequence[Dataset], session: Session, encoder: Encoder, *, summaries: bool
) -> tuple[Task, list[str]]:
    """The task without unreadable images, and one line for each of these.

    Only images that are drawn are opened: those that cannot be read are removed from the data, and the draw is made
    again, until all of its images can be read.
    """
    skipped: list[str] = []
    while True:
        task = make_task(data)
        faults = _unreadable_images(task, session, encoder, summaries=summaries)
        if not faults:
            return task, skipped
        skipped += [f"{_recorded_path(fault, data)}: {fault.reason}" for fault in faults]
        data = [_without_images(dataset, faults) for dataset in data]


def _unreadable_images(task: Task, session: Session, encoder: Encoder, *, summaries: bool) -> list[Unreadable]:
    """The images of a task that cannot be read; every image is opened once, and what a fit needs of it is kept.

    summaries: thumbnails and previews of the training images will be wanted.
    """
    learned, tested = _images_of(task)
    return session.unreadable_images(encoder, learned, summaries=summaries) + session.unreadable_images(encoder, tested)


def _images_of(task: Task) -> tuple[list[ImageLike], list[ImageLike]]:
    """The training, validation and other images, and the test images, of a task."""
    learned = [*(item.image for item in (*task.source.train, *task.source.val)), *task.source.other]
    return learned, [item.image for target in task.targets for item in target.test]


def _recorded_path(fault: Unreadable, data: Sequence[Dataset]) -> str:
    """The path of an image as records hold it, relative to the folder of its dataset."""
    paths = (dataset.path_of(LabelledImage(fault.image, 0)) for dataset in data)
    return min(paths, key=len) or "an image in memory"


def _without_images(dataset: Dataset, faults: Sequence[Unreadable]) -> Dataset:
    """The dataset without these images, which are compared as objects: images in memory have no hash."""
    bad = {id(fault.image) for fault in faults}

    def readable(items: Sequence[LabelledImage]) -> tuple[LabelledImage, ...]:
        return tuple(item for item in items if id(item.image) not in bad)

    return dataclasses.replace(
        dataset,
        train=readable(dataset.train),
        val=readable(dataset.val),
        test=readable(dataset.test),
        other=tuple(image for image in dataset.other if id(image) not in bad),
    )


def _fit_and_record(
    spec: FitSpec,
    task: Task,
    folder: RunFolder,
    session: Session,
    identity: dict[str, Any],
    skipped: Sequence[str],
    outputs: RunOutputs,
    callbacks: RunCallbacks,
    complete: Callable[[RunResult], RunResult],
) -> FittedRun:
    """Train in the unfinished folder, test on every target, and rename the folder."""
    _read_images(
        task,
        session,
        session.load_backbone(spec.backbone, spec.precision, kind=spec.kind),
        summaries=spec.estimate or outputs.gallery,
    )
    _decode_test_images_ahead(spec, task, session)
    partial_folder = folder.open_partial(spec.to_dict(), identity)
    before, began = folder.seconds_before(), time.monotonic()
    model = spec.classifier()
    try:
        model._fit_drawn(
            task.source, session, options=spec.options, rules=spec.rules, folder=partial_folder,
            on_epoch=callbacks.on_epoch,
        )  # fmt: skip
    except (UserError, KeyboardInterrupt):
        folder.remove_if_empty()
        raise
    trained = time.monotonic()
    features: dict[str, Tensor] = {}
    evaluations = evaluate(
        model.method_, task.targets, session, features if model.method_.changeable_options else None,
        [image.sha256 for image in model.training_images_],
    )  # fmt: skip
    plots: list[str] = []
    result = dataclasses.replace(
        _result(spec, task, model, evaluations),
        seconds=round(before + trained - began, 2),
        evaluation_seconds=round(time.monotonic() - trained, 2),
        skipped=tuple(skipped),
    )
    if outputs.plots:
        both = [(one.adapted, one.zero_shot) for one in evaluations]
        plots = plot_run(partial_folder, model, task, both, session.progress)
    result = complete(dataclasses.replace(result, plots=tuple(plots)))
    model.results_ = result.to_dict()
    checkpoint.write(partial_folder, model.method_, model._to_record(), model.gallery() if outputs.gallery else None)
    size = (partial_folder / checkpoint.WEIGHTS).stat().st_size
    result = dataclasses.replace(result, checkpoint_bytes=size)
    write_json(partial_folder / checkpoint.RESULT, result.to_dict())
    checkpoint.write_manifest(partial_folder)
    folder.finish()
    return FittedRun(folder.target, result, evaluations, model, features)


def _read_images(task: Task, session: Session, encoder: Encoder, *, summaries: bool) -> None:
    """Read the images of a task, each once; raises if some cannot be read."""
    if faults := _unreadable_images(task, session, encoder, summaries=summaries):
        raise unreadable_error(faults, sum(map(len, _images_of(task))))


def _decode_test_images_ahead(spec: FitSpec, task: Task, session: Session) -> None:
    """Decode test images during training on a GPU, where they must pass the trained tower."""
    encoder = session.load_backbone(spec.backbone, spec.precision, kind=spec.kind)
    if issubclass(spec.kind, TrainedMethod) and spec.kind.trains_on == "images" and task.targets:
        first = task.targets[0]
        ahead = session.for_dataset(first.dataset, spec.rules)
        ahead.read_ahead([item.image for item in first.test], encoder)


def _result(spec: FitSpec, task: Task, model: Classifier, evaluations: Sequence[TargetEvaluation]) -> RunResult:
    """The figures of a run without its times."""
    labels = model.classes_.tolist()
    return RunResult(
        method=spec.method,
        backbone=model.method_.encoder.source,
        image_size=model.method_.encoder.preprocess.size,
        feature_precision=str(model.method_.encoder.feature_dtype).removeprefix("torch."),
        dataset=task.source.name,
        public=task.source.public,
        split=task.source.split,
        classes=len(model.classes_),
        shots=spec.shots,
        images=len(model.training_images_),
        corrections=_count_corrections(spec, task),
        other_images=len(model.other_images_),
        held_out=spec.hold_out,
        seed=spec.seed,
        selected_on=task.selected_on,
        **record_targets(tuple(one.result for one in evaluations)),
        estimate=model.estimate_,
        temperature=model.method_.temperature,
        findings=examine_training(
            model.method_,
            model.training_images_,
            labels,
            model._shared_images,
            model.estimate_,
            model.held_out_auc_,
        ),
        smallest_p_value=model.smallest_p_value,
        warnings=tuple(name_warnings(task.source)),
        trained_parameters=model.method_.count_parameters(),
        seconds=0.0,
    )


def _count_corrections(spec: FitSpec, task: Task) -> int:
    """How many of the training images are corrections."""
    if spec.corrections is None:
        return 0
    folder = Path(spec.corrections) / CORRECTIONS
    return sum(isinstance(item.image, Path) and item.image.is_relative_to(folder) for item in task.source.train)
