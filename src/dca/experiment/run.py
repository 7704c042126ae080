"""One run: from a specification to a finished model folder, resumable until it is finished.

While it runs, everything lies in `NAME.partial`; the finished folder appears in one rename.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import dca
from dca.clip import CLIP
from dca.core.device import require_usable
from dca.core.errors import UserError
from dca.core.files import alone, digest_of, publish, read_json, write_json, writing
from dca.core.progress import Progress, of_stage, silent
from dca.data.dataset import Dataset, Item
from dca.data.decode import Picture, decode
from dca.data.draws import import_draw
from dca.data.feature_store import FeatureCache
from dca.data.hashing import sha256_of
from dca.data.protocols import Mode
from dca.data.splits import hold_out
from dca.engine.evaluate import Evaluation, evaluation, probabilities
from dca.engine.loop import METRICS, STATE, read_metrics
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.model.inputs import as_dataset

log = logging.getLogger(__name__)

SPEC, RESULT = "spec.json", "result.json"
# All that a run's folder may hold.
FILES = {SPEC, RESULT, METRICS, STATE, checkpoint.CONFIG, checkpoint.WEIGHTS, checkpoint.CARD}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What is to be run. The command line, Python and a sweep build the same object."""

    data: str
    method: str = "dca"
    shots: int | None = None
    seed: int = 1
    backbone: str = "mini"
    precision: str = "auto"
    protocol: Mode = "strict"
    hold_out: float = 0.0
    draw: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def classifier(self, device: str = "auto", backbone: CLIP | None = None) -> Classifier:
        """The classifier that this specification asks for."""
        return Classifier(
            self.method,
            shots=self.shots,
            seed=self.seed,
            backbone=backbone or self.backbone,
            device=device,
            precision=self.precision,
            **self.options,
        )


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, its figures and, where there were test images, both evaluations."""

    folder: Path
    result: dict[str, Any]
    adapted: Evaluation | None = None
    zero_shot: Evaluation | None = None
    classifier: Classifier | None = None


def run(
    spec: Spec,
    target: Path,
    *,
    dataset: Dataset | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Fit, compare with zero-shot on the test images, and leave a finished model at `target`.

    A finished run with the same identity is returned as it is; an interrupted one continues.
    dataset: what `spec.data` names, where it is in memory already.
    """
    _require_place(target, spec.data)
    require_usable(device, spec.precision)
    clip = CLIP.from_pretrained(spec.backbone)
    model = spec.classifier(device, clip)
    dataset = drawn(spec, model, dataset)
    identity = identify(spec, dataset, clip)
    if finished := _finished(target, identity, overwrite):
        return Outcome(target, finished)
    with alone(partial_of(target)):
        if finished := _finished(target, identity, overwrite):  # by a fit that has just ended
            return Outcome(target, finished)
        require_readable(dataset, progress)
        return _fit(spec, target, model, dataset, identity, progress)


def _fit(
    spec: Spec, target: Path, model: Classifier, dataset: Dataset, identity: dict[str, Any], progress: Progress
) -> Outcome:
    """Train in the unfinished folder, test, and put the folder into its place."""
    partial = _open_partial(target, identity)
    before, began = _seconds_before(partial), time.monotonic()
    try:
        model.fit_drawn(dataset, mode=spec.protocol, progress=progress, folder=partial)
    except UserError:
        if not (partial / STATE).is_file():  # nothing to continue from
            shutil.rmtree(partial, ignore_errors=True)
        raise
    seconds = before + time.monotonic() - began
    zero, adapted = compare(model, dataset, progress)
    result = _result(spec, target, model, zero, adapted, seconds)
    model.results_ = result
    checkpoint.write(partial, model.method_, model.record())
    result["checkpoint_bytes"] = (partial / checkpoint.WEIGHTS).stat().st_size
    write_json(partial / RESULT, result)
    publish(partial, target)
    # Only now: until the folder is in its place, an interrupted run still needs its state.
    (target / STATE).unlink(missing_ok=True)
    return Outcome(target, result, adapted, zero, model)


def drawn(spec: Spec, model: Classifier, dataset: Dataset | None = None) -> Dataset:
    """The images of a run: those a draw's file names, or the shots of the seed; a share held out if asked."""
    if spec.draw is not None:
        _require_only_the_draw(spec)
    dataset = dataset or as_dataset(spec.data, None)
    if spec.hold_out:
        dataset = hold_out(dataset, spec.hold_out, spec.seed)
    if spec.draw is None:
        return model.draw(dataset, mode=spec.protocol)
    model.selection_ = f"{spec.protocol}: the validation images of {Path(spec.draw).name}"
    return import_draw(spec.draw, dataset)


def _require_only_the_draw(spec: Spec) -> None:
    """Raise where something else than the draw's file would decide which images are taken."""
    if spec.shots is not None:
        raise UserError(
            f"--draw and --shots cannot go together: {spec.draw} says which images are taken",
            hint="leave --shots out, or write another draw with `dca datasets draw DATA --shots K -o FILE`",
        )
    if spec.hold_out:
        raise UserError(
            f"--draw and --hold-out cannot go together: images that {spec.draw} takes could be held out",
            hint="leave --hold-out out; to measure, put test images into DATA/test/<class>/, or use dca eval",
        )


def identify(spec: Spec, dataset: Dataset, clip: CLIP) -> dict[str, Any]:
    """The specification, a hash of all that decides the trained weights, and one of the test images."""
    parts = {
        "version": dca.__version__,
        "spec": {k: v for k, v in dataclasses.asdict(spec).items() if k not in ("data", "draw", "backbone")},
        "dataset": [dataset.name, dataset.template],
        "classes": dataset.classes,
        "images": [[item.label, _content(item.picture)] for item in dataset.train],
        "backbone": clip.digest(),
    }
    test = digest_of([_mark(item) for item in dataset.test])
    return {"spec": dataclasses.asdict(spec), "run": digest_of(parts), "test": test}


def _content(picture: Picture) -> str:
    """Hash of a picture; empty where it cannot be read, which `require_readable` reports."""
    try:
        return sha256_of(picture)
    except UserError:
        return ""


def _mark(item: Item) -> list[Any]:
    """What tells whether a test image has changed, without reading its file."""
    if not isinstance(item.picture, Path):
        return [item.label, sha256_of(item.picture)]
    try:
        stat = item.picture.stat()
    except OSError:
        return [item.label, item.picture.name]
    return [item.label, item.picture.name, stat.st_size, stat.st_mtime_ns]


def require_readable(dataset: Dataset, progress: Progress) -> None:
    """Open every training and test image, so that a bad one is named before the training, not after it."""
    pictures = [item.picture for item in (*dataset.train, *dataset.test)]
    decode(pictures, lambda image: None, progress=of_stage(progress, "checking"))


def compare(model: Classifier, dataset: Dataset, progress: Progress) -> tuple[Evaluation | None, Evaluation | None]:
    """Zero-shot CLIP and the fitted model on the test images."""
    if not dataset.test:
        return None, None
    pictures = [item.picture for item in dataset.test]
    labels = np.array([item.label for item in dataset.test])
    both = [model.zero_shot(), model.method_]
    plain, fitted = probabilities(both, pictures, stage="testing", progress=progress, cache=FeatureCache())
    return evaluation(plain, labels, dataset.classes), evaluation(fitted, labels, dataset.classes)


def _result(
    spec: Spec,
    target: Path,
    model: Classifier,
    zero: Evaluation | None,
    adapted: Evaluation | None,
    seconds: float,
) -> dict[str, Any]:
    """The figures of a run, as `dca fit --json` prints them."""
    return {
        "model": str(target),
        "method": model.method_.name,
        "backbone": spec.backbone,
        "dataset": model.method_.problem.dataset,
        "classes": len(model.classes_),
        "shots": spec.shots,
        "draw": Path(spec.draw).name if spec.draw else None,
        "images": len(model.draw_),
        "test_images": adapted.n if adapted else 0,
        "seed": spec.seed,
        "selection": model.selection_,
        "zero_shot_accuracy": zero.accuracy if zero else None,
        "accuracy": adapted.accuracy if adapted else None,
        "trained_parameters": model.method_.trained(),
        "seconds": round(seconds, 2),
    }


def _finished(folder: Path, identity: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """The result of a finished run with this identity in `folder`; raises where another run's model is there."""
    if overwrite or not checkpoint.is_model(folder):
        return None
    if not _same(folder, identity, "run", "test"):
        raise UserError(
            f"{folder} holds a model of another run (other images, options, seed or backbone)",
            hint="choose another folder with -o DIR, or replace it with --overwrite",
        )
    (folder / STATE).unlink(missing_ok=True)  # left by an end between the rename and its removal
    try:
        record = checkpoint.read_record(folder)
        checkpoint.read_tensors(folder)
        checkpoint.require_whole(folder, record)
        result = read_json(folder / RESULT)
    except UserError as error:
        hint = "copy it again from where it was whole, or fit it again with --overwrite"
        raise UserError(f"a finished model, but damaged: {error.problem}", details=error.details, hint=hint) from None
    return {**result, "model": str(folder)}  # which may have been moved since


def _same(folder: Path, identity: dict[str, Any], *keys: str) -> bool:
    """Whether the run in `folder` has this identity; a damaged record is another run's."""
    try:
        found = read_json(folder / SPEC)
    except UserError:
        return False
    return all(found.get(key) == identity[key] for key in keys)


def _require_place(target: Path, data: str) -> None:
    """Raise where no model may go: on top of something else, or among the images it learns from."""
    checkpoint.require_replaceable(target)
    source, place = Path(data).expanduser(), target.absolute().parent.resolve()
    if source.is_dir() and place.is_relative_to(source.resolve()):
        raise UserError(
            f"{target} lies inside {data}, where it would be taken for a class",
            hint="choose a folder outside the images with -o DIR",
        )


def _open_partial(target: Path, identity: dict[str, Any]) -> Path:
    """The folder of an unfinished run: taken up when it is this run's, emptied otherwise."""
    partial = partial_of(target)
    with writing(partial):
        if partial.exists() and not _same(partial, identity, "run"):
            _require_ours(partial)
            log.warning("%s: an unfinished run of other images, options or version lay there; it is discarded", partial)
            shutil.rmtree(partial)
        partial.mkdir(parents=True, exist_ok=True)
    if not _same(partial, identity, "run", "test"):
        write_json(partial / SPEC, identity)
    return partial


def _require_ours(partial: Path) -> None:
    """Raise where a folder holds what no run has written; hidden files are halves of ours."""
    if foreign := sorted(p.name for p in partial.iterdir() if p.name not in FILES and not p.name.startswith(".")):
        raise UserError(
            f"{partial} is in the way: it is no unfinished run",
            details=foreign,
            hint="move it, or choose another folder with -o DIR",
        )


def partial_of(target: Path) -> Path:
    """Where a run lies until it is finished."""
    return target.with_name(f"{target.name}.partial")


def _seconds_before(partial: Path) -> float:
    """Training time of earlier parts of an interrupted run."""
    return sum(row["seconds"] for row in read_metrics(partial))
