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

from dca.core.files import explain_write_errors, write_bytes
from dca.core.text import normalize_name
from dca.datasets.classes import match_labels
from dca.datasets.dataset import Dataset, Item
from dca.datasets.folder import words_of
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


def folder_name(label: str) -> str:
    r"""The name of the folder of a label: the label itself, unless it could not be or would mislead as a name.

    >>> folder_name("hot air balloon"), folder_name("../cat"), folder_name("50 %")
    ('hot air balloon', '%2E.%2Fcat', '50 %25')
    """
    escaped = "".join(_escaped(c) if c in _RESERVED or ord(c) < 32 else c for c in label)
    if is_hidden(escaped) or escaped.startswith(" "):
        escaped = _escaped(escaped[0]) + escaped[1:]
    return escaped[:-1] + _escaped(escaped[-1]) if escaped.endswith((".", " ")) else escaped


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def label_of(name: str) -> str:
    """The label of a folder that `folder_name` named, or that a user made.

    >>> label_of(folder_name("../cat")), label_of("polar bear")
    ('../cat', 'polar bear')
    """
    return unquote(name)


def read_corrections(model: Path) -> list[Correction]:
    """The corrections of a model folder, the oldest first; of each image the newest.

    Raises:
        UserError: If a folder or a file cannot be read.
    """
    place = model / CORRECTIONS
    if not place.is_dir():
        return []
    files = [(file, label_of(folder.name)) for folder in list_class_folders(place) for file in list_images(folder)]
    found: dict[str, Correction] = {}
    for file, label in sorted(files, key=lambda pair: (pair[0].stat().st_mtime_ns, str(pair[0]))):
        sha256 = sha256_of(file)
        found.pop(sha256, None)  # a newer one comes later in the list, too
        found[sha256] = Correction(file, label, sha256)
    return list(found.values())


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
    path = model / CORRECTIONS / folder_name(label) / f"{sha256}{suffix}"
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)
    remove_correction(model, sha256, but=path)
    return Correction(path, label, sha256)


def remove_correction(model: Path, sha256: str, *, but: Path | None = None) -> None:
    """Delete the files of one image, and folders that are then empty. but: a file that stays."""
    place = model / CORRECTIONS
    for old in read_files(place, sha256):
        if old != but:
            with explain_write_errors(old):
                old.unlink(missing_ok=True)
            if not any(old.parent.iterdir()):
                old.parent.rmdir()


def read_files(place: Path, sha256: str) -> list[Path]:
    """The files of one image below the folder of corrections."""
    folders = list_class_folders(place) if place.is_dir() else []
    return [file for folder in folders for file in list_images(folder) if file.stem == sha256]


def keep_corrections(old: Path, new: Path) -> None:
    """Copy the corrections of the model folder `old` into `new`, which is to replace it."""
    if (old / CORRECTIONS).is_dir():
        with explain_write_errors(new):
            shutil.copytree(old / CORRECTIONS, new / CORRECTIONS, dirs_exist_ok=True)


def with_corrections(dataset: Dataset, corrections: Sequence[Correction]) -> Dataset:
    """The dataset with corrected images among the training images, under their corrected labels.

    A label that the dataset does not have becomes a class. An image that is also a validation or test image is not
    learned from. Training images with the same content are left out in favour of the correction.
    """
    tested = set(_contents((*dataset.val, *dataset.test), corrections))
    used = [correction for correction in corrections if correction.sha256 not in tested]
    labels, names, index = extended_classes(dataset.labels, dataset.names, [c.label for c in used])
    replaced = {c.sha256 for c in used}
    contents = _contents(dataset.train, used)
    kept = [item for item, content in zip(dataset.train, contents, strict=True) if content not in replaced]
    added = [Item(c.path, place) for c, place in zip(used, index, strict=True)]
    keys = (*dataset.keys, *labels[len(dataset.labels) :]) if dataset.keys else ()
    return replace(dataset, labels=labels, names=names, keys=keys, train=(*kept, *added))


def extended_classes(
    labels: Sequence[Any], names: Sequence[str], wanted: Sequence[str]
) -> tuple[tuple[Any, ...], tuple[str, ...], list[int]]:
    """Labels and names with the wanted labels among them, new ones last, and the class index of each wanted label.

    >>> extended_classes(["cat", 7], ["cat", "seven"], ["7", "fox", "Cat"])
    (('cat', 7, 'fox'), ('cat', 'seven', 'fox'), [1, 2, 0])
    """
    distinct: dict[str, str] = {}
    for label in wanted:
        distinct.setdefault(normalize_name(label), label)
    matched = match_labels(list(distinct.values()), list(map(words_of, distinct.values())), labels, names)
    new = [label for label, known in zip(distinct.values(), matched, strict=True) if known is None]
    fresh = iter(range(len(labels), len(labels) + len(new)))
    place = {key: next(fresh) if known is None else known for key, known in zip(distinct, matched, strict=True)}
    return (*labels, *new), (*names, *map(words_of, new)), [place[normalize_name(label)] for label in wanted]


def _contents(items: Iterable[Item], corrections: Sequence[Correction]) -> list[str | None]:
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
