"""A model folder: config.json (`ModelRecord`), model.safetensors and a model card, without backbone weights.

A folder is written under another name and renamed when it is complete. It is read with checks of every field, of the
backbone, and of the manifest: `manifest.json` has the hash of every file that decides what the model predicts or says
of itself (`MANIFESTED`), and its own. The others are the user's to change: the card, the page, plots, notes,
corrections.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.backbones.sources import SEPARATOR, find_backbone, require_permission
from dca.backbones.state_dict import read_safetensors
from dca.core.errors import UserError
from dca.core.files import (
    atomic_folder,
    encode_utf8,
    explain_write_errors,
    is_abandoned,
    json_digest,
    link_tree,
    read_json,
    read_whole,
    restore_folder,
    write_bytes,
    write_json,
)
from dca.core.hints import choose_backbone, choose_output, fit_first, list_methods, resume_fit
from dca.datasets.corrections import CORRECTIONS, carry_over_corrections
from dca.methods.base import Method
from dca.methods.registry import get_method
from dca.model.card import model_card
from dca.model.gallery import GALLERY, Gallery
from dca.model.records import FORMAT, LIBRARY, ModelRecord, record_problems
from dca.training.resume import FOLDS, METRICS, STATE
from dca.training.session import Session

CONFIG, WEIGHTS, CARD, SPEC, RESULT = "config.json", "model.safetensors", "README.md", "spec.json", "result.json"
MANIFEST = "manifest.json"
# The files whose hashes are in the manifest, as far as the model has them.
MANIFESTED = (CONFIG, WEIGHTS, GALLERY, SPEC, RESULT)
# The folder of plots of how the model did, and its page.
PLOTS, REPORT = "plots", "report.html"
# Everything that a model folder, finished or not, may hold.
FILES = frozenset({
    *(CONFIG, WEIGHTS, MANIFEST, CARD, GALLERY, SPEC, RESULT, REPORT, METRICS, STATE, FOLDS, CORRECTIONS, PLOTS),
})  # fmt: skip


def serialize_weights(method: Method) -> bytes:
    """The content of `model.safetensors`."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in method.state_dict().items()})


def hash_weights(method: Method) -> str:
    """SHA-256 of `model.safetensors`."""
    return hashlib.sha256(serialize_weights(method)).hexdigest()


def write(folder: Path, method: Method, record: ModelRecord, gallery: Gallery | None = None) -> None:
    """Write a model's files, but for the manifest, into an existing folder, which is renamed when it is complete."""
    write_bytes(folder / WEIGHTS, serialize_weights(method))
    write_bytes(folder / CARD, encode_utf8(model_card(record)))
    (folder / GALLERY).unlink(missing_ok=True)  # of an attempt that was killed
    if gallery is not None:
        gallery.write(folder / GALLERY)
    write_json(folder / CONFIG, record.to_dict())


def write_manifest(folder: Path) -> None:
    """Write the hashes of a model's files, when all of them are written."""
    hashes = {name: _hash_file(folder / name) for name in MANIFESTED if (folder / name).is_file()}
    write_json(folder / MANIFEST, {"files": hashes, "sha256": json_digest(hashes)})


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_intact(folder: Path, names: Sequence[str] = MANIFESTED) -> None:
    """Raise if a file of a model is not, byte for byte, the one that was written with the others.

    A file that is missing is no error here: models are copied without galleries and records of runs.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder} is not complete: {MANIFEST} missing", hint=_COPY_AGAIN)
    raw = read_json(path, hint=_COPY_AGAIN)
    hashes = raw.get("files")
    if not isinstance(hashes, dict) or raw != {"files": hashes, "sha256": json_digest(hashes)}:
        raise _changed_error(path)
    for name in names:
        if not (folder / name).is_file():
            continue
        if name not in hashes:
            hint = ["delete it, or move it elsewhere", _COPY_AGAIN]
            raise UserError(f"{folder / name} is of another model: {MANIFEST} does not name it", hint=hint)
        if hashes[name] != _hash_file(folder / name):
            raise _changed_error(folder / name)


def load_gallery(folder: Path) -> Gallery | None:
    """The gallery of a model folder; None if it has none. Raises if the file is damaged, or of another model."""
    gallery = Gallery.load(folder / GALLERY)
    require_intact(folder, [GALLERY])
    return gallery


def save_model(target: Path, method: Method, record: ModelRecord, gallery: Gallery | None = None) -> None:
    """Write a complete model folder to `target`; an existing model is replaced, anything else is refused.

    What the user keeps in the folder of the existing model stays: corrections, and files that no model has.
    """
    require_replaceable(target)
    with atomic_folder(target) as folder:
        write(folder, method, record, gallery)
        write_manifest(folder)
        carry_over(target, folder)


def carry_over(old: Path, new: Path) -> None:
    """Put what the user keeps in the model folder `old` into `new`, which is to replace it.

    That is the corrections, and what is not a file of a model, such as notes. What an attempt that was killed has put
    into `new` is replaced.
    """
    carry_over_corrections(old, new)
    with explain_write_errors(new):
        for path in list_others(old) if old.is_dir() else ():
            link_tree(path, new / path.name)


def list_others(folder: Path) -> list[Path]:
    """What is in a folder and is not a file of a model, nor an unfinished one of a process that has ended."""
    return [path for path in folder.iterdir() if path.name not in FILES and not is_abandoned(path.name)]


def require_replaceable(target: Path) -> None:
    """Raise if `target` is not a name for a folder, or holds something other than a model."""
    if target.name in ("", ".."):
        raise UserError(f"'{target}' is not a name for a new folder", hint=choose_output())
    restore_folder(target)
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


def read_record(folder: Path) -> ModelRecord:
    """The record of a model folder, checked field by field."""
    return read_whole(folder, lambda: _read_record(folder))


def _read_record(folder: Path) -> ModelRecord:
    raw = _read_config(folder)
    if problems := record_problems(raw):
        raise UserError(f"{folder / CONFIG} is damaged", details=problems, hint="fit the model again")
    kind = _find_method(folder, raw)
    try:
        for values in (raw["options"], raw["fit_arguments"]["options"]):
            kind.parse_options(values)
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error.problem}", details=error.details, hint="fit again") from None
    require_intact(folder, [CONFIG])
    return ModelRecord.from_dict(raw)


_COPY_AGAIN = "copy the model again from a complete copy, or fit again"


def _changed_error(path: Path) -> UserError:
    return UserError(f"{path}: its content has changed since it was written", hint=_COPY_AGAIN)


def _find_method(folder: Path, raw: dict[str, Any]) -> type[Method]:
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
    restore_folder(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder", hint=fit_first())
    if missing := [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]:
        if (folder / SPEC).is_file() and not (folder / RESULT).is_file():
            raise UserError(f"{folder} is an unfinished run, not a model yet", hint=resume_fit())
        raise UserError(f"{folder} is not a dca model: {', '.join(missing)} missing", hint=fit_first())
    raw = read_json(folder / CONFIG, hint="copy the model again, or fit it again")
    if raw.get("library") != LIBRARY:
        raise UserError(f"{folder / CONFIG} was not written by dca", hint="this folder holds another kind of model")
    version = raw.get("format")
    if type(version) is not int or version < FORMAT:
        raise UserError(f"{folder / CONFIG} is damaged: its format is {version!r}", hint="fit the model again")
    if version > FORMAT:
        raise UserError(f"{folder}: format {version} is newer than this version knows ({FORMAT})", hint="upgrade dca")
    return raw


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The model's tensors."""
    return read_safetensors(folder / WEIGHTS, hint="copy it again, or fit again")


def load_model(folder: Path, record: ModelRecord, encoder: Encoder) -> Method:
    """The method of a model folder on its backbone, sealed; raises for another backbone."""
    require_same_backbone(folder, record, encoder)
    tensors = read_tensors(folder)
    kind = get_method(record.method)
    with torch.no_grad():
        method = kind.build(encoder, record.problem, kind.parse_options(record.options))
        try:
            method.restore(tensors)
        except UserError as error:
            raise UserError(f"{folder / WEIGHTS}: {error.problem}", details=error.details, hint="fit again") from None
    method.temperature = record.temperature
    require_intact(folder, [WEIGHTS])  # checked last: an error about a tensor is more useful than a hash mismatch
    return method


def require_same_backbone(folder: Path, record: ModelRecord, encoder: Encoder) -> None:
    """Raise unless `encoder` is exactly the backbone that the model was trained on."""
    wanted, found = record.backbone.digest, encoder.digest
    if wanted != found:
        raise UserError(
            f"{folder} was made with backbone {record.backbone.source} (sha256 {wanted[:8]}); "
            f"{encoder.source} is a different one (sha256 {found[:8]})",
            hint=[choose_backbone(), "fit again on the new one"],
        )


def load_backbone(
    folder: Path, record: ModelRecord, given: str | Path | Encoder | None, session: Session, precision: str
) -> tuple[str | Path | Encoder, Encoder]:
    """Where the backbone of the model in `folder` is, and the backbone: the given one, or found by name and hash.

    Raises:
        UserError: If it cannot be loaded.
    """
    if given is not None:
        return given, session.load_backbone(given, precision, kind=get_method(record.method))
    sources = [find_backbone(**member) for member in record.backbone.members()]
    for source in sources:
        require_permission(source, folder)
    source = SEPARATOR.join(map(str, sources))
    try:
        return source, session.load_backbone(source, precision)
    except UserError as error:
        problem = f"the backbone of {folder} cannot be loaded: {error.problem}"
        raise UserError(problem, details=error.details, hint=choose_backbone()) from None
