"""The forms in which a user may hold pictures and labels, made into one."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from dca.core.errors import UserError, counted
from dca.core.progress import Progress, of_stage
from dca.data import load_dataset
from dca.data.dataset import Dataset, Item
from dca.data.decode import Picture, Unreadable, attempt, unreadable
from dca.data.sources.folder import image_files
from dca.model.checkpoint import unreadable_names

P = TypeVar("P", bound=Picture)


def as_dataset(X: Any, y: Iterable[Any] | None, *, measuring: bool = False) -> Dataset:
    """Labelled pictures: a dataset, a folder, an image list, or pictures X with labels y.

    measuring: they need not be enough to learn from.
    """
    if isinstance(X, str | Path | Dataset):
        if y is not None:
            raise UserError("labels given beside a folder or dataset, which has its labels already", hint="fit(folder)")
        return X if isinstance(X, Dataset) else load_dataset(X, measuring=measuring)
    if y is None:
        raise UserError(
            "pictures without labels", hint="fit(pictures, labels), or a folder with one sub-folder a class"
        )
    pictures, labels = _several(X), _labels(y)
    if len(pictures) != len(labels):
        found = f"{counted(len(pictures), 'picture')} but {counted(len(labels), 'label')}"
        raise UserError(found, hint="one label for each picture")
    distinct = _in_order(set(labels))
    if alike := _alike(distinct):
        raise UserError("labels that read alike", details=alike, hint="give one class one name")
    place = {label: i for i, label in enumerate(distinct)}
    items = tuple(Item(x, place[label]) for x, label in zip(pictures, labels, strict=True))
    return Dataset(name="images", classes=tuple(map(str, distinct)), train=items, labels=distinct)


def require_learnable(dataset: Dataset) -> None:
    """Raise unless there are two classes, all with readable names and training images."""
    if faults := unreadable_names(dataset.classes):
        raise UserError("class names that are no text", details=faults, hint="rename these classes")
    if len(dataset.classes) < 2:
        found = f"1 class ('{dataset.classes[0]}')" if dataset.classes else "no pictures"
        raise UserError(f"found {found}; at least 2 classes are needed", hint="add pictures of another class")
    present = {item.label for item in dataset.train}
    if empty := [name for c, name in enumerate(dataset.classes) if c not in present]:
        raise UserError("classes without training images", details=empty, hint="add images to these classes")


def as_pictures(X: Any) -> list[Picture]:
    """Pictures to predict: one, several, or all images of a folder."""
    if is_one(X):
        return _exist([as_picture(X)])
    if not isinstance(X, str | Path):
        return _exist(_several(X))
    found = image_files(Path(X))
    if not found:
        raise UserError(f"{X} holds no images", hint="give image files or a folder of them")
    return list(found)


def readable(pictures: Sequence[P], progress: Progress) -> tuple[list[P], list[str]]:
    """The pictures that can be opened, and the name of each other one with the reason; raises if none can."""
    outcomes = attempt(pictures, lambda image: None, progress=of_stage(progress, "checking"))
    faults = [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]
    if len(faults) == len(pictures):
        raise unreadable(faults, len(pictures))
    good = [p for p, outcome in zip(pictures, outcomes, strict=True) if not isinstance(outcome, Unreadable)]
    return good, [str(fault) for fault in faults]


def is_one(X: Any) -> bool:
    """Whether X is a single picture: a path that is no folder, or an image."""
    return isinstance(X, Image.Image) or (isinstance(X, str | Path) and not os.path.isdir(X))


def as_picture(x: Any) -> Picture:
    """A path or an image."""
    if isinstance(x, Image.Image | Path):
        return x
    if isinstance(x, str):
        return Path(x)
    raise UserError(
        f"a picture must be a path or a PIL image, not a {type(x).__name__}",
        hint="make an image of an array with PIL.Image.fromarray(array)",
    )


def match_classes(dataset: Dataset, classes: Sequence[str]) -> list[Item]:
    """The dataset's test images (else validation, else all), labelled by the model's classes."""
    items = dataset.test or dataset.val or dataset.train
    if not items:
        raise UserError("no labelled pictures to measure on")
    if dataset.classes == tuple(classes):  # public sets have classes of the same name
        return list(items)
    place = {_folded(name): i for i, name in enumerate(classes)}
    used = Counter(dataset.classes[i.label] for i in items)
    if unknown := [f"{name}: {counted(n, 'image')}" for name, n in used.items() if _folded(name) not in place]:
        raise UserError(
            "classes that the model does not know",
            details=unknown,
            hint=f"the model knows: {', '.join(list(classes)[:20])}; a classnames.json beside the classes renames them",
        )
    return [Item(i.picture, place[_folded(dataset.classes[i.label])]) for i in items]


def _several(X: Any) -> list[Picture]:
    if isinstance(X, Image.Image) or not isinstance(X, Iterable):
        raise UserError(f"a list of pictures expected, found a {type(X).__name__}", hint="[picture] for a single one")
    return [as_picture(x) for x in X]


def _labels(y: Any) -> list[Any]:
    if isinstance(y, str) or not isinstance(y, Iterable):
        raise UserError(f"a list of labels expected, found {y!r}", hint="one label for each picture")
    labels = y.tolist() if hasattr(y, "tolist") else list(y)  # numbers of arrays and tensors as Python's
    if wrong := [repr(label)[:60] for label in labels if not isinstance(label, Hashable)]:
        raise UserError("labels that are no single values", details=wrong, hint="one name or number for each picture")
    if missing := [str(n) for n, label in enumerate(labels) if label is None or label != label]:
        hint = "give each of them a label, or leave them out"
        raise UserError("pictures without a label", details=[f"number {', '.join(missing[:20])}"], hint=hint)
    return labels


def _in_order(labels: Iterable[Any]) -> tuple[Any, ...]:
    """Labels sorted: numbers by size, names by letters; mixed ones as they read."""
    try:
        return tuple(sorted(labels))
    except TypeError:
        return tuple(sorted(labels, key=lambda label: (str(label), type(label).__name__)))


def _exist(pictures: list[Picture]) -> list[Picture]:
    if missing := [str(p) for p in pictures if isinstance(p, Path) and not os.path.exists(p)]:
        raise UserError("no such file", details=missing, hint="check the paths")
    return pictures


def _alike(labels: Sequence[Any]) -> list[str]:
    seen: dict[str, Any] = {}
    pairs = [(seen.setdefault(_folded(str(label)), label), label) for label in labels]
    return [f"{first!r} and {label!r}" for first, label in pairs if first != label]


def _folded(name: str) -> str:
    """What class names share that differ only in case, underscores, spaces or Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", name).replace("_", " ").split()).casefold()
