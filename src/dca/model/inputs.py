"""Convert the forms in which a caller may give images and labels to image sources and datasets.

Arrays, tensors and data frames (pandas, polars, any with columns and `frame[name]`) are detected by duck typing.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dca.core.errors import UserError, unknown_name
from dca.core.hints import omit, set_shots
from dca.core.text import normalize_name, pluralize
from dca.datasets import load_dataset
from dca.datasets.catalog import class_list_of
from dca.datasets.classes import find_key_positions, match_labels, wordnet_ids
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import short_classes
from dca.datasets.folder import LABEL_COLUMNS, PATH_COLUMNS
from dca.datasets.walk import list_images
from dca.images.convert import as_image, is_single_image, reject_url
from dca.images.decode import ImageLike
from dca.methods.base import Method
from dca.methods.registry import all_methods
from dca.model.records import unreadable_names
from dca.training.session import Session

# The forms of one image are those of `images.convert.as_image`.
Images = str | Path | Image.Image | Iterable[Any] | Any
Labelled = str | Path | Dataset | Iterable[Any] | Any


def as_dataset(X: Any, y: Iterable[Any] | None, *, for_evaluation: bool = False) -> Dataset:
    """Labelled images X as a dataset: a dataset, a folder, an image list, or images with labels y.

    for_evaluation: the images are for evaluation only, so they need not be enough to learn from.
    """
    reject_url(X)
    if is_data_frame(X):
        X, y = data_frame_columns(X, y)
    if isinstance(X, str | Path | Dataset):
        if y is not None:
            raise UserError(
                "labels given together with a folder or dataset, which has its own labels", hint="fit(folder)"
            )
        return X if isinstance(X, Dataset) else load_dataset(X, for_evaluation=for_evaluation)
    if y is None:
        raise UserError("images without labels", hint="fit(images, labels), or a folder with one sub-folder per class")
    images, labels = _list_images(X), _list_labels(y)
    if len(images) != len(labels):
        found = f"{pluralize(len(images), 'image')} but {pluralize(len(labels), 'label')}"
        raise UserError(found, hint="one label for each image")
    distinct = _sorted_labels(set(labels))
    if alike := _alike_pairs(distinct):
        raise UserError("labels that read alike", details=alike, hint="give one class one name")
    index = {label: i for i, label in enumerate(distinct)}
    items = tuple(LabelledImage(x, index[label]) for x, label in zip(images, labels, strict=True))
    return Dataset(name="images", labels=distinct, names=tuple(map(str, distinct)), train=items)


def require_learnable(dataset: Dataset) -> None:
    """Raise unless there are at least two classes, all with readable names and training images."""
    if faults := unreadable_names([*map(str, dataset.labels), *dataset.names]):
        raise UserError("names that a class cannot have", details=faults, hint="rename these classes")
    if len(dataset.labels) < 2:
        found = f"1 class ('{dataset.labels[0]}')" if dataset.labels else "no images"
        raise UserError(f"found {found}; at least 2 classes are needed", hint="add images of another class")
    present = {item.label for item in dataset.train}
    if empty := [str(label) for c, label in enumerate(dataset.labels) if c not in present]:
        raise UserError("classes without training images", details=empty, hint="add images to these classes")


def as_images(X: Any) -> list[ImageLike]:
    """Images to predict: one image, several, or all images of a folder."""
    reject_url(X)
    if is_data_frame(X):
        X = data_frame_images(X)
    if is_single_image(X):
        return _require_files([as_image(X)])
    if not isinstance(X, str | Path):
        return _require_files(_list_images(X))
    found = list_images(Path(X))
    if not found:
        raise UserError(f"{X} holds no images", hint="give image files or a folder of them")
    return list(found)


def require_other(kind: type[Method]) -> None:
    """Raise if a method cannot learn from images of none of the classes."""
    if not kind.learns_other:
        able = ", ".join(name for name, known in all_methods().items() if known.learns_other)
        problem = f"{kind.name} cannot learn from images of none of the classes"
        raise UserError(problem, hint=[omit("other"), f"use a method that can: {able}"])


def require_other_only(dataset: Dataset, session: Session) -> None:
    """Raise if images of none of the classes are training images as well."""
    known = set(session.hash_images([item.image for item in dataset.train]))
    hashes = session.hash_images(dataset.other)
    both = [
        dataset.path_of(LabelledImage(image, 0)) or "an image in memory"
        for image, sha256 in zip(dataset.other, hashes, strict=True)
        if sha256 in known
    ]
    if both:
        hint = "remove them from one of the two"
        raise UserError("images both of a class and of none of the classes", details=both, hint=hint)


def require_shots(dataset: Dataset, shots: int | None) -> None:
    """Raise if a class has fewer training images than `shots`."""
    if shots is None or not (short := short_classes(dataset, shots)):
        return
    least = min(n for _, n in short)
    raise UserError(
        f"{pluralize(len(short), 'class', 'have', of=len(dataset.labels))} fewer than {shots} training images",
        details=[f"{label}: {n}" for label, n in short],
        hint=["add images", set_shots(least)] if least else "add images to the empty classes",
    )


def evaluation_items(dataset: Dataset) -> tuple[LabelledImage, ...]:
    """The images that a model is measured on: those of the test part, else validation, else training."""
    items = dataset.test or dataset.val or dataset.train
    if not items:
        raise UserError("no labelled images to measure on")
    return items


@dataclass(frozen=True)
class MatchedItems:
    """Images to measure on, with the class indices of the model.

    items: The images. classes: The model's class of each class of the data that it knows. by_id: Whether classes were
    matched by WordNet id.
    """

    items: list[LabelledImage]
    classes: tuple[int, ...]
    by_id: bool


def match_classes(dataset: Dataset, labels: Sequence[Any], names: Sequence[str], public: str = "") -> MatchedItems:
    """The dataset's `evaluation_items`, and its classes among those of the model.

    labels, names: the model's classes. public: name of the public dataset it was fitted on. Classes are matched by
    WordNet id where both have one, else by label, then by name; see `match_labels`.
    Raises UserError with the classes that the model does not know.
    """
    items = evaluation_items(dataset)
    if dataset.names == tuple(names):  # in public datasets two classes may have the same name
        return MatchedItems(list(items), tuple(range(len(names))), False)
    ids = wordnet_ids(labels, classes=class_list_of(public))
    other_ids = wordnet_ids(dataset.labels, dataset.keys)
    by_id = bool(ids and other_ids)
    index = find_key_positions(other_ids, ids) if by_id else match_labels(dataset.labels, dataset.names, labels, names)
    used = Counter(item.label for item in items)
    if unknown := [
        f"{_describe_class(dataset.labels[y], dataset.names[y])}: {pluralize(n, 'image')}"
        for y, n in used.items()
        if index[y] is None
    ]:
        known = [_describe_class(label, name) for label, name in zip(labels, names, strict=True)]
        raise UserError(
            "classes that the model does not know",
            details=unknown,
            hint=f"the model knows: {', '.join(known[:20])}{', ...' * (len(known) > 20)}; rename the classes, "
            "or name them in a classnames.json",
        )
    known_items = [LabelledImage(item.image, c) for item in items if (c := index[item.label]) is not None]
    return MatchedItems(known_items, tuple(c for c in index if c is not None), by_id)


def _describe_class(label: Any, name: str) -> str:
    """A class in messages: its label, with its name if that is different."""
    return str(label) if normalize_name(str(label)) == normalize_name(name) else f"{label} ({name})"


def is_data_frame(X: Any) -> bool:
    """Whether X is a data frame."""
    return hasattr(X, "columns") and hasattr(X, "__getitem__") and not isinstance(X, np.ndarray | str)


def data_frame_images(frame: Any) -> list[Any]:
    """The images of a data frame: the column path, or another usual name of it."""
    return list(frame[_find_column(frame, PATH_COLUMNS, "image paths")])


def data_frame_columns(frame: Any, y: Any) -> tuple[list[Any], Iterable[Any]]:
    """Images and labels of a data frame.

    y: labels, the name of the column that has them, or None for the column label, or another usual name of it.
    """
    if y is None:
        y = _find_column(frame, LABEL_COLUMNS, "labels")
    if isinstance(y, str):
        y = list(frame[_find_named_column(frame, y)])
    return data_frame_images(frame), y


def _find_column(frame: Any, names: Sequence[str], what: str) -> Any:
    """The first of these names that is a column, whatever its case."""
    columns = _columns_by_name(frame)
    if found := [columns[name.casefold()] for name in names if name.casefold() in columns]:
        return found[0]
    raise UserError(
        f"the data frame has no column with {what}: its columns are {', '.join(map(str, frame.columns))}",
        hint=f"name the column '{names[0]}', or give lists instead",
    )


def _find_named_column(frame: Any, name: str) -> Any:
    """The column of this name, whatever its case."""
    columns = _columns_by_name(frame)
    if name.casefold() not in columns:
        raise unknown_name("column", name, map(str, frame.columns))
    return columns[name.casefold()]


def _columns_by_name(frame: Any) -> dict[str, Any]:
    return {str(column).casefold(): column for column in frame.columns}


def _list_images(X: Any) -> list[ImageLike]:
    single = is_single_image(X) and not isinstance(X, str | Path)
    if single or not isinstance(X, Iterable):
        raise UserError(f"a list of images expected, found a {type(X).__name__}", hint="[image] for a single one")
    images, faults = list[ImageLike](), list[tuple[int, UserError]]()
    for number, x in enumerate(X):
        try:
            images.append(as_image(x))
        except UserError as error:
            faults.append((number, error))
    if faults:
        details = [f"number {number}: {error.problem}" for number, error in faults]
        found = pluralize(len(faults), "image", of=len(images) + len(faults))
        raise UserError(f"{found} cannot be used", details=details, hint=faults[0][1].hint_parts)
    return images


def _list_labels(y: Any) -> list[Any]:
    if isinstance(y, str) or not isinstance(y, Iterable):
        raise UserError(f"a list of labels expected, found {y!r}", hint="one label for each image")
    labels = y.tolist() if hasattr(y, "tolist") else list(y)  # NumPy and torch numbers become Python numbers
    if wrong := [repr(label)[:60] for label in labels if not isinstance(label, Hashable)]:
        raise UserError("labels that are no single values", details=wrong, hint="one name or number for each image")
    if missing := [str(n) for n, label in enumerate(labels) if label is None or label != label]:
        hint = "give each of them a label, or leave them out"
        raise UserError("images without a label", details=[f"number {', '.join(missing[:20])}"], hint=hint)
    return labels


def _sorted_labels(labels: Iterable[Any]) -> tuple[Any, ...]:
    """Labels sorted by value; labels of several types by their text."""
    try:
        return tuple(sorted(labels))
    except TypeError:
        return tuple(sorted(labels, key=lambda label: (str(label), type(label).__name__)))


def _require_files(images: list[ImageLike]) -> list[ImageLike]:
    if missing := [str(p) for p in images if isinstance(p, Path) and not os.path.exists(p)]:
        raise UserError("no such file", details=missing, hint="check the paths")
    return images


def _alike_pairs(labels: Sequence[Any]) -> list[str]:
    """Pairs of labels whose names CLIP could not tell apart."""
    seen: dict[str, Any] = {}
    pairs = [(seen.setdefault(normalize_name(str(label)), label), label) for label in labels]
    return [f"{first!r} and {label!r}" for first, label in pairs if first != label]


def require_whole_number(name: str, value: Any, low: int) -> int:
    """The value as an int, NumPy integers included; raises a UserError for anything else or below `low`."""
    hint = "shots=16, for example, or shots=None for all images" if name == "shots" else f"{name}=1, for example"
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name}={value!r}: a whole number expected", hint=hint) from None
    if isinstance(value, bool) or number < low:
        raise UserError(f"{name}={value!r}: a whole number of at least {low} expected", hint=hint)
    return number


def label_array(labels: Sequence[Any]) -> NDArray[Any]:
    """Labels as an array of their own type; of objects if they have several types or NumPy would change them."""
    array = np.array(labels)
    if array.tolist() != list(labels):
        array = np.empty(len(labels), dtype=object)
        array[:] = labels
    return array
