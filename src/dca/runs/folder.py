"""The folder of a run, and what makes two runs the same run.

An unfinished run is in NAME.partial and takes the place of NAME when it is finished. Its identity is everything that
decides it: description, images, backbone and precision. A run continues, or counts as finished, only where the identity
is equal.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dca
from dca.backbones.encoder import Encoder
from dca.core.errors import UserError
from dca.core.files import (
    atomic_replace,
    explain_write_errors,
    json_digest,
    partial_folder,
    read_json,
    remove_abandoned,
    write_json,
)
from dca.core.hints import Hint, allow_overwrite, choose_output
from dca.core.options import as_json
from dca.datasets.dataset import LabelledImage
from dca.datasets.task import Task
from dca.images.decode import ImageLike
from dca.model import checkpoint
from dca.model.checkpoint import RESULT, SPEC
from dca.runs.result import RunResult
from dca.runs.spec import FitSpec
from dca.training.context import make_problem
from dca.training.resume import FOLDS, STATE, read_metrics
from dca.training.session import Session

log = logging.getLogger(__name__)

# A run may be continued if only this has changed: test images are not used in training.
TEST = "test images"


def identify(spec: FitSpec, task: Task, session: Session, encoder: Encoder) -> dict[str, Any]:
    """Everything that decides a run, as plain values and hashes under names that error messages can show."""
    source, kind = task.source, spec.kind
    session = session.for_dataset(source.public, spec.rules)
    problem = make_problem(source, spec.seed, spec.rules)
    resolved = kind.resolve(spec.options, problem)
    return {
        "version": dca.__version__,
        **spec.identity,
        "options": as_json(dataclasses.asdict(resolved)),
        "precision": encoder.precision,
        "device": session.device.type,
        "dataset": source.public,
        "backbone": encoder.digest,
        "classes": json_digest([list(map(str, source.labels)), list(source.names), source.template]),
        "training images": json_digest([[item.label, _content(session, item.image)] for item in source.train]),
        "validation images": json_digest([[item.label, _content(session, item.image)] for item in source.val]),
        "other images": json_digest([_content(session, image) for image in source.other]),
        TEST: json_digest([[target.name, list(_marks(session, target.test))] for target in task.targets]),
    }


def _content(session: Session, image: ImageLike) -> str:
    """Key of an image's content; empty where it cannot be read, which is reported before training."""
    try:
        return session.content_key(image)
    except UserError:
        return ""


def _marks(session: Session, items: Iterable[LabelledImage]) -> Iterable[list[Any]]:
    """Label, name, size and time of test images: shows whether one has changed without reading its file."""
    for item in items:
        if not isinstance(item.image, Path):
            yield [item.label, session.hash_image(item.image)]
            continue
        try:
            stat = item.image.stat()
        except OSError:
            yield [item.label, item.image.name]
        else:
            yield [item.label, item.image.name, stat.st_size, stat.st_mtime_ns]


def compare_identities(there: Any, here: dict[str, Any], *, but: Iterable[str] = ()) -> list[str]:
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


class RunFolder:
    """Where a run is written.

    target: the folder of the finished run. partial: the folder of the unfinished run; an interrupted run continues
    from there.
    """

    def __init__(self, target: Path) -> None:
        self.target = target

    @property
    def partial(self) -> Path:
        """The folder of the unfinished run."""
        return partial_folder(self.target)

    def require_usable(self, data: str) -> None:
        """Raise if the target holds something that is not a model, or is inside the folder of images `data`."""
        checkpoint.require_replaceable(self.target)
        source, parent = Path(data).expanduser(), self.target.absolute().parent.resolve()
        if source.is_dir() and parent.is_relative_to(source.resolve()):
            raise UserError(
                f"{self.target} is inside {data}, where it would be taken for a class",
                hint=choose_output("a folder outside the images"),
            )

    def read_finished(self, identity: dict[str, Any]) -> RunResult | None:
        """The result of a finished run with this identity, or None; raises if the folder holds another run's model."""
        if not checkpoint.holds_model(self.target):
            return None
        self._require_unchanged()
        try:
            differing = compare_identities(self._identity(self.target), identity)
            if not differing:
                checkpoint.read_record(self.target)
                checkpoint.read_tensors(self.target)
                result = _read_result(self.target / RESULT)
                checkpoint.require_intact(self.target)
        except UserError as error:
            hint: Hint = ["copy it again from where it was whole", allow_overwrite()]
            problem = f"a finished model, but damaged: {error.problem}"
            raise UserError(problem, details=error.details, hint=hint) from None
        if differing:
            problem = f"{self.target} holds a model of another run"
            raise UserError(problem, details=differing, hint=[choose_output(), allow_overwrite()])
        self._drop_state()  # left by an end between the rename and its removal
        return result

    def _require_unchanged(self) -> None:
        """Raise if the classes of the model were changed after its run: it is then no run's result."""
        try:
            record = checkpoint.read_record(self.target)
        except UserError:
            return  # damaged, which is reported with the file in question
        if record.lineage:
            problem = f"{self.target} holds a model whose classes were changed after the fit"
            changes = list(map(str, record.lineage))
            raise UserError(problem, details=changes, hint=[choose_output(), allow_overwrite()])

    def open_partial(self, spec: dict[str, Any], identity: dict[str, Any]) -> Path:
        """The folder of the unfinished run: kept if it has this identity, emptied otherwise."""
        with explain_write_errors(self.partial):
            if self.partial.exists() and (differing := self._reasons_to_discard(identity)):
                self._require_ours()
                log.warning("%s: discarding an unfinished run (%s)", self.partial, "; ".join(differing))
                shutil.rmtree(self.partial)
            self.partial.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.partial)
        write_json(self.partial / SPEC, {"spec": spec, "identity": identity})
        return self.partial

    def _reasons_to_discard(self, identity: dict[str, Any]) -> list[str]:
        """Reasons why the unfinished run on disk cannot be continued; none if it can."""
        try:
            return compare_identities(self._identity(self.partial), identity, but=[TEST])
        except UserError as error:
            return [error.problem]

    @staticmethod
    def _identity(folder: Path) -> Any:
        return read_json(folder / SPEC).get("identity")

    def _require_ours(self) -> None:
        """Raise if the partial folder holds files that neither a run writes nor the model that it replaces holds."""
        names = (path.name for path in checkpoint.list_others(self.partial))
        if foreign := sorted(name for name in names if not name.startswith(".") and not (self.target / name).exists()):
            raise UserError(
                f"{self.partial} is in the way: it is no unfinished run",
                details=foreign,
                hint=["move it", choose_output()],
            )

    def remove_if_empty(self) -> None:
        """Remove the partial folder if it holds no state to continue from."""
        kept = [self.partial / STATE, *(self.partial / FOLDS).glob("*/*.safetensors")]
        if not any(path.is_file() for path in kept):
            shutil.rmtree(self.partial, ignore_errors=True)

    def seconds_before(self) -> float:
        """Training time of earlier parts of an interrupted run."""
        folders = (self.partial, *(self.partial / FOLDS).glob("*"))
        return sum(row["seconds"] for folder in folders for row in read_metrics(folder))

    def finish(self) -> None:
        """Put the partial folder in the place of the target; what the user keeps in a model that is there is kept."""
        checkpoint.carry_over(self.target, self.partial)
        atomic_replace(self.partial, self.target)
        # Only now: until the folder is in its place, an interrupted run still needs its state.
        self._drop_state()

    def _drop_state(self) -> None:
        """Remove what only an unfinished run needs."""
        (self.target / STATE).unlink(missing_ok=True)
        shutil.rmtree(self.target / FOLDS, ignore_errors=True)


def _read_result(path: Path) -> RunResult:
    """The result of a run; raises if the file is damaged."""
    values = read_json(path)
    try:
        return RunResult.from_dict(values)
    except TypeError as error:
        raise UserError(f"{path}: no result of a run ({error})") from None
