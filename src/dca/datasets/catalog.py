"""The public datasets: what is known about each, how each is arranged on disk, and how to find one.

The facts are in `catalog.toml`. Another package adds a dataset with an entry point of the group `dca.datasets`, which
points to a `CatalogEntry`; if the dataset has class names of its own, to an object of a subclass that overrides
`class_list`. Options that papers use for a dataset belong to the methods, not here.

Loading a dataset lists its images without opening them; `dca.datasets.check` says which are missing.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dca.core.errors import UserError, unknown_name
from dca.core.hints import list_datasets, show_dataset
from dca.core.text import normalize_name, pluralize
from dca.datasets.classes import distinct_labels, label_to_name, read_class_list
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.folder import load_folder, split_folders
from dca.datasets.walk import is_hidden, list_images, scan_folder

PARTS = ("train", "val", "test")
# The end of `Dataset.split` for copies of a public dataset that are divided in another way.
NOT_THE_PUBLIC_SPLIT = "of this copy, not the public split"


class Layout(Protocol):
    """How a dataset is arranged on disk."""

    def matches(self, entry: CatalogEntry, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""

    def load(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder; images are listed, not opened. Raises UserError."""

    def expected_files(self) -> tuple[str, ...]:
        """What the folder should hold, one line each."""


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One public dataset: facts about it, and how to read it.

    Args:
        name: Its name here and in file names.
        title: What papers call it.
        folder: The usual name of its folder under the data root.
        layout: How its folder is arranged: a `SplitFile`, `VariantLists`, `ClassFolders`, or an object like these.
        classes: Number of classes.
        sizes: Official numbers of train, val and test images.
        split: Where the division into parts comes from.
        home: Where to get it.
        licence: Its licence, in words.
        citation: The publication to cite.
        template: Zero-shot sentence with `{}` for the class name.
        aliases: Other names that it is found by.
        notes: How its split or names differ from what one would expect.
        class_list_of: Name of the dataset whose list of classes it shares; its own if empty.
        test_per_class: Test images of every class, where that is one number.

    Example:
        >>> from dca.datasets import catalog
        >>> entry = catalog.get("EuroSAT")
        >>> entry.name, entry.classes, entry.class_list()[0]
        ('eurosat', 10, ('AnnualCrop', 'Annual Crop Land'))
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
    class_list_of: str = ""
    test_per_class: int = 0

    def class_list(self) -> tuple[tuple[str, str], ...]:
        """Key (folder, WordNet id, number) and name of every class, in label order; empty if no list is known."""
        return read_class_list(self.class_list_of or self.name)

    def matches(self, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset, by its files; the folder's name does not count."""
        return self.layout.matches(self, folder)

    def load(self, folder: Path) -> Dataset:
        """Read the dataset from its folder. Raises UserError."""
        return self.layout.load(self, folder)

    def describe(self) -> dict[str, object]:
        """The facts, ready for JSON."""
        facts: dict[str, object] = {key: getattr(self, key) for key in _FACTS}
        facts["sizes"] = dict(zip(PARTS, self.sizes, strict=True))
        facts["layout"] = list(self.layout.expected_files())
        return facts


_FACTS = ("name", "title", "folder", "classes", "split", "template", "home", "licence", "citation", "aliases", "notes")


# Finding a dataset


@cache
def entries() -> dict[str, CatalogEntry]:
    """Every known dataset by name: ours in the paper's order, then those of installed packages.

    Raises:
        UserError: If an entry point does not point to a `CatalogEntry`.
    """
    text = (resources.files("dca.datasets") / "catalog.toml").read_text(encoding="utf-8")
    known = {name: _read_entry(name, facts) for name, facts in tomllib.loads(text).items()}
    for point in entry_points(group="dca.datasets"):
        entry = point.load()
        if not isinstance(entry, CatalogEntry):
            problem = f"entry point dca.datasets '{point.name}' is not a CatalogEntry but a {type(entry).__name__}."
            raise UserError(problem)
        known.setdefault(entry.name, entry)
    return known


def find(name: str) -> CatalogEntry | None:
    """The dataset with this name, folder, title or alias; None if there is none. Case and separators do not matter."""
    wanted = normalize_name(name)
    for entry in entries().values():
        if wanted in map(normalize_name, (entry.name, entry.folder, entry.title, *entry.aliases)):
            return entry
    return None


def get(name: str) -> CatalogEntry:
    """Like `find`, but raises UserError with the nearest name if there is none."""
    entry = find(name)
    if entry is None:
        raise unknown_name("dataset", name, entries(), hint=list_datasets())
    return entry


def detect(folder: Path) -> CatalogEntry | None:
    """The public dataset that a folder holds by its split file or layout, if any; its name does not count."""
    if not folder.is_dir():
        return None
    return next((entry for entry in entries().values() if entry.matches(folder)), None)


def title_of(name: str) -> str:
    """How tables call a dataset; a name that is no public dataset stays as it is.

    >>> title_of("oxford_flowers"), title_of("eurosat@noise"), title_of("mine")
    ('Flowers102', 'EuroSAT, noise', 'mine')
    """
    base, _, shift = name.partition("@")
    entry = find(base)
    return ", ".join([entry.title, *([shift] if shift else [])]) if entry else name


def class_list_of(name: str) -> tuple[tuple[str, str], ...]:
    """Key and name of every class of the public dataset with exactly this name; empty if there is none.

    >>> class_list_of("imagenetv2")[0], class_list_of("")
    (('n01440764', 'tench'), ())
    """
    entry = entries().get(name)
    return entry.class_list() if entry is not None else ()


def _read_entry(name: str, facts: dict[str, Any]) -> CatalogEntry:
    """An entry of `catalog.toml`."""
    layout = _as_tuples(facts.pop("layout"))
    return CatalogEntry(name=name, layout=_LAYOUTS[layout.pop("kind")](**layout), **_as_tuples(facts))


def _as_tuples(facts: dict[str, Any]) -> dict[str, Any]:
    """The values, with lists as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}


# Layouts


@dataclass(frozen=True)
class SplitFile:
    """A JSON file of [path, label, name] rows beside the images.

    images: folders that the paths may be relative to, the official one first.
    """

    file: str
    images: tuple[str, ...]

    def matches(self, entry: CatalogEntry, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""
        return _find_file(folder, self.file) is not None

    def load(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder. Raises UserError."""
        file = _find_file(folder, self.file)
        if file is None:
            return _load_copy(entry, folder, missing=self.file)
        split = _read_split(file)
        base, find_image = _image_finder(folder, self.images, [path for part in PARTS for path, _, _ in split[part]])
        names = _stored_names(file, split)
        parts = {part: tuple(LabelledImage(find_image(path), y) for path, y, _ in split[part]) for part in PARTS}
        return _make_dataset(entry, parts, names, base, _describe_split(entry, parts, f"public split file {file.name}"))

    def expected_files(self) -> tuple[str, ...]:
        """What the folder should hold."""
        return (f"{self.images[0]}/", self.file)


@dataclass(frozen=True)
class VariantLists:
    """FGVC Aircraft: text lists of image numbers and variants.

    subfolders: where in the folder the lists may be.
    """

    subfolders: tuple[str, ...] = ("", "fgvc-aircraft-2013b/data", "data")

    def matches(self, entry: CatalogEntry, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""
        return (folder / "images_variant_train.txt").is_file()

    def load(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder. Raises UserError."""
        base = next((folder / sub for sub in self.subfolders if self.matches(entry, folder / sub)), folder)
        missing = [name for name in self.expected_files()[1:] if not (base / name).is_file()]
        if missing:
            return _load_copy(entry, folder, missing=", ".join(missing))
        lines = (base / "variants.txt").read_text(encoding="utf-8").split("\n")
        names = [line.strip() for line in lines if line.strip()]
        number = {name: y for y, name in enumerate(names)}
        parts = {part: self._read(base, part, number) for part in PARTS}
        return _make_dataset(entry, parts, names, base, _describe_split(entry, parts, "official variant lists"))

    def expected_files(self) -> tuple[str, ...]:
        """What the folder should hold."""
        return ("images/", "variants.txt", *(f"images_variant_{part}.txt" for part in PARTS))

    @staticmethod
    def _read(base: Path, part: str, number: dict[str, int]) -> tuple[LabelledImage, ...]:
        file = base / f"images_variant_{part}.txt"
        items, faults = [], []
        for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            image, _, variant = text.strip().partition(" ")
            if variant in number:
                items.append(LabelledImage(base / "images" / f"{image}.jpg", number[variant]))
            elif text.strip():
                faults.append(f"line {line}: '{variant}' is not in variants.txt")
        if faults:
            raise UserError(f"{file}: {pluralize(len(faults), 'line', 'name')} an unknown variant.", details=faults)
        return tuple(items)


@dataclass(frozen=True)
class ClassFolders:
    """ImageNet and its variants: one folder per WordNet id, or per label number.

    train, test: folders where each part may be, the official one first; test-only sets have no train.
    numbered: folders are called 0, 1, ... in label order. solution: CSV that labels a flat test folder (Kaggle's
    ImageNet).
    """

    test: tuple[str, ...]
    train: tuple[str, ...] = ()
    numbered: bool = False
    solution: str = ""

    def matches(self, entry: CatalogEntry, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""
        base, names = _first_folder(folder, self.train or self.test), self._folder_names(entry)
        if not names or base is None or _first_folder(folder, self.test) is None:
            return False
        return {sub.name for sub in scan_folder(base) if sub.is_dir()}.issuperset(names)

    def load(self, entry: CatalogEntry, folder: Path) -> Dataset:
        """Read the folder. Raises UserError."""
        if _first_folder(folder, self.test) is None:
            details = [f"expected {folder.name}/{line}" for line in self.expected_files()]
            raise UserError(f"{folder}: the folders of {entry.title} are not in it.", details=details)
        names = self._folder_names(entry)
        parts = {"train": self._list_items(folder, self.train, names), "val": ()}
        parts["test"] = self._list_items(folder, self.test, names) or self._read_solution(folder, names)
        stored = [name for _, name in entry.class_list()]
        return _make_dataset(entry, parts, stored, folder, "class folders, file names sorted")

    def expected_files(self) -> tuple[str, ...]:
        """What the folder should hold."""
        inner = "0/ ... 999/" if self.numbered else "n01440764/ ..."
        return tuple(f"{folders[0]}/{inner}" for folders in (self.train, self.test) if folders)

    def _folder_names(self, entry: CatalogEntry) -> list[str]:
        """Name of each class's folder, in label order."""
        return [str(y) if self.numbered else key for y, (key, _) in enumerate(entry.class_list())]

    @staticmethod
    def _list_items(folder: Path, subfolders: Sequence[str], names: Sequence[str]) -> tuple[LabelledImage, ...]:
        """The images of one part; empty if its folder is not there."""
        base = _first_folder(folder, subfolders)
        if base is None:
            return ()
        present = {sub.name for sub in scan_folder(base) if sub.is_dir()}
        return tuple(
            LabelledImage(p, y) for y, name in enumerate(names) if name in present for p in list_images(base / name)
        )

    def _read_solution(self, folder: Path, names: Sequence[str]) -> tuple[LabelledImage, ...]:
        """The images of a flat test folder, labelled by the solution file."""
        base = _first_folder(folder, self.test)
        if not self.solution or base is None or not (folder / self.solution).is_file():
            return ()
        label = {name: y for y, name in enumerate(names)}
        with (folder / self.solution).open(encoding="utf-8", newline="") as file:
            rows = [(row["ImageId"], row["PredictionString"].split()[0]) for row in csv.DictReader(file)]
        items = ((base / f"{image}.JPEG", label[name]) for image, name in rows if name in label)
        return tuple(LabelledImage(path, y) for path, y in sorted(items, key=lambda item: (item[1], item[0].name)))


_LAYOUTS: dict[str, Callable[..., Layout]] = {
    "split-file": SplitFile,
    "variant-lists": VariantLists,
    "class-folders": ClassFolders,
}


# Reading the files of a layout

_Split = dict[str, list[tuple[str, int, str]]]  # part -> (path, label, stored name)


def _find_file(folder: Path, name: str) -> Path | None:
    """A file in the folder or beside it; it may be compressed."""
    paths = (folder / name, folder / f"{name}.gz", folder.parent / name)
    return next((path for path in paths if path.is_file()), None)


def _first_folder(folder: Path, subfolders: Sequence[str]) -> Path | None:
    """The first of these subfolders that exists."""
    return next((folder / name for name in subfolders if (folder / name).is_dir()), None)


def _read_split(file: Path) -> _Split:
    """Rows of a public split file, checked. Raises UserError."""
    try:
        raw: Any = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        split = {part: [(str(p), int(y), str(name)) for p, y, name in raw[part]] for part in PARTS}
    except (ValueError, TypeError, KeyError, OSError, EOFError, RecursionError) as error:
        raise UserError(
            f"{file}: not a split file ({type(error).__name__}: {error}).",
            hint='expected {"train": [["path.jpg", 0, "name"], ...], "val": [...], "test": [...]}',
        ) from error
    escaping = [p for rows in split.values() for p, _, _ in rows if p.startswith("/") or ".." in PurePosixPath(p).parts]
    if escaping:
        raise UserError(f"{file}: {len(escaping)} paths leave the folder.", details=escaping)
    return split


def _stored_names(file: Path, split: _Split) -> tuple[str, ...]:
    """Class names in label order; every label must have exactly one."""
    names = dict.fromkeys((y, name) for rows in split.values() for _, y, name in rows)
    count = Counter(y for y, _ in names)
    if sorted(count) != list(range(len(names))):
        twice = [f"label {y} has {n} different names" for y, n in count.items() if n > 1]
        raise UserError(f"{file}: labels are not 0..{len(names) - 1} with one name each.", details=twice)
    return tuple(name for _, name in sorted(names))


def _image_finder(folder: Path, subfolders: Sequence[str], paths: Sequence[str]) -> tuple[Path, Callable[[str], Path]]:
    """The folder that split paths are relative to, and a function from a split path to its image.

    Takes the subfolder that has most of a sample of the paths. If none has any, images are found by file name
    anywhere under `folder`, so that re-arranged copies are understood.
    """
    sample = paths[:: max(1, len(paths) // 64)]
    bases = [folder / sub for sub in subfolders] + [folder]
    hits = [sum((base / path).is_file() for path in sample) for base in bases]
    base = bases[hits.index(max(hits))]
    if max(hits) or not folder.is_dir():
        return base, base.joinpath
    by_name: dict[str, list[tuple[set[str], Path]]] = {}
    for file in list_images(folder):
        by_name.setdefault(file.name, []).append((_split_words(file.relative_to(folder).parts[:-1]), file))
    return base, partial(_find_by_name, base, by_name)


def _find_by_name(base: Path, by_name: dict[str, list[tuple[set[str], Path]]], path: str) -> Path:
    """The image of that name whose folders share most words with the path's."""
    name, words = PurePosixPath(path).name, _split_words(PurePosixPath(path).parts[:-1])
    scored = sorted(((len(words & others), file) for others, file in by_name.get(name, [])), reverse=True)
    if not scored or (len(scored) > 1 and scored[0][0] == scored[1][0]):
        return base / path
    return scored[0][1]


def _split_words(folders: Iterable[str]) -> set[str]:
    """The words in the names of folders, in lower case."""
    return {word for folder in folders for word in re.split(r"[\W_]+", folder.casefold()) if word}


def _describe_split(entry: CatalogEntry, parts: dict[str, tuple[LabelledImage, ...]], source: str) -> str:
    """Where a split comes from, for results; lists of other lengths than the official ones are another split."""
    other = [
        f"{part} {len(parts[part]):,} of {size:,}"
        for part, size in zip(PARTS, entry.sizes, strict=True)
        if len(parts[part]) != size
    ]
    return f"not the public split of {entry.title} ({source} with {', '.join(other)} images)" if other else source


def _make_dataset(
    entry: CatalogEntry, parts: dict[str, tuple[LabelledImage, ...]], stored: Sequence[str], root: Path, split: str
) -> Dataset:
    """The dataset of an entry; its classes have keys where the names are the catalog's."""
    names = tuple(label_to_name(name) for name in stored)
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


# Copies that are arranged in another way


def _load_copy(entry: CatalogEntry, folder: Path, missing: str) -> Dataset:
    """A copy with its own train and test folders; its split is not the public one."""
    base = folder
    while not split_folders(base) and len(inner := _visible_folders(base)) == 1:
        base = inner[0]
    if split_folders(base):
        dataset = name_classes(entry, load_folder(base))
        if dataset is not None:
            return replace(dataset, split=f"{dataset.split} {NOT_THE_PUBLIC_SPLIT}")
    raise UserError(
        f"{folder}: {missing} is missing, so the public split of {entry.title} is unknown.",
        details=[f"expected in {folder.name}/: {line}" for line in entry.layout.expected_files()],
        hint=[show_dataset(entry.name), "name the image folder itself to use it as a plain folder of images"],
    )


def _visible_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [Path(entry.path) for entry in scan_folder(folder) if entry.is_dir() and not is_hidden(entry.name)]


def name_classes(entry: CatalogEntry, dataset: Dataset) -> Dataset | None:
    """Give a plain folder the names, order and template of a catalog entry, if its classes are exactly the entry's.

    The labels stay those of the folder.
    """
    classes = entry.class_list()
    index = {normalize_name(text): y for y, pair in enumerate(classes) for text in pair}
    matches = [index.get(normalize_name(label)) for label in dataset.labels]
    if not classes or sorted(y for y in matches if y is not None) != list(range(len(classes))):
        return None
    new = {old: y for old, y in enumerate(matches) if y is not None}
    old = {y: label for label, y in new.items()}

    def relabel(items: Iterable[LabelledImage]) -> tuple[LabelledImage, ...]:
        return tuple(sorted((LabelledImage(i.image, new[i.label]) for i in items), key=lambda i: i.label))

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
