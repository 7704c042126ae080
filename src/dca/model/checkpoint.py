"""Checks of the `config.json` of a model, field by field.

A trained model on disk: config.json, model.safetensors and a model card, without backbone weights.

The backbone of a saved model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

import dca
from dca.backbones.clip import CLIP
from dca.backbones.sources import find_backbone
from dca.core import options
from dca.core.errors import UserError
from dca.core.files import (
    atomic_folder,
    encode_utf8,
    explain_write_errors,
    json_digest,
    read_json,
    write_bytes,
    write_json,
)
from dca.core.hints import choose_backbone, choose_output, fit_first, list_methods, resume_fit
from dca.datasets.corrections import CORRECTIONS, keep_corrections
from dca.datasets.dataset import Item
from dca.images.decode import ImageLike, StoredImage
from dca.methods.base import Method, Problem
from dca.methods.registry import get_method
from dca.model.card import LIBRARY, model_card
from dca.model.gallery import GALLERY, Gallery
from dca.training.resume import FOLDS, METRICS, STATE
from dca.training.session import Session

# Field, type, what JSON calls it.
FIELDS = (
    ("method", str, "string"),
    ("options", dict, "object"),
    ("problem", dict, "object"),
    ("labels", list, "array"),
    ("backbone", dict, "object"),
    ("given", dict, "object"),
    ("draw", list, "array"),
    ("results", dict, "object"),
    ("lineage", list, "array"),
    ("sha256", dict, "object"),
    ("package", str, "string"),
    ("temperature", float, "number"),
    ("estimate", dict, "object"),
)
# What may have been done to a class, or to the options of the head, since the fit.
CHANGES = ("added", "removed", "renamed", "options")


def record_problems(raw: dict[str, Any]) -> list[str]:
    """One line per field that is missing or wrong."""
    problems = [f"{name}: a JSON {word} expected" for name, kind, word in FIELDS if type(raw.get(name)) is not kind]
    if problems:
        return problems
    return [
        *_problem_faults(raw["problem"], raw["labels"]),
        *_text_faults(raw, "backbone", ("source", "digest")),
        *_text_faults(raw, "sha256", ("weights", "classes")),
        *_given_faults(raw["given"]),
        *_draw_faults(raw["draw"]),
        *_calibration_faults(raw["temperature"], raw["estimate"]),
        *_result_faults(raw["results"]),
        *_lineage_faults(raw["lineage"]),
    ]


def _problem_faults(problem: dict[str, Any], labels: list[Any]) -> list[str]:
    names = problem.get("names")
    faults = []
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        faults.append("problem.names: at least two names expected")
    else:
        faults += [f"problem.names: {fault}" for fault in unreadable_names(names)]
        if len(labels) != len(names):
            faults.append(f"labels: {len(names)} expected, one per class name")
    faults += [
        f"labels: {label!r} is not text or a number" for label in labels if type(label) not in (str, int, float, bool)
    ]
    kinds = {"shots": int, "seed": int, "dataset": str, "template": str, "rules": str}
    faults += [f"problem.{k}: a {v.__name__} expected" for k, v in kinds.items() if type(problem.get(k)) is not v]
    return faults + [f"problem.{k}: unknown" for k in problem if k not in {*kinds, "names"}]


def _text_faults(raw: dict[str, Any], field: str, keys: Sequence[str]) -> list[str]:
    return [f"{field}.{key}: a text expected" for key in keys if not isinstance(raw[field].get(key), str)]


def _given_faults(given: dict[str, Any]) -> list[str]:
    faults = [] if type(given.get("shots")) in (int, type(None)) else ["given.shots: a number or nothing expected"]
    faults += [
        f"given.{k}: true or false expected" for k in ("estimate", "calibrate") if type(given.get(k)) is not bool
    ]
    faults += [f"given.{k}: unknown" for k in given if k not in ("shots", "options", "estimate", "calibrate")]
    return faults if type(given.get("options")) is dict else [*faults, "given.options: a JSON object expected"]


def unreadable_names(names: Sequence[str]) -> list[str]:
    """One line per class name that is empty or holds control characters or broken Unicode."""
    return [
        f"{name!r} is not a readable name"
        for name in names
        if not name.strip(" _") or any(unicodedata.category(c) in ("Cc", "Cs") for c in name)
    ]


def _draw_faults(draw: list[Any]) -> list[str]:
    kinds = {"label": int, "name": str, "sha256": str}
    if not all(isinstance(row, dict) and all(type(row.get(k)) is v for k, v in kinds.items()) for row in draw):
        return ["draw: label, name and sha256 of each image expected"]
    kinds = {"label": int, "probability": float, "own": float}
    held = [row["held_out"] for row in draw if "held_out" in row]
    good = all(isinstance(row, dict) and all(type(row.get(k)) is v for k, v in kinds.items()) for row in held)
    return [] if good else ["draw: label, probability and own of each held-out prediction expected"]


def _calibration_faults(temperature: float, estimate: dict[str, Any]) -> list[str]:
    faults = [] if 0 < temperature < math.inf else ["temperature: a number above 0 expected"]
    if not estimate:
        return faults
    kinds: dict[str, tuple[type, ...]] = {"how": (str,), "n": (int,), "zero_shot_accuracy": (float, type(None))}
    kinds |= dict.fromkeys(("accuracy", "low", "high"), (float,))
    faults += [f"estimate.{k}: another type expected" for k, v in kinds.items() if type(estimate.get(k)) not in v]
    return faults + [f"estimate.{k}: unknown" for k in estimate if k not in kinds]


def _result_faults(results: dict[str, Any]) -> list[str]:
    return [
        f"results.{name}: a number expected"
        for name in ("accuracy", "zero_shot_accuracy")
        if type(results.get(name)) not in (int, float, type(None))
    ]


def _lineage_faults(lineage: list[Any]) -> list[str]:
    return [
        f"lineage[{n}]: a change of a class or of options expected"
        for n, row in enumerate(lineage)
        if not _is_change(row)
    ]


def _is_change(row: Any) -> bool:
    """Whether a row of the lineage says what was done to which class of which model."""
    if not isinstance(row, dict) or row.get("change") not in CHANGES or not isinstance(row.get("before"), dict):
        return False
    if row["change"] == "options":
        changed = row.get("options")
        pairs = changed.values() if isinstance(changed, dict) else [None]
        return isinstance(row.get("version"), str) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    texts = [row.get("name"), row.get("version"), row["before"].get("weights")]
    if row["change"] == "added":
        images = row.get("images")
        if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
            return False
        texts += [image.get(key) for image in images for key in ("name", "sha256")]
    if row["change"] == "renamed":
        texts.append(row.get("new_name"))
    needed = {"label", "new_label"} if row["change"] == "renamed" else {"label"}
    return needed <= row.keys() and all(isinstance(text, str) for text in texts)


FORMAT = 3
CONFIG, WEIGHTS, CARD, SPEC, RESULT = "config.json", "model.safetensors", "README.md", "spec.json", "result.json"
# The folder of pictures of how the model did, and its page.
PICTURES, REPORT = "pictures", "report.html"
# Everything that a model folder, finished or not, may hold.
FILES = frozenset({
    *(CONFIG, WEIGHTS, CARD, GALLERY, SPEC, RESULT, REPORT, METRICS, STATE, FOLDS, CORRECTIONS, PICTURES),
})  # fmt: skip
PARTIAL = ".partial"


@dataclass(frozen=True)
class Record:
    """Everything about a model except its tensors.

    Attributes:
        method: Name of the method.
        options: Its options, with all values filled in.
        problem: The problem of the method: class names that CLIP reads, shots, seed, ...
        labels: Label of each class; `predict` returns these.
        backbone: Source name, hash, sizes and preprocessing of the backbone.
        given: Shots, options and so on as the user gave them, so that the model can be fitted again.
        draw: Class index, name and content hash of each training image, and its held-out prediction if it is known.
        results: Figures of the fit.
        lineage: Changes of its classes and its head since the fit, one row each.
        sha256: Hashes of the weights and of problem and labels as they were written.
        package: Top module of the method's code if it is not `dca`, else "".
        temperature: `classify` returns softmax(log p / temperature).
        estimate: Values of `model.estimate.Estimate`; empty if the accuracy was not estimated.
    """

    method: str
    options: dict[str, Any]
    problem: Problem
    labels: list[Any]
    backbone: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)
    draw: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    lineage: list[dict[str, Any]] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)
    package: str = ""
    temperature: float = 1.0
    estimate: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`."""
        head = {"library": LIBRARY, "format": FORMAT, "version": dca.__version__}
        return {**head, **dataclasses.asdict(self)}


def stored_label(label: Any) -> Any:
    """A label for JSON: text, numbers and booleans are kept, anything else becomes text."""
    return label if isinstance(label, str | bool | int | float) else str(label)


def backbone_record(clip: CLIP) -> dict[str, Any]:
    """Identity of a backbone: its source, hash, sizes and preprocessing."""
    return {
        "source": clip.source,
        "digest": clip.digest,
        "config": clip.config.to_dict(),
        "preprocess": clip.preprocess.to_dict(),
    }


def weights_of(method: Method) -> bytes:
    """The content of `model.safetensors`."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in method.state_dict().items()})


def write(folder: Path, method: Method, record: Record, gallery: Gallery | None = None) -> None:
    """Write a model's files into an existing folder, which is renamed when it is complete."""
    weights = weights_of(method)
    sha256 = {"weights": hashlib.sha256(weights).hexdigest(), "classes": _classes_hash(record.to_dict())}
    write_bytes(folder / WEIGHTS, weights)
    write_bytes(folder / CARD, encode_utf8(model_card(record)))
    if gallery is not None:
        gallery.write(folder)
    write_json(folder / CONFIG, dataclasses.replace(record, sha256=sha256).to_dict())


def _classes_hash(raw: dict[str, Any]) -> str:
    """Hash of the problem and the labels of a `config.json`."""
    problem = {name: list(v) if isinstance(v, tuple) else v for name, v in raw["problem"].items()}
    return json_digest([problem, list(raw["labels"])])


def save_model(
    target: Path, method: Method, record: Record, gallery: Gallery | None = None, *, keep_others: bool = False
) -> None:
    """Write a complete model folder to `target`; an existing model is replaced, anything else is refused.

    Corrections of the existing model are kept. keep_others: whether files in the folder that no model has are kept.
    """
    require_replaceable(target)
    with atomic_folder(target) as made:
        write(made, method, record, gallery)
        keep_corrections(target, made)
        if keep_others and target.is_dir():
            _copy_others(target, made)


def _copy_others(source: Path, target: Path) -> None:
    """Copy what is not a file of a model, such as notes and charts."""
    with explain_write_errors(target):
        for path in source.iterdir():
            if path.name in FILES:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.copytree(path, target / path.name, symlinks=True)
            else:
                shutil.copy2(path, target / path.name, follow_symlinks=False)


def require_replaceable(target: Path) -> None:
    """Raise if `target` is not a name for a folder, or holds something other than a model."""
    if target.name in ("", ".."):
        raise UserError(f"'{target}' is not a name for a new folder", hint=choose_output())
    with explain_write_errors(target):
        if target.is_dir() and any(target.iterdir()) and not holds_model(target):
            raise UserError(f"{target} exists and is not a dca model", hint=choose_output())
        if target.exists() and not target.is_dir():
            raise UserError(f"{target} exists and is a file", hint=choose_output())


def holds_model(folder: Path) -> bool:
    """Whether the folder holds a model of this library, complete or damaged."""
    try:
        if read_json(folder / CONFIG).get("library") == LIBRARY:
            return True
    except UserError:
        pass
    return _holds_damaged_model(folder)


def _holds_damaged_model(folder: Path) -> bool:
    """Whether weights and a card of ours are there, and nothing that a model does not have.

    The card tells them from another program's `config.json` and `model.safetensors`.
    """
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if not {WEIGHTS, CARD} <= names <= FILES:
        return False
    return f"library_name: {LIBRARY}" in (folder / CARD).read_text(encoding="utf-8", errors="replace").splitlines()


def read_record(folder: Path) -> Record:
    """The record of a model folder, checked field by field."""
    raw = {"lineage": [], **_read_config(folder)}  # models had no lineage at first
    if problems := record_problems(raw):
        raise UserError(f"{folder / CONFIG} is damaged", details=problems, hint="fit the model again")
    kind = _method_of(folder, raw)
    try:
        for values in (raw["options"], raw["given"]["options"]):
            options.from_dict(kind.Options, values)
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error.problem}", details=error.details, hint="fit again") from None
    if raw["sha256"]["classes"] != _classes_hash(raw):
        raise _changed_error(folder / CONFIG, "the list of classes")
    problem = Problem(**{**raw["problem"], "names": tuple(raw["problem"]["names"])})
    fields = {f.name: raw[f.name] for f in dataclasses.fields(Record)}
    return Record(**{**fields, "problem": problem})


def _changed_error(path: Path, what: str) -> UserError:
    hint = "copy the model again from a complete copy, or fit again"
    return UserError(f"{path}: {what} has changed since it was written", hint=hint)


def _method_of(folder: Path, raw: dict[str, Any]) -> type[Method]:
    """The model's method, which may come from another package."""
    try:
        return get_method(raw["method"])
    except UserError as error:
        package = raw["package"]
        wanted = f"the package that has the module '{package}'" if package else "the package that it comes from"
        raise UserError(
            f"{folder / CONFIG}: {error.problem}",
            hint=[f"if this is a method of another package, install {wanted}", list_methods()],
        ) from None


def _read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder, if this version can read it."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder", hint=fit_first())
    if missing := [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]:
        if (folder / SPEC).is_file() and not (folder / RESULT).is_file():
            raise UserError(f"{folder} is an unfinished run, not a model yet", hint=resume_fit())
        raise UserError(f"{folder} is not a dca model: {', '.join(missing)} missing", hint=fit_first())
    raw = read_json(folder / CONFIG, hint="copy the model again, or fit it again")
    if raw.get("library") != LIBRARY:
        raise UserError(f"{folder / CONFIG} was not written by dca", hint="this folder holds another kind of model")
    found = raw.get("format")
    if type(found) is not int or found < 1:
        raise UserError(f"{folder / CONFIG} is damaged: its format is {found!r}", hint="fit the model again")
    if found > FORMAT:
        raise UserError(f"{folder}: format {found} is newer than this version knows ({FORMAT})", hint="upgrade dca")
    if found < FORMAT:
        raise UserError(f"{folder}: format {found} is of an early version ({FORMAT} is read)", hint="fit it again")
    return raw


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The model's tensors."""
    try:
        return load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise UserError(
            f"{folder / WEIGHTS}: not a readable safetensors file ({error})",
            hint="copy it again, or fit again",
        ) from None


def require_whole(folder: Path, record: Record) -> None:
    """Raise if the weights are not, byte for byte, those that were written with the record."""
    with (folder / WEIGHTS).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if record.sha256["weights"] != found:
        raise _changed_error(folder / WEIGHTS, "its content")


def load_model(folder: Path, record: Record, clip: CLIP) -> Method:
    """The method of a model folder on its backbone, sealed; raises for another backbone."""
    require_same_backbone(folder, record, clip)
    tensors = read_tensors(folder)
    kind = get_method(record.method)
    with torch.no_grad():
        method = kind.build(clip, record.problem, options.from_dict(kind.Options, record.options))
        try:
            method.restore(tensors)
        except UserError as error:
            raise UserError(f"{folder / WEIGHTS}: {error.problem}", details=error.details, hint="fit again") from None
    method.temperature = record.temperature
    require_whole(folder, record)  # checked last: an error about a tensor is more useful than a hash mismatch
    return method


def require_same_backbone(folder: Path, record: Record, clip: CLIP) -> None:
    """Raise unless `clip` is exactly the backbone that the model was trained on."""
    wanted, found = record.backbone["digest"], clip.digest
    if wanted != found:
        raise UserError(
            f"{folder} was made with backbone {record.backbone['source']} (sha256 {wanted[:8]}); "
            f"{clip.source} is a different one (sha256 {found[:8]})",
            hint=[choose_backbone(), "fit again on the new one"],
        )


def draw_record(items: Sequence[Item], session: Session) -> list[dict[str, Any]]:
    """Class index, short name (the last two parts of a path) and content hash of each image."""
    images = [item.image for item in items]
    rows = zip(items, map(_short_name, images), session.sha256_all(images), strict=True)
    return [{"label": item.label, "name": name, "sha256": sha256} for item, name, sha256 in rows]


def _short_name(image: ImageLike) -> str:
    if isinstance(image, StoredImage):
        return image.name
    return "/".join(image.parts[-2:]) if isinstance(image, Path) else "in memory"


def backbone_of(
    folder: Path, record: Record, given: str | Path | CLIP | None, session: Session, precision: str
) -> tuple[str | Path | CLIP, CLIP]:
    """Where the backbone of the model in `folder` is, and the backbone: the given one, or found by name and hash.

    Raises:
        UserError: If it cannot be loaded.
    """
    if given is not None:
        return given, session.backbone(given, precision)
    source = find_backbone(source=record.backbone["source"], digest=record.backbone["digest"])
    try:
        return source, session.backbone(source, precision)
    except UserError as error:
        problem = f"the backbone of {folder} cannot be loaded: {error.problem}"
        raise UserError(problem, details=error.details, hint=choose_backbone()) from None
