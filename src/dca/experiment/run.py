"""Run an experiment: draw, fit, evaluate on one or several targets, record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dca.clip import CLIP
from dca.core.device import require_usable
from dca.core.errors import UserError
from dca.core.files import exclusive_lock, write_json
from dca.core.progress import Progress, silent
from dca.data.dataset import Dataset
from dca.data.draws import import_draw
from dca.data.protocols import Target, Task, harmonic_mean, make_task, training_part
from dca.data.splits import hold_out
from dca.engine.evaluate import Evaluation, evaluation, probabilities
from dca.engine.session import Session
from dca.experiment.identity import identify
from dca.experiment.run_folder import RunFolder
from dca.experiment.spec import Spec
from dca.methods.interface import Method
from dca.methods.zero_shot import ZeroShot
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.model.inputs import as_dataset, require_learnable, require_shots


@dataclass(frozen=True)
class TargetResult:
    """Results of a model and of zero-shot CLIP on one target.

    metric: the distance of its head on this target; None for methods without that option.
    """

    name: str
    adapted: Evaluation
    zero_shot: Evaluation
    metric: str | None

    def to_dict(self) -> dict[str, Any]:
        """The figures, for files and tables."""
        return {
            "name": self.name,
            "classes": len(self.adapted.labels),
            "test_images": self.adapted.n,
            "accuracy": self.adapted.accuracy,
            "zero_shot_accuracy": self.zero_shot.accuracy,
            "ece": self.adapted.ece,
            "metric": self.metric,
        }


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        folder: The folder of the run.
        result: Its figures, as `result.json` holds them.
        targets: Results on each target; empty for a run that was finished before.
        classifier: The fitted model; None for a run that was finished before.
    """

    folder: Path
    result: dict[str, Any]
    targets: tuple[TargetResult, ...] = ()
    classifier: Classifier | None = None


def run(
    spec: Spec,
    folder: str | Path,
    *,
    dataset: Dataset | None = None,
    targets: Sequence[Dataset] | None = None,
    session: Session | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Run one experiment and write the finished model with its figures to `folder`.

    A finished run of the same spec, images and backbone is returned as it is; an interrupted one continues.

    Args:
        spec: What to run.
        folder: Folder of the finished run; until then it is `folder` + ".partial".
        dataset, targets: The datasets that `spec.data` and `spec.targets` name, if they are loaded already.
        session: Backbones, images and features shared with other runs; its device is used.
        device: "auto", "cpu", "cuda", ...
        overwrite: Replace a finished run in `folder`.
        progress: Called with the progress of the run.

    Returns:
        The outcome; its `result` is what `result.json` holds.

    Raises:
        UserError: If the data, the spec or the folder cannot be used, or `folder` holds the model of another run.

    Example:
        >>> import tempfile
        >>> from dca import Spec, run
        >>> folder = tempfile.mkdtemp() + "/model"
        >>> run(Spec(data="sample", method="zero_shot", shots=2), folder).result["test_images"]
        200
    """
    place = RunFolder(Path(folder))
    place.require_place(spec.data)
    require_usable(device, spec.precision)
    session = (session or Session(device=device)).reporting(progress)
    clip, task = session.backbone(spec.backbone, spec.precision), prepare(spec, dataset, targets)
    identity = identify(spec, task, session, clip)
    if not overwrite and (result := place.finished(identity)):
        return Outcome(place.target, result)
    with exclusive_lock(place.partial):
        if not overwrite and (result := place.finished(identity)):  # by another process, just now
            return Outcome(place.target, result)
        require_readable(task, session, clip)
        return _fit(spec, place, task, session, identity)


def prepare(spec: Spec, dataset: Dataset | None = None, targets: Sequence[Dataset] | None = None) -> Task:
    """The task of a spec: the images to train on and to test on."""
    dataset = dataset if dataset is not None else as_dataset(spec.data, None)
    if targets is None:
        targets = [as_dataset(target, None, measuring=True) for target in spec.targets]
    require_learnable(dataset)
    if spec.draw is not None:
        return _drawn_by_file(spec, dataset)
    require_shots(dataset, spec.shots)
    if spec.hold_out:
        dataset = hold_out(dataset, spec.hold_out, spec.seed)
    validation = spec.kind.validation
    if spec.protocol == "few-shot" and not dataset.test:  # no test images: nothing is measured
        source, words = training_part(dataset, spec.shots, spec.seed, selection=spec.selection, validation=validation)
        return Task("few-shot", spec.selection, words, spec.shots, spec.seed, source, ())
    return make_task(
        spec.protocol, dataset, targets, spec.shots, spec.seed, selection=spec.selection, validation=validation
    )


def _drawn_by_file(spec: Spec, dataset: Dataset) -> Task:
    """The few-shot task of the images that a draw file lists."""
    assert spec.draw is not None
    source = import_draw(spec.draw, dataset)
    words = f"{spec.selection}: the validation images of {Path(spec.draw).name}"
    whole = dataclasses.replace(source, test=())
    found = make_task("few-shot", source, (), None, spec.seed, selection="strict", validation="none").targets
    return Task("few-shot", spec.selection, words, None, spec.seed, whole, found if dataset.test else ())


def require_readable(task: Task, session: Session, clip: CLIP) -> None:
    """Raise, before training, one error that names every image of the task that cannot be read."""
    tested = (item for target in task.targets for item in target.test)
    session.require_readable(clip, [item.image for item in (*task.source.train, *task.source.val, *tested)])


def _fit(spec: Spec, place: RunFolder, task: Task, session: Session, identity: dict[str, Any]) -> Outcome:
    """Train in the partial folder, test on every target, and rename the folder to its target."""
    partial = place.open_partial(spec.to_dict(), identity)
    before, began = place.seconds_before(), time.monotonic()
    model = spec.classifier()
    try:
        model.learn(task.source, session, selection=spec.selection, folder=partial)
    except UserError:
        place.abandon()
        raise
    seconds = before + time.monotonic() - began
    measured = evaluate(model.method_, task.targets, session)
    result = _result(spec, task, model, measured, seconds)
    model.results_ = result
    checkpoint.write(partial, model.method_, model.record())
    result["checkpoint_bytes"] = (partial / checkpoint.WEIGHTS).stat().st_size
    write_json(partial / checkpoint.RESULT, result)
    place.finish()
    return Outcome(place.target, result, measured, model)


def evaluate(method: Method, targets: Sequence[Target], session: Session) -> tuple[TargetResult, ...]:
    """Measure a finished method and zero-shot CLIP on every target; nothing is refitted."""
    return tuple(_evaluate(method, target, session) for target in targets)


def _evaluate(method: Method, target: Target, session: Session) -> TargetResult:
    moved = retargeted(method, target)
    both = [ZeroShot.of(moved.clip, moved.problem), moved]
    images = [item.image for item in target.test]
    plain, fitted = probabilities(both, images, session, stage=f"testing on {target.name}")
    truth = np.array([item.label for item in target.test])
    return TargetResult(
        target.name,
        evaluation(fitted, truth, target.labels),
        evaluation(plain, truth, target.labels),
        getattr(moved.options, "test_metric", None),
    )


def retargeted(method: Method, target: Target) -> Method:
    """The finished method for the target's classes; the method itself if they are its own classes."""
    if target.from_source == tuple(range(len(method.problem.names))):
        return method
    problem = dataclasses.replace(method.problem, names=target.names, dataset=target.dataset, template=target.template)
    return method.retarget(problem, target.from_source)


def _result(
    spec: Spec, task: Task, model: Classifier, measured: Sequence[TargetResult], seconds: float
) -> dict[str, Any]:
    """The figures of a run, as `dca fit --json` prints them; without any path of this machine."""
    rows = [target.to_dict() for target in measured]
    first: dict[str, Any] = rows[0] if rows and spec.protocol != "cross-dataset" else {}
    found: dict[str, Any] = {
        "method": spec.method,
        "backbone": model.method_.clip.source,
        "dataset": task.source.name,
        "public": task.source.public,
        "split": task.source.split,
        "protocol": spec.protocol,
        "classes": len(model.classes_),
        "shots": spec.shots,
        "draw": Path(spec.draw).name if spec.draw else None,
        "images": len(model.draw_),
        "held_out": spec.hold_out,
        "seed": spec.seed,
        "selection": task.selected_on,
        "test_images": first.get("test_images", 0),
        "zero_shot_accuracy": first.get("zero_shot_accuracy"),
        "accuracy": first.get("accuracy"),
        "targets": rows,
        "trained_parameters": model.method_.trained(),
        "seconds": round(seconds, 2),
    }
    if spec.protocol == "base-to-new":
        base, new = rows
        found["harmonic_mean"] = harmonic_mean(base["accuracy"], new["accuracy"])
    return found
