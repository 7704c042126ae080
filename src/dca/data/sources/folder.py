"""Anyone's own images: class folders, train and test folders, CSV lists, Hugging Face metadata."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dca.core.errors import UserError, counted, nearest
from dca.data.dataset import Dataset, Item, printable
from dca.data.sources.table import IMAGE_SUFFIXES, SPLIT_NAMES, Row, has_labels, read_rows

_LAYOUT_HINT = "make one folder per class, e.g. {0}/cat/*.jpg and {0}/dog/*.jpg, or a CSV 'path,label'"
LIST_SUFFIXES = (".csv", ".tsv", ".jsonl")
NAMES = "classnames.json"
_METADATA = ("metadata.csv", "metadata.jsonl")
_Labelled = dict[str, dict[str, list[Path]]]  # part -> class key -> pictures


def load_folder(path: str | Path, *, measuring: bool = False) -> Dataset:
    """Read labelled pictures from a folder or an image list.

    Understood: `<class>/*.jpg`; `train/`, `val/` and `test/` of those; a CSV or JSON Lines file
    with `path,label[,split]`; a folder with Hugging Face's `metadata.csv` or `metadata.jsonl`.
    `classnames.json` beside the class folders (or the list) maps their names to words.
    measuring: nothing will be learned from them, so one part, one class, classes without training
    pictures will do; of divided folders only the part to measure on is read.

    Raises UserError with all problems of a kind together.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise _missing(path)
    if path.is_file():
        if path.suffix.lower() not in (*LIST_SUFFIXES, ".txt"):
            raise UserError(f"{path} is a file, not a folder or a CSV list.", hint=_LAYOUT_HINT.format("photos"))
        return _dataset(path, _from_rows(read_rows(path)), f"list {path.name}", measuring, listed=True)
    if tables := _metadata_files(path, measuring):
        rows = [row for table in tables for row in _metadata_rows(path, table)]
        return _dataset(path, _from_rows(rows), "metadata files", measuring, listed=True)
    parts = split_folders(path, measuring=measuring)
    if not parts:
        return _dataset(path, {"train": _class_folders(path)}, "folders, all training", measuring)
    labelled = _to_measure(parts) if measuring else _to_learn(path, parts)
    return _dataset(path, labelled, f"folders {', '.join(f.name for f in parts.values())}", measuring)


def split_folders(path: Path, *, measuring: bool = False) -> dict[str, Path]:
    """Folders named train, val or test, if the images are divided that way; else empty.

    A class may be called "train": the names count only when no other folder stands beside them.
    Without train/, which only measuring can do without, they must hold class folders.
    """
    folders = _subfolders(path)
    parts = {SPLIT_NAMES.get(folder.name.lower(), ""): folder for folder in folders}
    if "" in parts or len(parts) < len(folders):
        return {}
    if "train" not in parts and not (measuring and any(_subfolders(folder) for folder in folders)):
        return {}
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def _to_measure(parts: Mapping[str, Path]) -> _Labelled:
    """The part to measure on; the others give only names, as all together may be those of a public dataset."""
    part = next(part for part in ("test", "val", "train") if part in parts)
    named: dict[str, list[Path]] = {sub.name: [] for folder in parts.values() for sub in _subfolders(folder)}
    return {part: named | _class_folders(parts[part])}


def image_files(folder: Path) -> list[Path]:
    """All images under a folder, nested ones too, sorted; hidden files and link loops left out."""
    return sorted(file for file in _walk(folder, frozenset()) if is_named_image(file))


def unnamed_files(folder: Path) -> list[Path]:
    """The other files in the folders inside a folder, sorted: those whose names do not end like an image's."""
    inside = (file for sub in _subfolders(folder) for file in _walk(sub, frozenset()))
    return sorted(file for file in inside if not is_named_image(file))


def is_named_image(file: Path) -> bool:
    """Whether a file's name ends like an image's."""
    return file.suffix.lower() in IMAGE_SUFFIXES


def words_of(key: str) -> str:
    """Words for a folder name: underscores are spaces.

    >>> words_of("sea_or_lake")
    'sea or lake'
    """
    return " ".join(unicodedata.normalize("NFC", key).replace("_", " ").split())


def _walk(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in above:
        return
    for entry in _scan(folder):
        if hidden(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), above | {real})
        else:
            yield Path(entry.path)


def hidden(name: str) -> bool:
    """Whether a file or folder is the system's own (.DS_Store, ._cat.jpg, __MACOSX, Thumbs.db)."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _subfolders(folder: Path) -> list[Path]:
    entries = (Path(e.path) for e in _scan(folder) if e.is_dir() and not hidden(e.name))
    return sorted(entries, key=lambda entry: entry.name)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except PermissionError as error:
        raise UserError(f"{folder}: no permission to read this folder.") from error


def _class_folders(folder: Path) -> dict[str, list[Path]]:
    """Pictures of each class folder; an error when there are none."""
    classes = {sub.name: image_files(sub) for sub in _subfolders(folder)}
    if any(classes.values()):
        return classes
    loose = image_files(folder)
    hint = _LAYOUT_HINT.format(folder.name or "photos")
    if loose:
        lists = [entry.name for entry in _scan(folder) if entry.name.lower().endswith(LIST_SUFFIXES)]
        if lists:
            hint = f"if {lists[0]} holds the labels, name it instead of the folder: {folder / lists[0]}"
        raise UserError(
            f"{folder} has images but no class folders.",
            details=[f"expected {folder.name}/<class>/<image>; found {counted(len(loose), 'image')} directly inside"],
            hint=hint,
        )
    raise UserError(f"{folder}: no images found.", details=_inventory(folder), hint=hint)


def _inventory(folder: Path) -> list[str]:
    """What lies in a folder instead of images."""
    names = sorted(entry.name for entry in os.scandir(folder) if not hidden(entry.name))
    return [f"found: {', '.join(names[:5])}{' ...' * (len(names) > 5)}" if names else "the folder is empty"]


def _to_learn(path: Path, parts: Mapping[str, Path]) -> _Labelled:
    """All parts; validation or test classes that training does not have are refused."""
    labelled = {part: _class_folders(folder) for part, folder in parts.items()}
    train = labelled["train"]
    strangers = [
        f"{part}/{key} ({counted(len(pictures), 'image')})"
        for part, classes in labelled.items()
        for key, pictures in classes.items()
        if pictures and key not in train
    ]
    if strangers:
        raise UserError(
            f"{path}: {counted(len(strangers), 'class', 'have')} no folder in train/.",
            details=strangers,
            hint="name the class folders alike in train/ and test/, or add training images",
        )
    return labelled


def _metadata_files(path: Path, measuring: bool) -> list[Path]:
    folders = [path, *split_folders(path, measuring=measuring).values()]
    found = [folder / name for folder in folders for name in _METADATA if (folder / name).is_file()]
    return [table for table in found if has_labels(table)]


def _metadata_rows(path: Path, table: Path) -> list[Row]:
    """Rows with their split filled in from the folder they lie in."""
    rows = []
    for row in read_rows(table):
        place = row.path.relative_to(path).parts if row.path.is_relative_to(path) else ()
        split = row.split or SPLIT_NAMES.get(place[0].lower() if len(place) > 1 else "", "train")
        rows.append(Row(row.line, row.path, row.label, split))
    return rows


def _from_rows(rows: Sequence[Row]) -> _Labelled:
    numeric = all(row.label.isdecimal() for row in rows)
    keys = sorted({row.label for row in rows}, key=lambda key: (int(key), key) if numeric else (0, key))
    labelled: _Labelled = {part: {key: [] for key in keys} for part in ("train", "val", "test")}
    for row in rows:
        labelled[row.split or "train"][row.label].append(row.path)
    return labelled


def _dataset(place: Path, labelled: _Labelled, split: str, measuring: bool, *, listed: bool = False) -> Dataset:
    """Number the classes, find their words, and refuse what cannot be learned from if it is to be.

    place: the folder or list that the user named. listed: labels come from a list, not from folders.
    """
    if not measuring:
        _require_training(place, labelled["train"], "rows" if listed else "folders")
    root, name = (place.parent, place.stem) if place.is_file() else (place, _name(place))
    keys = tuple(next(iter(labelled.values())))
    way_out = "give one class one label in the list" if listed else "rename or merge the folders"
    classes = _class_words(place, _read_names(root / NAMES), keys, way_out)

    def part(name: str) -> tuple[Item, ...]:
        of_class = labelled.get(name, {})
        return tuple(Item(picture, y) for y, key in enumerate(keys) for picture in of_class.get(key, ()))

    train_items, val, test = part("train"), part("val"), part("test")
    return Dataset(name, classes, train_items, val, test, keys=keys, root=root, split=split)


def _require_training(place: Path, train: Mapping[str, Sequence[Path]], entries: str) -> None:
    """Raise unless there are two classes, all with training images."""
    if empty := [key for key in train if not train[key]]:
        raise UserError(
            f"{place}: {counted(len(empty), 'class', 'have', of=len(train))} no training images.",
            details=empty,
            hint=f"add images to these classes, or remove their {entries}",
        )
    if len(train) < 2:
        found = counted(len(next(iter(train.values()))), "image")
        raise UserError(
            f"{place}: found {found} in 1 class; need at least 2 classes.",
            details=[f"the class is '{next(iter(train))}'"],
            hint="put each class into its own folder, e.g. photos/cat/*.jpg and photos/dog/*.jpg",
        )


def _class_words(place: Path, mapping: Mapping[str, str], keys: Sequence[str], way_out: str) -> tuple[str, ...]:
    classes = tuple(" ".join(mapping.get(key, words_of(key)).split()) for key in keys)
    seen: dict[str, str] = {}
    clashes: list[str] = []
    for key, words in zip(keys, classes, strict=True):
        folded = unicodedata.normalize("NFKC", words).casefold()
        if not words:
            clashes.append(f"'{key}' has no name")
        elif printable(words) != words:
            clashes.append(f"'{printable(words)}' is not UTF-8 text")
        elif folded in seen:
            clashes.append(f"'{seen[folded]}' and '{key}' both read '{words}'")
        seen.setdefault(folded, key)
    if clashes:
        raise UserError(
            f"{place}: {counted(len(clashes), 'class name', 'are')} empty, unreadable or not distinct.",
            details=clashes,
            hint=f"{way_out}, or give each its own words in {NAMES}",
        )
    return classes


def idle_names(dataset: Dataset) -> tuple[list[str], bool]:
    """Entries of classnames.json that name no class, and whether some class has no entry: then they are slips."""
    if dataset.root is None:
        return [], False
    mapping = _read_names(dataset.root / NAMES)
    bare = [key for key in dataset.keys if key not in mapping]
    idle = []
    for key in mapping:
        if key not in dataset.keys:
            close = nearest(key, bare)
            idle.append(f"'{key}'" + (f" (did you mean '{close}'?)" if close else ""))
    return idle, bool(bare)


def _read_names(path: Path) -> Mapping[str, str]:
    """Folder name -> words, from classnames.json if it is there."""
    if not path.is_file():
        return {}
    expected = 'a JSON object such as {"bkr": "bike rack", "n01440764": "tench"}'
    try:
        names = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}).", hint=f"write {expected}") from error
    if not isinstance(names, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(names).__name__}.", hint=f"write {expected}")
    if wrong := [f"{key}: {value!r}" for key, value in names.items() if not isinstance(value, str)]:
        found = counted(len(wrong), "name", "are")
        raise UserError(f"{path}: {found} not text.", details=wrong, hint=f"write {expected}")
    return names


def neighbours(path: Path) -> list[str]:
    """Names of the folders and image lists that lie beside a path, sorted."""
    entries = _scan(path.parent) if path.parent.is_dir() else []
    named = [entry.name for entry in entries if entry.is_dir() or entry.name.lower().endswith(LIST_SUFFIXES)]
    return sorted(name for name in named if not hidden(name))


def _missing(path: Path) -> UserError:
    beside = neighbours(path)
    close = nearest(path.name, beside)
    guess = f" Did you mean '{path.parent / close}'?" if close else ""
    details = [f"beside it: {', '.join(beside[:8])}{' ...' * (len(beside) > 8)}"] if beside and not close else []
    return UserError(f"{path}: no such folder or list.{guess}", details=details, hint="check the path")


def _name(path: Path) -> str:
    return path.resolve().name or "images"
