"""One run: from a specification to a finished model folder, resumable until it is finished.

While it runs, everything lies in `NAME.partial`; the finished folder appears in one rename.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import dca
from dca import checkpoint
from dca.classifier import Classifier
from dca.clip import CLIP
from dca.data.content import sha256_of
from dca.data.dataset import Dataset
from dca.errors import UserError
from dca.evaluate import Evaluation, evaluation, probabilities
from dca.files import as_text, publish, read_json, write_json
from dca.progress import Progress, silent
from dca.train import STATE, read_metrics

SPEC, RESULT = "spec.json", "result.json"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What is to be run. The command line, Python and a sweep build the same object."""

    data: str
    method: str = "dca"
    shots: int | None = None
    seed: int = 1
    backbone: str = "mini"
    precision: str = "auto"
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
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Fit, compare with zero-shot on the test images, and leave a finished model at `target`.

    A finished run with the same identity is returned as it is; an interrupted one continues.
    """
    clip = CLIP.from_pretrained(spec.backbone)
    model = spec.classifier(device, clip)
    dataset = model.draw(spec.data)
    identity = {"spec": dataclasses.asdict(spec), "run": fingerprint(spec, dataset, clip)}
    if (finished := _finished(target, identity)) and not overwrite:
        return Outcome(target, finished)
    _require_free(target, overwrite)
    partial = _open_partial(target, identity)
    began = time.monotonic()
    before = _seconds_before(partial)
    model.fit(dataset, progress=progress, folder=partial)
    seconds = before + time.monotonic() - began
    zero, adapted = compare(model, dataset, progress)
    result = _result(spec, target, model, zero, adapted, seconds)
    model.results_ = result
    checkpoint.write(partial, model.method_, model.record())
    result["checkpoint_bytes"] = (partial / checkpoint.WEIGHTS).stat().st_size
    write_json(partial / RESULT, result)
    (partial / STATE).unlink(missing_ok=True)
    publish(partial, target)
    return Outcome(target, result, adapted, zero, model)


def fingerprint(spec: Spec, dataset: Dataset, clip: CLIP) -> str:
    """Hash of everything that decides the trained weights: method, options, images, backbone, version."""
    parts = {
        "version": dca.__version__,
        "spec": {k: v for k, v in dataclasses.asdict(spec).items() if k not in ("data", "backbone")},
        "classes": dataset.classes,
        "images": [[item.label, sha256_of(item.picture)] for item in dataset.train],
        "backbone": clip.digest(),
    }
    return hashlib.sha256(as_text(parts).encode()).hexdigest()


def compare(model: Classifier, dataset: Dataset, progress: Progress) -> tuple[Evaluation | None, Evaluation | None]:
    """Zero-shot CLIP and the fitted model on the test images, which are opened once."""
    if not dataset.test:
        return None, None
    pictures = [item.picture for item in dataset.test]
    labels = np.array([item.label for item in dataset.test])
    plain, fitted = probabilities([model.zero_shot(), model.method_], pictures, stage="testing", progress=progress)
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
        "dataset": model.method_.task.dataset,
        "classes": len(model.classes_),
        "shots": spec.shots,
        "images": len(model.draw_),
        "test_images": adapted.n if adapted else 0,
        "seed": spec.seed,
        "zero_shot_accuracy": zero.accuracy if zero else None,
        "accuracy": adapted.accuracy if adapted else None,
        "trained_parameters": model.method_.trained(),
        "seconds": round(seconds, 2),
    }


def _finished(target: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a finished run with this identity, if `target` is one."""
    if not ((target / RESULT).is_file() and (target / SPEC).is_file()):
        return None
    same = read_json(target / SPEC).get("run") == identity["run"]
    return read_json(target / RESULT) if same else None


def _require_free(target: Path, overwrite: bool) -> None:
    checkpoint.require_replaceable(target)
    if checkpoint.is_model(target) and not overwrite:
        raise UserError(
            f"{target} holds a model of another run",
            hint="choose another folder with -o DIR, or replace it with --overwrite",
        )


def _open_partial(target: Path, identity: dict[str, Any]) -> Path:
    """The folder of an unfinished run: taken up when it is this run's, emptied otherwise."""
    partial = target.with_name(f"{target.name}.partial")
    spec = partial / SPEC
    try:
        same = spec.is_file() and read_json(spec).get("run") == identity["run"]
    except UserError:
        same = False
    if not same:
        if partial.exists():
            shutil.rmtree(partial)
        os.makedirs(partial)
        write_json(spec, identity)
    return partial


def _seconds_before(partial: Path) -> float:
    """Training time of earlier parts of an interrupted run."""
    return sum(row["seconds"] for row in read_metrics(partial))
