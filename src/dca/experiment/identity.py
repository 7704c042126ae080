"""What makes two runs the same run: settings, images, backbone and precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dca
from dca.clip import CLIP
from dca.core.errors import UserError
from dca.core.files import digest_of
from dca.core.options import as_json
from dca.data.dataset import ImageLike, Item
from dca.data.protocols import Task
from dca.engine.fit import problem_of
from dca.engine.session import Session
from dca.experiment.spec import Spec

# A run may be continued if only this has changed: test images are not used in training.
TEST = "test images"


def identify(spec: Spec, task: Task, session: Session, clip: CLIP) -> dict[str, Any]:
    """Everything that decides a run, as plain values and hashes under names that error messages can show."""
    source, kind = task.source, spec.kind
    session = session.reading(source.public, spec.selection)
    problem = problem_of(source, spec.seed, spec.selection)
    resolved = kind.resolve(kind.choose(spec.settings), problem)
    return {
        "version": dca.__version__,
        "method": spec.method,
        "protocol": spec.protocol,
        "selection": spec.selection,
        "shots": spec.shots,
        "seed": spec.seed,
        "hold_out": spec.hold_out,
        "estimate": spec.estimate,
        "calibrate": spec.calibrate,
        "options": as_json(dataclasses.asdict(resolved)),
        "precision": str(clip.dtype).removeprefix("torch."),
        "device": session.device.type,
        "dataset": source.public,
        "backbone": clip.digest,
        "classes": digest_of([list(map(str, source.labels)), list(source.names), source.template]),
        "training images": digest_of([[item.label, _content(session, item.image)] for item in source.train]),
        "validation images": digest_of([[item.label, _content(session, item.image)] for item in source.val]),
        TEST: digest_of([[target.name, list(_marks(session, target.test))] for target in task.targets]),
    }


def _content(session: Session, image: ImageLike) -> str:
    """Key of an image's content; empty where it cannot be read, which is reported before training."""
    try:
        return session.content(image)
    except UserError:
        return ""


def _marks(session: Session, items: Iterable[Item]) -> Iterable[list[Any]]:
    """Label, name, size and time of test images: shows whether one has changed without reading its file."""
    for item in items:
        if not isinstance(item.image, Path):
            yield [item.label, session.sha256(item.image)]
            continue
        try:
            stat = item.image.stat()
        except OSError:
            yield [item.label, item.image.name]
        else:
            yield [item.label, item.image.name, stat.st_size, stat.st_mtime_ns]


def differences(there: Any, here: dict[str, Any], *, but: Iterable[str] = ()) -> list[str]:
    """One line per part in which the run on disk (`there`) differs from the requested one (`here`), except `but`."""
    if not isinstance(there, dict):
        return ["the record of that run is damaged"]
    lines = []
    for name, value in here.items():
        found = there.get(name)
        if name in but or found == value:
            continue
        if name == "options" and isinstance(found, dict):
            lines += [
                f"option {key}: {found.get(key)!r} there, {value.get(key)!r} here"
                for key in sorted({*found, *value})
                if found.get(key) != value.get(key)
            ]
        elif isinstance(value, str) and len(value) == 64:
            lines.append(f"{name}: not the same")
        else:
            lines.append(f"{name}: {found!r} there, {value!r} here")
    return lines
