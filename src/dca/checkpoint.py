"""What a trained model is on disk: config.json, model.safetensors, a card. Never backbone weights."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

import dca
from dca import options
from dca.clip import CLIP
from dca.errors import UserError
from dca.files import publish, read_json, write_bytes, write_json
from dca.methods.base import Method, Task, get_method

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


@dataclass(frozen=True)
class Record:
    """Everything about a model but its tensors.

    draw: label, name and content hash of each training image. results: figures of the fit.
    """

    method: str
    options: dict[str, Any]
    task: Task
    backbone: dict[str, Any]
    draw: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As `config.json` holds it."""
        head = {"library": "dca-prompt", "format": FORMAT, "version": dca.__version__}
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
    write_bytes(folder / WEIGHTS, save(tensors))
    write_bytes(folder / CARD, card(record).encode())
    write_json(folder / CONFIG, record.to_dict())


def save_model(target: Path, method: Method, record: Record) -> None:
    """A finished model folder at `target`, replacing a model that was there, and nothing else."""
    require_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        os.chmod(made, 0o755)
        write(made, method, record)
        publish(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def require_replaceable(target: Path) -> None:
    """Raise where `target` holds something that is not a model of ours."""
    if target.is_dir() and any(target.iterdir()) and not is_model(target):
        raise UserError(f"{target} exists and is not a dca model", hint="choose another folder with -o DIR")
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} exists and is a file", hint="choose another folder with -o DIR")


def is_model(folder: Path) -> bool:
    """Whether the folder holds a model written here."""
    if not ((folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()):
        return False
    try:
        return read_json(folder / CONFIG).get("library") == "dca-prompt"
    except UserError:
        return False


def read_record(folder: Path) -> Record:
    """The record of a model folder, checked field by field."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder", hint="make one with: dca fit DATA -o DIR")
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
        raise UserError(f"{folder} is not a dca model: {', '.join(missing)} missing", hint="make one with dca fit")
    raw = read_json(folder / CONFIG)
    if raw.get("library") != "dca-prompt":
        raise UserError(f"{folder / CONFIG} was not written by dca", hint="this folder holds another kind of model")
    if not isinstance(raw.get("format"), int) or raw["format"] > FORMAT:
        raise UserError(f"{folder}: format {raw.get('format')} is newer than this version knows", hint="upgrade dca")
    problems = [
        f"{name}: a JSON {kind.__name__} expected"
        for name, kind in (("method", str), ("options", dict), ("task", dict), ("backbone", dict))
        if not isinstance(raw.get(name), kind)
    ]
    problems = problems or _task_problems(raw["task"]) + _backbone_problems(raw["backbone"])
    if problems:
        raise UserError(f"{folder / CONFIG} is damaged", details=problems, hint="fit the model again")
    task = raw["task"]
    return Record(
        method=raw["method"],
        options=raw["options"],
        task=Task(**{**task, "classes": tuple(task["classes"])}),
        backbone=raw["backbone"],
        draw=list(raw.get("draw") or []),
        results=dict(raw.get("results") or {}),
    )


def _task_problems(task: dict[str, Any]) -> list[str]:
    classes = task.get("classes")
    problems = []
    if not isinstance(classes, list) or len(classes) < 2 or not all(isinstance(c, str) for c in classes):
        problems.append("task.classes: at least two names expected")
    elif len(set(classes)) < len(classes):
        problems.append("task.classes: names repeat")
    kinds = {"shots": int, "seed": int, "dataset": str, "template": str}
    problems += [f"task.{k}: a {v.__name__} expected" for k, v in kinds.items() if not isinstance(task.get(k), v)]
    problems += [f"task.{k}: unknown" for k in task if k not in {*kinds, "classes"}]
    return problems


def _backbone_problems(backbone: dict[str, Any]) -> list[str]:
    return [f"backbone.{k}: a text expected" for k in ("source", "digest") if not isinstance(backbone.get(k), str)]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The model's tensors."""
    try:
        return load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise UserError(f"{folder / WEIGHTS}: not a readable safetensors file ({error})") from None


def load_model(folder: Path, record: Record, clip: CLIP) -> Method:
    """The method of a model folder on its backbone; another backbone is refused."""
    require_same_backbone(folder, record, clip)
    kind = get_method(record.method)
    with torch.no_grad():
        method = kind(clip, record.task, options.from_dict(kind.Options, record.options))
        method.restore(read_tensors(folder))
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
    results, task = record.results, record.task
    base = record.backbone["source"]
    shots = ", ".join(sorted({str(n) for n in _shots_per_class(record)})) or str(task.shots)
    figures = [
        f"| {label} | {100 * results[key]:.1f} % |"
        for key, label in (("zero_shot_accuracy", "zero-shot CLIP"), ("accuracy", f"this model ({record.method})"))
        if results.get(key) is not None
    ]
    table = ["", "| on the test images | accuracy |", "|---|---|", *figures] if figures else []
    lines = [
        "---",
        "library_name: dca-prompt",
        "pipeline_tag: image-classification",
        f"base_model: {base if base.count('/') == 1 else Path(base).name}",
        "---",
        "",
        f"# {task.dataset or 'Image classifier'}: {len(task.classes)} classes, {record.method} on {Path(base).name}",
        "",
        f"A few-shot image classifier: {shots} training images a class, seed {task.seed}. The folder holds only what "
        "was learned; the CLIP backbone is found by its name and checked by its hash.",
        *table,
        "",
        "```python",
        "from dca import Classifier",
        'model = Classifier.from_pretrained("path/to/this/folder")',
        'model.predict("photo.jpg")',
        "```",
        "",
        f"Classes: {', '.join(task.classes)}.",
        "",
        f"Backbone sha256 {record.backbone['digest']}; dca {dca.__version__}; options in config.json.",
        "",
    ]
    return "\n".join(lines)


def _shots_per_class(record: Record) -> set[int]:
    labels = [row["label"] for row in record.draw]
    return {labels.count(label) for label in set(labels)}
