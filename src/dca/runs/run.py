"""A task without the images that cannot be read.

The one runner: draw, fit, evaluate on one or several targets, record.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dca.backbones.clip import CLIP
from dca.core.choices import TrackerName
from dca.core.device import require_device
from dca.core.errors import UserError
from dca.core.files import exclusive_lock, write_json
from dca.core.hints import omit
from dca.core.progress import Progress, silent
from dca.datasets.classes import name_warnings
from dca.datasets.corrections import CORRECTIONS, add_corrections, read_corrections
from dca.datasets.dataset import Dataset, Item
from dca.datasets.draws import hold_out, import_draw
from dca.datasets.protocols import Task, make_task, measured_on_validation, training_part
from dca.images.decode import ImageLike, Unreadable, unreadable_error
from dca.methods.base import Method, TrainedMethod
from dca.methods.registry import all_methods
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.model.findings import examine_training
from dca.model.inputs import as_dataset, require_learnable, require_shots
from dca.runs.evaluate import TargetResult, accuracies, evaluate
from dca.runs.folder import RunFolder, identify
from dca.runs.pictures import plot_run
from dca.runs.spec import Spec
from dca.runs.tracking import open_tracker, require_tracker
from dca.training.resume import EpochCallback
from dca.training.session import Session

MakeTask = Callable[[Dataset, Sequence[Dataset]], Task]


def images_of(task: Task) -> list[ImageLike]:
    """All images that a task opens: training, validation and test images."""
    tested = (item for target in task.targets for item in target.test)
    return [item.image for item in (*task.source.train, *task.source.val, *tested)]


def unreadable_images(task: Task, session: Session, clip: CLIP, *, summaries: bool) -> list[Unreadable]:
    """The images of a task that cannot be read; every image is opened once, and what a fit needs of it is kept.

    summaries: thumbnails and previews of the training images will be wanted.
    """
    learned = [item.image for item in (*task.source.train, *task.source.val)]
    tested = [item.image for target in task.targets for item in target.test]
    return session.unreadable_images(clip, learned, summaries=summaries) + session.unreadable_images(clip, tested)


def readable_task(
    make: MakeTask,
    dataset: Dataset,
    targets: Sequence[Dataset],
    session: Session,
    clip: CLIP,
    *,
    summaries: bool,
) -> tuple[Task, list[str]]:
    """The task that `make` gives without unreadable images, and one line for each of these.

    Only images that are drawn are opened: those that cannot be read are removed from the data, and the draw is made
    again, until all of its images can be read.
    """
    skipped: list[str] = []
    while True:
        task = make(dataset, targets)
        faults = unreadable_images(task, session, clip, summaries=summaries)
        if not faults:
            return task, skipped
        skipped += [f"{_path(fault, [dataset, *targets])}: {fault.reason}" for fault in faults]
        dataset, *targets = [_without(data, faults) for data in (dataset, *targets)]


def _path(fault: Unreadable, data: Sequence[Dataset]) -> str:
    """The path of an image as records hold it, relative to the folder of its dataset."""
    named = (each.path_of(Item(fault.image, 0)) for each in data)
    return min(named, key=len) or "an image in memory"


def _without(dataset: Dataset, faults: Sequence[Unreadable]) -> Dataset:
    """The dataset without these images, which are compared as objects: images in memory have no hash."""
    bad = {id(fault.image) for fault in faults}

    def kept(items: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(item for item in items if id(item.image) not in bad)

    return dataclasses.replace(dataset, train=kept(dataset.train), val=kept(dataset.val), test=kept(dataset.test))


@dataclass(frozen=True)
class RunOutputs:
    """What a run leaves beside the model: pictures, thumbnails of the training images, and the files of a tracker."""

    pictures: bool
    gallery: bool
    track: TrackerName | None


@dataclass(frozen=True)
class FittedRun:
    """A finished run; `run` returns one.

    Attributes:
        folder: Folder of the run.
        result: Its figures, as `result.json` holds them.
        targets: Evaluations of each target; empty if the run was finished before.
        classifier: The fitted model; None if the run was finished before.
        features: Features of the test images by target, for measuring other heads of the model (`measure.evaluate`);
            empty if its head has no options, or the run was finished before.

    Example:
        >>> from pathlib import Path
        >>> from dca import FittedRun
        >>> FittedRun(Path("models/pets"), {"accuracy": 0.91}).classifier is None
        True
    """

    folder: Path
    result: dict[str, Any]
    targets: tuple[TargetResult, ...] = ()
    classifier: Classifier | None = None
    features: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)


def run(
    spec: Spec,
    folder: str | Path,
    *,
    dataset: Dataset | None = None,
    targets: Sequence[Dataset] | None = None,
    session: Session | None = None,
    device: str = "auto",
    overwrite: bool = False,
    skip_bad: bool = False,
    pictures: bool = False,
    gallery: bool = False,
    track: TrackerName | None = None,
    progress: Progress = silent,
) -> FittedRun:
    """Run one experiment and leave a finished model with its figures at `folder`.

    A finished run of the same spec, images and backbone is returned as it is; an interrupted one continues.

    Args:
        spec: What to run.
        folder: Where the finished run goes; until then it is in `folder` + ".partial".
        dataset: What `spec.data` names, if it is loaded already.
        targets: Likewise for `spec.targets`.
        session: Backbones, images and features shared with other runs; its device is used.
        device: "auto", "cpu", "cuda", ...
        overwrite: Replace a finished run that is there.
        skip_bad: Leave out images that cannot be read before the draw; `result["skipped"]` names them.
        pictures: Draw how the model did into its folder, if matplotlib is installed; `result["pictures"]` names them.
        gallery: Also write thumbnails and features of the training images.
        track: "tensorboard" or "wandb" also show the metrics there.
        progress: Receives the progress of the run.

    Returns:
        The outcome with the figures of `result.json`.

    Raises:
        UserError: If data, spec or folder cannot be used, or another run's model is there.

    Example:
        >>> import dca, tempfile
        >>> from dca.datasets.sample import load_sample
        >>> spec, sample = dca.Spec(data="sample", method="zero_shot"), load_sample(per_class_train=1, per_class_test=2)
        >>> dca.run(spec, tempfile.mkdtemp() + "/model", dataset=sample, device="cpu").result["test_images"]
        20
    """
    place = _checked_place(spec, Path(folder), device, track)
    session = (session or Session(device=device)).with_progress(progress)
    task = _task(spec, dataset, targets, session, skip_bad=skip_bad)
    return _finished_or_fitted(spec, place, *task, session, RunOutputs(pictures, gallery, track), overwrite=overwrite)


def _finished_or_fitted(
    spec: Spec,
    place: RunFolder,
    task: Task,
    skipped: Sequence[str],
    session: Session,
    leave: RunOutputs,
    *,
    overwrite: bool,
) -> FittedRun:
    """The finished run that is at `place`, or a new fit."""
    if overwrite or not checkpoint.holds_model(place.target):  # a new fit: one pass hashes and decodes its images
        _read_images(spec, task, session, summaries=spec.estimate or leave.gallery)
    identity = identify(spec, task, session, session.load_backbone(spec.backbone, spec.precision))
    if not overwrite and (result := place.finished(identity)):
        return FittedRun(place.target, result)
    with exclusive_lock(place.target):
        if not overwrite and (result := place.finished(identity)):  # by a fit that has just ended
            return FittedRun(place.target, result)
        with closing(open_tracker(leave.track, place.target, spec.to_dict())) as tracker:
            outcome = _fit(spec, place, task, session, identity, skipped, leave, tracker.log)
            tracker.finish(outcome.result)
        return outcome


def _checked_place(spec: Spec, folder: Path, device: str, track: TrackerName | None) -> RunFolder:
    """The folder of a run; raises, before anything is loaded, if it, the device or the tracker cannot be used."""
    require_tracker(track)
    place = RunFolder(folder)
    place.require_place(spec.data)
    require_device(device, spec.precision)
    return place


def _task(
    spec: Spec,
    dataset: Dataset | None,
    targets: Sequence[Dataset] | None,
    session: Session,
    *,
    skip_bad: bool,
) -> tuple[Task, list[str]]:
    """The task of a spec and, with skip_bad, one line per image that was left out because it cannot be read."""
    if not skip_bad:
        return task_of(spec, dataset, targets), []
    dataset, targets = _loaded(spec, dataset, targets)
    clip = session.load_backbone(spec.backbone, spec.precision)
    return readable_task(partial(_task_of, spec), dataset, targets, session, clip, summaries=spec.estimate)


def _loaded(
    spec: Spec, dataset: Dataset | None, targets: Sequence[Dataset] | None
) -> tuple[Dataset, Sequence[Dataset]]:
    """The data that a spec names; what is given is loaded already."""
    if targets is None:
        targets = [as_dataset(target, None, for_evaluation=True) for target in spec.targets]
    dataset = dataset if dataset is not None else as_dataset(spec.data, None)
    return dataset if spec.corrections is None else _corrected(Path(spec.corrections), dataset), targets


def task_of(spec: Spec, dataset: Dataset | None = None, targets: Sequence[Dataset] | None = None) -> Task:
    """The task of a spec: what is trained on, and what is tested."""
    return _task_of(spec, *_loaded(spec, dataset, targets))


def _task_of(spec: Spec, dataset: Dataset, targets: Sequence[Dataset]) -> Task:
    """The task of loaded data."""
    require_learnable(dataset)
    if spec.draw is not None:
        return _drawn_by_file(spec, dataset)
    dataset = _with_test_images(spec, dataset)
    require_shots(dataset, spec.shots)
    validation = spec.kind.validation_for(spec.kind.parse_options(spec.settings))
    if spec.protocol == "few-shot" and not dataset.test and not targets:  # nothing is held out unless asked for
        source, words = training_part(dataset, spec.shots, spec.seed, rules=spec.rules, validation=validation)
        return Task("few-shot", spec.rules, words, spec.shots, spec.seed, source, ())
    task = make_task(spec.protocol, dataset, targets, spec.shots, spec.seed, rules=spec.rules, validation=validation)
    require_transferable(spec, task)
    return task


def _corrected(model: Path, dataset: Dataset) -> Dataset:
    """The dataset with the corrections of a model folder among its training images."""
    found = read_corrections(model)
    if not found:
        raise UserError(f"{model} holds no corrections", hint=omit("corrections"))
    return add_corrections(dataset, found)


def _count_corrections(spec: Spec, task: Task) -> int:
    """How many of the training images are corrections."""
    if spec.corrections is None:
        return 0
    place = Path(spec.corrections) / CORRECTIONS
    return sum(isinstance(item.image, Path) and item.image.is_relative_to(place) for item in task.source.train)


def _with_test_images(spec: Spec, dataset: Dataset) -> Dataset:
    """The dataset with the test images of the spec: its own, its validation images, or a share that is held out."""
    if spec.measured_on == "validation":
        return measured_on_validation(dataset, spec.shots, spec.seed)
    if spec.hold_out and dataset.test:
        raise UserError(f"{dataset.name} has test images, so none can be held out", hint=omit("hold_out"))
    if spec.hold_out:
        return hold_out(dataset, spec.hold_out, spec.seed)
    return hold_out(dataset) if spec.protocol == "base-to-new" else dataset


def require_transferable(spec: Spec, task: Task) -> None:
    """Raise, before training, where a target has other classes and the method can only classify its own."""
    own = tuple(range(len(task.source.names)))
    if all(target.from_source == own for target in task.targets) or spec.kind.retarget is not Method.retarget:
        return
    able = [name for name, kind in all_methods().items() if kind.retarget is not Method.retarget]
    raise UserError(
        f"a {spec.method} model knows only the classes it was trained on, and {spec.protocol} tests on others",
        hint=f"methods that can be used for other classes: {', '.join(able)}",
    )


def _drawn_by_file(spec: Spec, dataset: Dataset) -> Task:
    """The few-shot task of the images that `spec.draw` lists."""
    assert spec.draw is not None
    source = import_draw(spec.draw, dataset)
    words = f"{spec.rules}: the validation images of {Path(spec.draw).name}"
    whole = dataclasses.replace(source, test=())
    found = make_task("few-shot", source, (), None, spec.seed, rules="strict", validation="none").targets
    return Task("few-shot", spec.rules, words, None, spec.seed, whole, found if dataset.test else ())


def _fit(
    spec: Spec,
    place: RunFolder,
    task: Task,
    session: Session,
    identity: dict[str, Any],
    skipped: Sequence[str],
    leave: RunOutputs,
    follow: EpochCallback,
) -> FittedRun:
    """Train in the unfinished folder, test on every target, and rename the folder."""
    _read_images(spec, task, session, summaries=spec.estimate or leave.gallery)
    _decode_test_images_ahead(spec, task, session)
    partial = place.open_partial(spec.to_dict(), identity)
    before, began = place.seconds_before(), time.monotonic()
    model = spec.classifier()
    try:
        model.learn(task.source, session, rules=spec.rules, folder=partial, on_epoch=follow)
    except (UserError, KeyboardInterrupt):
        place.abandon()
        raise
    seconds = before + time.monotonic() - began
    trained = time.monotonic()
    features: dict[str, Tensor] = {}
    kept = features if model.method_.changeable_options else None
    measured = evaluate(model.method_, task.targets, session, kept)
    result = {**_result(spec, task, model, measured, seconds), "skipped": list(skipped)}
    result["evaluation_seconds"] = round(time.monotonic() - trained, 2)
    if leave.pictures:
        both = [(target.adapted, target.zero_shot) for target in measured]
        result["pictures"] = plot_run(partial, model, task, both, session.progress)
    model.results_ = result
    checkpoint.write(partial, model.method_, model.record(), model.gallery() if leave.gallery else None)
    result["checkpoint_bytes"] = (partial / checkpoint.WEIGHTS).stat().st_size
    write_json(partial / checkpoint.RESULT, result)
    place.finish()
    return FittedRun(place.target, result, measured, model, features)


def _read_images(spec: Spec, task: Task, session: Session, *, summaries: bool) -> None:
    """Read the images of a task, each once; raises if some cannot be read."""
    clip = session.load_backbone(spec.backbone, spec.precision)
    if faults := unreadable_images(task, session, clip, summaries=summaries):
        raise unreadable_error(faults, len(images_of(task)))


def _decode_test_images_ahead(spec: Spec, task: Task, session: Session) -> None:
    """Decode test images during training on a GPU, where they must pass the trained tower."""
    clip = session.load_backbone(spec.backbone, spec.precision)
    if issubclass(spec.kind, TrainedMethod) and spec.kind.trains_on == "images" and task.targets:
        first = task.targets[0]
        ahead = session.for_dataset(first.dataset, spec.rules)
        ahead.read_ahead([item.image for item in first.test], clip)


def _result(
    spec: Spec, task: Task, model: Classifier, measured: Sequence[TargetResult], seconds: float
) -> dict[str, Any]:
    """The figures of a run, as `dca fit --json` prints them; they hold no path of the user's machine."""
    return {
        "method": spec.method,
        "backbone": model.method_.clip.source,
        "dataset": task.source.name,
        "public": task.source.public,
        "split": task.source.split,
        "protocol": spec.protocol,
        "classes": len(model.classes_),
        "shots": spec.shots,
        "draw": Path(spec.draw).name if spec.draw else None,
        "images": len(model.training_images_),
        "corrections": _count_corrections(spec, task),
        "held_out": spec.hold_out,
        "seed": spec.seed,
        "selected_on": task.selected_on,
        "measured_on": spec.measured_on,
        **accuracies(spec.protocol, measured),
        "estimate": model.estimate_.to_dict() if model.estimate_ else None,
        "temperature": model.method_.temperature,
        "findings": examine_training(model.method_, model.training_images_, model.classes_.tolist()).to_dict(),
        "warnings": name_warnings(task.source),
        "image_size": model.method_.clip.preprocess.size,
        "trained_parameters": model.method_.count_parameters(),
        "seconds": round(seconds, 2),
    }
