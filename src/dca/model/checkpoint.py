"""What a trained model is on disk: config.json, model.safetensors, a card. Never backbone weights."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import tempfile
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
from dca.clip import CLIP
from dca.core import options
from dca.core.errors import UserError
from dca.core.files import digest_of, publish, read_json, utf8, write_bytes, write_json, writing
from dca.methods.interface import Method, Problem
from dca.methods.registry import get_method

LIBRARY, FORMAT = "dca-prompt", 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
# Field, type, what JSON calls it.
FIELDS = (
    ("method", str, "string"),
    ("options", dict, "object"),
    ("problem", dict, "object"),
    ("backbone", dict, "object"),
    ("draw", list, "array"),
    ("results", dict, "object"),
    ("sha256", dict, "object"),
    ("package", str, "string"),
)
NEEDED = ("method", "options", "problem", "backbone")


@dataclass(frozen=True)
class Record:
    """Everything about a model but its tensors.

    draw: label, name and content hash of each training image. results: figures of the fit.
    sha256: of the weights and of the problem as they were written; empty in models of the first versions.
    package: top module of the method's code, where it is not ours.
    """

    method: str
    options: dict[str, Any]
    problem: Problem
    backbone: dict[str, Any]
    draw: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    package: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As `config.json` holds it."""
        head = {"library": LIBRARY, "format": FORMAT, "version": dca.__version__}
        return {**head, **dataclasses.asdict(self)}


def backbone_record(clip: CLIP) -> dict[str, Any]:
    """Identity of a backbone: where it came from, what it is, how it sees images."""
    return {
        "source": clip.source,
        "digest": clip.digest(),
        "config": clip.config.to_dict(),
        "preprocess": clip.preprocess.to_dict(),
    }


def write(folder: Path, method: Method, record: Record) -> None:
    """Write a model's files into an existing folder that nobody takes for finished yet."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in method.state_dict().items()}
    weights = save(tensors)
    sha256 = {"weights": hashlib.sha256(weights).hexdigest(), "problem": digest_of(dataclasses.asdict(record.problem))}
    write_bytes(folder / WEIGHTS, weights)
    write_bytes(folder / CARD, utf8(card(record)))
    write_json(folder / CONFIG, dataclasses.replace(record, sha256=sha256).to_dict())


def save_model(target: Path, method: Method, record: Record) -> None:
    """A finished model folder at `target`, replacing a model that was there, and nothing else."""
    require_replaceable(target)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        os.chmod(made, 0o755)
    try:
        write(made, method, record)
        publish(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def require_replaceable(target: Path) -> None:
    """Raise where `target` is no name for a folder, or holds something that is not a model of ours."""
    way_out = "choose another folder with -o DIR"
    if target.name in ("", ".."):
        raise UserError(f"'{target}' is no name for a new folder", hint=way_out)
    with writing(target):
        if target.is_dir() and any(target.iterdir()) and not is_model(target):
            raise UserError(f"{target} exists and is not a dca model", hint=way_out)
        if target.exists() and not target.is_dir():
            raise UserError(f"{target} exists and is a file", hint=way_out)


def is_model(folder: Path) -> bool:
    """Whether the folder holds a model written here."""
    if not ((folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()):
        return False
    try:
        return read_json(folder / CONFIG).get("library") == LIBRARY
    except UserError:
        return False


def read_record(folder: Path) -> Record:
    """The record of a model folder, checked field by field."""
    raw = _read_config(folder)
    problems = [
        f"{name}: a JSON {word} expected"
        for name, kind, word in FIELDS
        if not isinstance(raw.get(name, kind()), kind) or (name in NEEDED and name not in raw)
    ]
    if not problems:
        problems = _problem_faults(raw["problem"]) + _backbone_problems(raw["backbone"])
        problems += _draw_problems(raw.get("draw", [])) + _result_problems(raw.get("results", {}))
    if problems:
        raise UserError(f"{folder / CONFIG} is damaged", details=problems, hint="fit the model again")
    kind = _method_of(folder, raw)
    try:
        options.from_dict(kind.Options, raw["options"])
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error.problem}", details=error.details, hint="fit again") from None
    problem, sha256 = raw["problem"], raw.get("sha256", {})
    if sha256.get("problem", digest_of(problem)) != digest_of(problem):
        raise _changed(folder / CONFIG, "its problem, with the classes,")
    return Record(
        method=raw["method"],
        options=raw["options"],
        problem=Problem(**{**problem, "names": tuple(problem["names"])}),
        backbone=raw["backbone"],
        draw=raw.get("draw", []),
        results=raw.get("results", {}),
        sha256=sha256,
        package=raw.get("package", ""),
    )


def _changed(path: Path, what: str) -> UserError:
    hint = "copy the model again from where it was whole, or fit again"
    return UserError(f"{path}: {what} has changed since it was written", hint=hint)


def _method_of(folder: Path, raw: dict[str, Any]) -> type[Method]:
    """The model's method, which may be another package's."""
    try:
        return get_method(raw["method"])
    except UserError as error:
        package = raw.get("package")
        wanted = f"the package that has the module '{package}'" if package else "the package that it comes from"
        raise UserError(
            f"{folder / CONFIG}: {error.problem}",
            hint=f"if this is a method of another package, install {wanted}; `dca methods` lists those that are here",
        ) from None


def _read_config(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, if it is one of ours and of a format known here."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder", hint="make one with: dca fit DATA -o DIR")
    if missing := [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]:
        raise UserError(f"{folder} is not a dca model: {', '.join(missing)} missing", hint="make one with dca fit")
    raw = read_json(folder / CONFIG, hint="copy the model again, or fit it again")
    if raw.get("library") != LIBRARY:
        raise UserError(f"{folder / CONFIG} was not written by dca", hint="this folder holds another kind of model")
    found = raw.get("format")
    if type(found) is not int or found < 1:
        raise UserError(f"{folder / CONFIG} is damaged: its format is {found!r}", hint="fit the model again")
    if found > FORMAT:
        raise UserError(f"{folder}: format {found} is newer than this version knows ({FORMAT})", hint="upgrade dca")
    return raw


def _problem_faults(problem: dict[str, Any]) -> list[str]:
    classes = problem.get("names")
    problems = []
    if not isinstance(classes, list) or len(classes) < 2 or not all(isinstance(c, str) for c in classes):
        problems.append("problem.names: at least two names expected")
    else:
        problems += [f"problem.names: {fault}" for fault in unreadable_names(classes)]
    kinds = {"shots": int, "seed": int, "dataset": str, "template": str, "protocol": str}
    found = {"protocol": "strict", **problem}  # which models of the first versions do not name
    problems += [f"problem.{k}: a {v.__name__} expected" for k, v in kinds.items() if type(found.get(k)) is not v]
    problems += [f"problem.{k}: unknown" for k in problem if k not in {*kinds, "names"}]
    return problems


def unreadable_names(classes: Sequence[str]) -> list[str]:
    """Class names that are empty or hold what is no text: control characters, broken Unicode."""
    return [
        f"{name!r} is no readable name"
        for name in classes
        if not name.strip(" _") or any(unicodedata.category(c) in ("Cc", "Cs") for c in name)
    ]


def _backbone_problems(backbone: dict[str, Any]) -> list[str]:
    return [f"backbone.{k}: a text expected" for k in ("source", "digest") if not isinstance(backbone.get(k), str)]


def _draw_problems(draw: list[Any]) -> list[str]:
    kinds = {"label": int, "name": str, "sha256": str}
    good = all(isinstance(row, dict) and all(type(row.get(k)) is v for k, v in kinds.items()) for row in draw)
    return [] if good else ["draw: label, name and sha256 of each image expected"]


def _result_problems(results: dict[str, Any]) -> list[str]:
    return [
        f"results.{name}: a number expected"
        for name in ("accuracy", "zero_shot_accuracy")
        if type(results.get(name)) not in (int, float, type(None))
    ]


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
    """Raise where the weights are not, byte for byte, those that were written with the record."""
    with (folder / WEIGHTS).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if record.sha256.get("weights", found) != found:
        raise _changed(folder / WEIGHTS, "its content")


def load_model(folder: Path, record: Record, clip: CLIP) -> Method:
    """The method of a model folder on its backbone; another backbone is refused."""
    require_same_backbone(folder, record, clip)
    tensors = read_tensors(folder)
    kind = get_method(record.method)
    with torch.no_grad():
        method = kind.build(clip, record.problem, options.from_dict(kind.Options, record.options))
        try:
            method.restore(tensors)
        except UserError as error:
            raise UserError(f"{folder / WEIGHTS}: {error.problem}", details=error.details, hint="fit again") from None
    require_whole(folder, record)  # last: what is wrong with a tensor says more than that the file is another
    return method


def require_same_backbone(folder: Path, record: Record, clip: CLIP) -> None:
    """Raise unless `clip` is, bit for bit, what the model was trained on."""
    wanted, found = record.backbone["digest"], clip.digest()
    if wanted != found:
        raise UserError(
            f"{folder} was made with backbone {record.backbone['source']} (sha256 {wanted[:8]}); "
            f"{clip.source} is another one (sha256 {found[:8]})",
            hint="pass the original weights with --backbone, or fit again on the new ones",
        )


def card(record: Record) -> str:
    """README.md of a model: what it is, how it was made, how to use it."""
    results, problem = record.results, record.problem
    base = record.backbone["source"]
    shots = ", ".join(sorted({str(n) for n in _shots_per_class(record)})) or str(problem.shots)
    images = "training image" if shots == "1" else "training images"
    figures = [
        f"| {label} | {100 * results[key]:.1f} % |"
        for key, label in (("zero_shot_accuracy", "zero-shot CLIP"), ("accuracy", f"this model ({record.method})"))
        if results.get(key) is not None
    ]
    table = ["", "| on the test images | accuracy |", "|---|---|", *figures] if figures else []
    lines = [
        "---",
        f"library_name: {LIBRARY}",
        "pipeline_tag: image-classification",
        f"base_model: {base if base.count('/') == 1 else Path(base).name}",
        "---",
        "",
        f"# {problem.dataset or 'Image classifier'}: {len(problem.names)} classes, "
        f"{record.method} on {Path(base).name}",
        "",
        f"A few-shot image classifier: {shots} {images} a class, seed {problem.seed}. The folder holds only what "
        "was learned; the CLIP backbone is found by its name and checked by its hash.",
        *table,
        "",
        "```python",
        "from dca import Classifier",
        'model = Classifier.from_pretrained("path/to/this/folder")',
        'model.predict("photo.jpg")',
        "```",
        "",
        f"Classes: {', '.join(problem.names)}.",
        "",
        f"Backbone sha256 {record.backbone['digest']}; dca {dca.__version__}; options in config.json.",
        "",
    ]
    return "\n".join(lines)


def _shots_per_class(record: Record) -> set[int]:
    labels = [row["label"] for row in record.draw]
    return {labels.count(label) for label in set(labels)}
