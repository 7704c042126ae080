"""Corrected labels, kept as ordinary files: MODEL/corrections/<label>/<image>.

`dca serve` writes them, one file per image, named by the hash of its content; `dca fit` learns from them. Files that a
user puts there count, too. If one image lies under two labels, the newer file counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dca.core.files import explain_write_errors, link_tree, restore_folder, write_bytes
from dca.core.text import normalize_name
from dca.datasets.classes import label_to_name, match_labels
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.walk import is_hidden, list_class_folders, list_images
from dca.images.hashing import sha256_of

CORRECTIONS = "corrections"
# Characters that some file system refuses in a name; "%" begins an escape.
_RESERVED = frozenset('/\\:*?"<>|%')


@dataclass(frozen=True)
class Correction:
    """One corrected image. path: its file. label: of its class. sha256: hash of its content."""

    path: Path
    label: str
    sha256: str


def escape_label(label: str) -> str:
    r"""The name of the folder of a label: the label itself, with characters escaped that are no part of a safe name.

    >>> escape_label("hot air balloon"), escape_label("../cat"), escape_label("50 %")
    ('hot air balloon', '%2E.%2Fcat', '50 %25')
    """
    escaped = "".join(_escape(c) if c in _RESERVED or ord(c) < 32 else c for c in label)
    if is_hidden(escaped) or escaped.startswith(" "):
        escaped = _escape(escaped[0]) + escaped[1:]
    return escaped[:-1] + _escape(escaped[-1]) if escaped.endswith((".", " ")) else escaped


def _escape(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def unescape_label(name: str) -> str:
    """The label of a folder that `escape_label` named, or that a user made.

    >>> unescape_label(escape_label("../cat")), unescape_label("polar bear")
    ('../cat', 'polar bear')
    """
    return unquote(name)


def read_corrections(model: Path) -> list[Correction]:
    """The corrections of a model folder, the oldest first; of each image the newest.

    Raises:
        UserError: If a folder or a file cannot be read.
    """
    restore_folder(model)
    root = model / CORRECTIONS
    if not root.is_dir():
        return []
    files = [(file, unescape_label(folder.name)) for folder in list_class_folders(root) for file in list_images(folder)]
    corrections: dict[str, Correction] = {}
    for file, label in sorted(files, key=lambda pair: (pair[0].stat().st_mtime_ns, str(pair[0]))):
        sha256 = sha256_of(file)
        corrections.pop(sha256, None)  # a newer one comes later in the list, too
        corrections[sha256] = Correction(file, label, sha256)
    return list(corrections.values())


def write_correction(model: Path, label: str, data: bytes, sha256: str, suffix: str) -> Correction:
    """Write one image under its label and then remove it from any other label; it is on disk when this returns.

    Args:
        model: The model folder.
        label: The label.
        data: The image file.
        sha256: Hash of `data`.
        suffix: End of its name, such as ".jpg".

    Raises:
        UserError: If it cannot be written.
    """
    path = model / CORRECTIONS / escape_label(label) / f"{sha256}{suffix}"
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)
    remove_correction(model, sha256, but=path)
    return Correction(path, label, sha256)


def remove_correction(model: Path, sha256: str, *, but: Path | None = None) -> None:
    """Delete the files of one image, and folders that are then empty. but: a file that stays."""
    for old in _list_files(model / CORRECTIONS, sha256):
        if old != but:
            with explain_write_errors(old):
                old.unlink(missing_ok=True)
            if not any(old.parent.iterdir()):
                old.parent.rmdir()


def _list_files(root: Path, sha256: str) -> list[Path]:
    """The files of one image below the folder of corrections."""
    folders = list_class_folders(root) if root.is_dir() else []
    return [file for folder in folders for file in list_images(folder) if file.stem == sha256]


def carry_over_corrections(old: Path, new: Path) -> None:
    """Put the corrections of the model folder `old`, and no others, into `new`, which is to replace it."""
    with explain_write_errors(new):
        if (old / CORRECTIONS).is_dir():
            link_tree(old / CORRECTIONS, new / CORRECTIONS)
        elif (new / CORRECTIONS).is_dir():  # of an attempt that was killed; they have been undone since
            shutil.rmtree(new / CORRECTIONS)


def add_corrections(dataset: Dataset, corrections: Sequence[Correction]) -> Dataset:
    """The dataset with corrected images among the training images, under their corrected labels.

    A label that the dataset does not have becomes a class. An image that is also a validation or test image is not
    learned from. Training images with the same content are left out in favour of the correction.
    """
    tested = set(_hashes((*dataset.val, *dataset.test), corrections))
    used = [correction for correction in corrections if correction.sha256 not in tested]
    labels, names, classes = extend_classes(dataset.labels, dataset.names, [c.label for c in used])
    corrected = {c.sha256 for c in used}
    hashes = _hashes(dataset.train, used)
    kept = [item for item, sha256 in zip(dataset.train, hashes, strict=True) if sha256 not in corrected]
    added = [LabelledImage(c.path, y) for c, y in zip(used, classes, strict=True)]
    keys = (*dataset.keys, *labels[len(dataset.labels) :]) if dataset.keys else ()
    return replace(dataset, labels=labels, names=names, keys=keys, train=(*kept, *added))


def extend_classes(
    labels: Sequence[Any], names: Sequence[str], wanted: Sequence[str]
) -> tuple[tuple[Any, ...], tuple[str, ...], list[int]]:
    """Labels and names with the wanted labels among them, new ones last, and the class index of each wanted label.

    >>> extend_classes(["cat", 7], ["cat", "seven"], ["7", "fox", "Cat"])
    (('cat', 7, 'fox'), ('cat', 'seven', 'fox'), [1, 2, 0])
    """
    distinct: dict[str, str] = {}
    for label in wanted:
        distinct.setdefault(normalize_name(label), label)
    matched = match_labels(list(distinct.values()), list(map(label_to_name, distinct.values())), labels, names)
    new = [label for label, known in zip(distinct.values(), matched, strict=True) if known is None]
    fresh = iter(range(len(labels), len(labels) + len(new)))
    index = {key: next(fresh) if known is None else known for key, known in zip(distinct, matched, strict=True)}
    return (*labels, *new), (*names, *map(label_to_name, new)), [index[normalize_name(label)] for label in wanted]


def _hashes(items: Iterable[LabelledImage], corrections: Sequence[Correction]) -> list[str | None]:
    """The hash of each image file that may equal a correction; None for others: only files of equal size are read."""
    sizes = {correction.path.stat().st_size for correction in corrections}
    return [
        sha256_of(item.image) if isinstance(item.image, Path) and _size(item.image) in sizes else None for item in items
    ]


def _size(path: Path) -> int:
    """Size of a file; -1 where it cannot be read, which is reported later."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
