"""What the catalog knows about one public dataset.

How public datasets are arranged on disk.

Building a dataset lists its images without opening them; `dca.datasets.check` says which are missing.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dca.core.errors import UserError
from dca.core.hints import show_dataset
from dca.core.text import normalize_name, pluralize
from dca.datasets.classes import class_list, distinct_labels
from dca.datasets.dataset import Dataset, Item
from dca.datasets.folder import load_folder, split_folders, words_of
from dca.datasets.walk import is_hidden, list_images, scan_folder


class Layout(Protocol):
    """How a dataset is arranged on disk."""

    def recognises(self, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""

    def build(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder; images are listed, not opened. Raises UserError."""

    def tree(self) -> tuple[str, ...]:
        """What the folder should hold, one line each."""


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One public dataset: facts about it, and how to read it.

    Settings that papers use for a dataset belong to the methods, not here.

    classes: number of classes. sizes: official numbers of train, val and test images.
    folder: its usual name under the data root.
    notes: how its split or names differ from what one would expect.
    test_per_class: test images of every class, where that is one number.
    names: name of the dataset whose list of classes it shares; its own if empty.
    aliases: other names that it is found by.
    """

    name: str
    title: str
    folder: str
    layout: Layout
    classes: int
    sizes: tuple[int, int, int]
    split: str
    home: str
    licence: str
    citation: str
    template: str = "a photo of a {}."
    aliases: tuple[str, ...] = ()
    notes: str = ""
    names: str = ""
    test_per_class: int = 0

    def class_list(self) -> tuple[tuple[str, str], ...]:
        """Key (folder, WordNet id, number) and name of every class, in label order."""
        return class_list(self.names or self.name)

    def build(self, folder: Path) -> Dataset:
        """Read the dataset from its folder. Raises UserError."""
        return self.layout.build(self, folder)

    def describe(self) -> dict[str, object]:
        """The facts, ready for JSON."""
        facts: dict[str, object] = {key: getattr(self, key) for key in _FACTS}
        facts["sizes"] = dict(zip(("train", "val", "test"), self.sizes, strict=True))
        facts["layout"] = list(self.layout.tree())
        return facts


_FACTS = ("name", "title", "folder", "classes", "split", "template", "home", "licence", "citation", "aliases", "notes")


PARTS = ("train", "val", "test")
_Split = dict[str, list[tuple[str, int, str]]]  # part -> (path, label, stored name)


@dataclass(frozen=True)
class SplitFile:
    """A JSON file of [path, label, name] rows beside the images.

    images: folders that the paths may be relative to, the official one first.
    """

    file: str
    images: tuple[str, ...]

    def recognises(self, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""
        return _existing(folder, self.file) is not None

    def build(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder. Raises UserError."""
        file = _existing(folder, self.file)
        if file is None:
            return mirror(entry, folder, lacks=self.file)
        split = read_split(file)
        base, place = _placer(folder, self.images, [path for part in PARTS for path, _, _ in split[part]])
        names = _stored_names(file, split)
        parts = {part: tuple(Item(place(path), y) for path, y, _ in split[part]) for part in PARTS}
        return _assemble(entry, parts, names, base, f"public split file {file.name}")

    def tree(self) -> tuple[str, ...]:
        """What the folder should hold."""
        return (f"{self.images[0]}/", self.file)


@dataclass(frozen=True)
class VariantLists:
    """FGVC Aircraft: text lists of image numbers and variants."""

    inside: tuple[str, ...] = ("", "fgvc-aircraft-2013b/data", "data")

    def recognises(self, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""
        return (folder / "images_variant_train.txt").is_file()

    def build(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder. Raises UserError."""
        base = next((folder / sub for sub in self.inside if self.recognises(folder / sub)), folder)
        missing = [name for name in self.tree()[1:] if not (base / name).is_file()]
        if missing:
            return mirror(entry, folder, lacks=", ".join(missing))
        lines = (base / "variants.txt").read_text(encoding="utf-8").split("\n")
        names = [line.strip() for line in lines if line.strip()]
        number = {name: y for y, name in enumerate(names)}
        parts = {part: self._read(base, part, number) for part in PARTS}
        return _assemble(entry, parts, names, base, "official variant lists")

    def tree(self) -> tuple[str, ...]:
        """What the folder should hold."""
        return ("images/", "variants.txt", *(f"images_variant_{part}.txt" for part in PARTS))

    @staticmethod
    def _read(base: Path, part: str, number: dict[str, int]) -> tuple[Item, ...]:
        file = base / f"images_variant_{part}.txt"
        items, faults = [], []
        for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            image, _, variant = text.strip().partition(" ")
            if variant in number:
                items.append(Item(base / "images" / f"{image}.jpg", number[variant]))
            elif text.strip():
                faults.append(f"line {line}: '{variant}' is not in variants.txt")
        if faults:
            raise UserError(f"{file}: {pluralize(len(faults), 'line', 'name')} an unknown variant.", details=faults)
        return tuple(items)


@dataclass(frozen=True)
class ClassFolders:
    """ImageNet and its variants: one folder per WordNet id, or per label number.

    train, test: folders where each part may be, the official one first; test-only sets have no
    train. names: name of the list of classes. numbered: folders are called 0, 1, ... in label order.
    solution: CSV that labels a flat test folder (Kaggle's ImageNet).
    """

    test: tuple[str, ...]
    names: str
    train: tuple[str, ...] = ()
    numbered: bool = False
    solution: str = ""

    def recognises(self, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""
        base = self._find(folder, self.train or self.test)
        if base is None or self._find(folder, self.test) is None:
            return False
        return {entry.name for entry in scan_folder(base) if entry.is_dir()}.issuperset(self._keys())

    def build(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder. Raises UserError."""
        keys = self._keys()
        if not self._find(folder, self.test):
            details = [f"expected {folder.name}/{line}" for line in self.tree()]
            raise UserError(f"{folder}: the folders of {entry.title} are not in it.", details=details)
        parts = {"train": self._items(folder, self.train, keys), "val": ()}
        parts["test"] = self._items(folder, self.test, keys) or self._solved(folder, keys)
        names = [name for _, name in class_list(self.names)]
        return _assemble(entry, parts, names, folder, "class folders, file names sorted")

    def tree(self) -> tuple[str, ...]:
        """What the folder should hold."""
        inner = "0/ ... 999/" if self.numbered else "n01440764/ ..."
        return tuple(f"{places[0]}/{inner}" for places in (self.train, self.test) if places)

    def _keys(self) -> list[str]:
        """Name of each class's folder, in label order."""
        return [str(y) if self.numbered else key for y, (key, _) in enumerate(class_list(self.names))]

    @staticmethod
    def _find(folder: Path, places: Sequence[str]) -> Path | None:
        return next((folder / place for place in places if (folder / place).is_dir()), None)

    def _items(self, folder: Path, places: Sequence[str], keys: Sequence[str]) -> tuple[Item, ...]:
        base = self._find(folder, places)
        if base is None:
            return ()
        folders = {entry.name for entry in scan_folder(base) if entry.is_dir()}
        return tuple(Item(p, y) for y, key in enumerate(keys) if key in folders for p in list_images(base / key))

    def _solved(self, folder: Path, keys: Sequence[str]) -> tuple[Item, ...]:
        """Items of a flat test folder, labelled by the solution file."""
        base = self._find(folder, self.test)
        if not self.solution or base is None or not (folder / self.solution).is_file():
            return ()
        number = {key: y for y, key in enumerate(keys)}
        with (folder / self.solution).open(encoding="utf-8", newline="") as file:
            rows = [(row["ImageId"], row["PredictionString"].split()[0]) for row in csv.DictReader(file)]
        items = ((base / f"{image}.JPEG", number[key]) for image, key in rows if key in number)
        return tuple(Item(path, y) for path, y in sorted(items, key=lambda item: (item[1], item[0].name)))


def read_split(file: Path) -> _Split:
    """Rows of a public split file, checked. Raises UserError."""
    try:
        raw: Any = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        split = {part: [(str(p), int(y), str(name)) for p, y, name in raw[part]] for part in PARTS}
    except (ValueError, TypeError, KeyError, OSError, EOFError, RecursionError) as error:
        raise UserError(
            f"{file}: not a split file ({type(error).__name__}: {error}).",
            hint='expected {"train": [["path.jpg", 0, "name"], ...], "val": [...], "test": [...]}',
        ) from error
    outside = [p for rows in split.values() for p, _, _ in rows if p.startswith("/") or ".." in PurePosixPath(p).parts]
    if outside:
        raise UserError(f"{file}: {len(outside)} paths leave the folder.", details=outside)
    return split


def mirror(entry: CatalogEntry, folder: Path, lacks: str) -> Dataset:
    """A copy with its own train and test folders; its split is not the public one."""
    place = folder
    while not split_folders(place) and len(inner := _visible_folders(place)) == 1:
        place = inner[0]
    if split_folders(place):
        found = adopt(entry, load_folder(place))
        if found is not None:
            return replace(found, split=f"{found.split} of this copy, not the public split")
    raise UserError(
        f"{folder}: {lacks} is missing, so the public split of {entry.title} is unknown.",
        details=[f"expected in {folder.name}/: {line}" for line in entry.layout.tree()],
        hint=[show_dataset(entry.name), "name the image folder itself to use it as a plain folder of images"],
    )


def adopt(entry: CatalogEntry, dataset: Dataset) -> Dataset | None:
    """Give a plain folder the names, order and template of a catalog entry, if its classes are exactly the entry's.

    The labels stay those of the folder.
    """
    classes = entry.class_list()
    index = {normalize_name(text): y for y, pair in enumerate(classes) for text in pair}
    found = [index.get(normalize_name(label)) for label in dataset.labels]
    if not classes or sorted(y for y in found if y is not None) != list(range(len(classes))):
        return None
    new = {old: y for old, y in enumerate(found) if y is not None}
    old = {y: label for label, y in new.items()}

    def relabel(items: Iterable[Item]) -> tuple[Item, ...]:
        return tuple(sorted((Item(i.image, new[i.label]) for i in items), key=lambda i: i.label))

    return replace(
        dataset,
        name=entry.name,
        labels=tuple(dataset.labels[old[y]] for y in range(len(classes))),
        names=tuple(name for _, name in classes),
        keys=tuple(key for key, _ in classes),
        train=relabel(dataset.train),
        val=relabel(dataset.val),
        test=relabel(dataset.test),
        template=entry.template,
        public=entry.name,
    )


def _existing(folder: Path, file: str) -> Path | None:
    places = (folder / file, folder / f"{file}.gz", folder.parent / file)
    return next((place for place in places if place.is_file()), None)


def _visible_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [Path(entry.path) for entry in scan_folder(folder) if entry.is_dir() and not is_hidden(entry.name)]


def _stored_names(file: Path, split: _Split) -> tuple[str, ...]:
    """Class names in label order; every label must have exactly one."""
    names = dict.fromkeys((y, name) for rows in split.values() for _, y, name in rows)
    count = Counter(y for y, _ in names)
    if sorted(count) != list(range(len(names))):
        twice = [f"label {y} has {n} different names" for y, n in count.items() if n > 1]
        raise UserError(f"{file}: labels are not 0..{len(names) - 1} with one name each.", details=twice)
    return tuple(name for _, name in sorted(names))


def _placer(folder: Path, images: Sequence[str], paths: Sequence[str]) -> tuple[Path, Callable[[str], Path]]:
    """The folder that split paths are relative to, and a function from a split path to its image.

    Takes the image folder that has most of a sample of the paths. If none has any, images are found
    by file name anywhere under `folder`, so that re-arranged copies are understood.
    """
    sample = paths[:: max(1, len(paths) // 64)]
    bases = [folder / sub for sub in images] + [folder]
    hits = [sum((base / path).is_file() for path in sample) for base in bases]
    base = bases[hits.index(max(hits))]
    if max(hits) or not folder.is_dir():
        return base, base.joinpath
    by_name: dict[str, list[tuple[set[str], Path]]] = {}
    for file in list_images(folder):
        by_name.setdefault(file.name, []).append((_words(file.relative_to(folder).parts[:-1]), file))
    return base, partial(_lookup, base, by_name)


def _lookup(base: Path, by_name: dict[str, list[tuple[set[str], Path]]], path: str) -> Path:
    """The image of that name whose folders share most words with the path's."""
    wanted = PurePosixPath(path)
    words = _words(wanted.parts[:-1])
    scored = sorted(((len(words & theirs), file) for theirs, file in by_name.get(wanted.name, [])), reverse=True)
    if not scored or (len(scored) > 1 and scored[0][0] == scored[1][0]):
        return base / path
    return scored[0][1]


def _words(folders: Iterable[str]) -> set[str]:
    return {word for folder in folders for word in re.split(r"[\W_]+", folder.casefold()) if word}


def _assemble(
    entry: CatalogEntry, parts: dict[str, tuple[Item, ...]], stored: Sequence[str], root: Path, split: str
) -> Dataset:
    """The dataset of an entry; its classes have keys where the names are the catalog's."""
    names = tuple(words_of(name) for name in stored)
    classes = entry.class_list()
    keys = tuple(key for key, _ in classes) if names == tuple(name for _, name in classes) else ()
    return Dataset(
        name=entry.name,
        labels=distinct_labels(names, keys),
        names=names,
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
        template=entry.template,
        keys=keys,
        root=root,
        split=split,
        public=entry.name,
    )
