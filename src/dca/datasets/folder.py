"""Image lists: CSV and JSON Lines files that name a path, a label and perhaps a split.

Anyone's own images: class folders, train and test folders, CSV lists, Hugging Face metadata.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core.errors import UserError, nearest
from dca.core.text import normalize_name, pluralize, to_printable
from dca.datasets.classes import NAMES
from dca.datasets.dataset import Dataset, Item
from dca.datasets.walk import (
    IMAGE_SUFFIXES,
    Boundary,
    is_hidden,
    list_class_folders,
    list_images,
    list_subfolders,
    scan_folder,
)
from dca.images.decode import is_special

PATH_COLUMNS = ("path", "file_name", "filename", "file", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "class", "category", "label_name", "class_name", "target")
SPLIT_COLUMNS = ("split", "subset", "partition", "set")
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
_EXPECTED = "expected a header 'path,label' or 'path,label,split'"


@dataclass(frozen=True, slots=True)
class ListedImage:
    """One image of a list; `split` is train, val, test or empty."""

    line: int
    path: Path
    label: str
    split: str


def read_rows(table: Path) -> list[ListedImage]:
    """Rows of an image list, paths taken relative to the list's own folder.

    Raises UserError with every bad row and its line number.
    """
    records = list(_json_records(table) if table.suffix.lower() == ".jsonl" else _csv_records(table))
    rows: list[ListedImage] = []
    faults: list[str] = []
    first: dict[Path, ListedImage] = {}
    for line, record in records:
        row = _row(table.parent, line, record)
        if isinstance(row, ListedImage) and row.path in first:
            other = first[row.path]
            same = other.label == row.label
            row = f"line {line}: {record['path']} " + (
                f"is listed again (first in line {other.line})"
                if same
                else f"has label '{row.label}' here and '{other.label}' in line {other.line}"
            )
        if isinstance(row, str):
            faults.append(row)
            continue
        first[row.path] = row
        rows.append(row)
    if faults:
        raise UserError(
            f"{table}: {pluralize(len(faults), 'row', of=len(records))} cannot be used.",
            details=faults,
            hint="correct or remove these lines; paths are relative to the folder of the list",
        )
    if not rows:
        raise UserError(f"{table}: no rows.", hint=_EXPECTED)
    return rows


def has_labels(table: Path) -> bool:
    """Whether an image list has a label column (captions alone are no classes)."""
    if table.suffix.lower() == ".jsonl":
        return any(record.get("label") for _, record in _json_records(table))
    header, _ = _csv_header(table)
    return header is not None and _find(header, LABEL_COLUMNS) is not None


def _row(folder: Path, line: int, record: dict[str, str]) -> ListedImage | str:
    """The row, or what is wrong with it."""
    if fault := record.get("fault"):
        return f"line {line}: {fault}"
    if not record["path"]:
        return f"line {line}: no path"
    path = folder / record["path"]
    if "\\" in record["path"] and not path.is_file():
        path = folder / record["path"].replace("\\", "/")  # a list made on Windows
    if not record["label"]:
        return f"line {line}: no label for {record['path']}"
    split = record["split"].lower()
    if split and split not in SPLIT_NAMES:
        return f"line {line}: split '{record['split']}' is none of train, val, test"
    if is_special(path):
        return f"line {line}: not a regular file: {record['path']}"
    if not path.is_file():
        return f"line {line}: no such file: {record['path']}"
    return ListedImage(line, path, record["label"], SPLIT_NAMES.get(split, ""))


def _text(table: Path) -> str:
    try:
        return table.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = table.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(
            f"{table}: not UTF-8 text (line {line}).", hint="save the list again with UTF-8 encoding"
        ) from error
    except OSError as error:
        raise UserError(f"{table}: cannot be read ({error.strerror}).") from error


def _csv_header(table: Path) -> tuple[list[str] | None, str]:
    """Column names (None for a list without header) and the delimiter."""
    first = next((line for line in _text(table).splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    cells = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), [])]
    names = [cell.lower() for cell in cells]
    if _find(names, PATH_COLUMNS) is not None:
        return names, delimiter
    if len(cells) in (2, 3) and Path(cells[0]).suffix.lower() in IMAGE_SUFFIXES:
        return None, delimiter
    raise UserError(f"{table}: the first line is '{first[:80]}'.", hint=_EXPECTED)


def _csv_records(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    header, delimiter = _csv_header(table)
    columns = header or ["path", "label", "split"]
    where = {
        "path": _find(columns, PATH_COLUMNS),
        "label": _find(columns, LABEL_COLUMNS),
        "split": _find(columns, SPLIT_COLUMNS),
    }
    if where["label"] is None:
        raise UserError(f"{table}: no label column among {', '.join(columns)}.", hint=_EXPECTED)
    needed = 1 + max(where["path"] or 0, where["label"])
    reader = csv.reader(io.StringIO(_text(table), newline=""), delimiter=delimiter)
    skip = header is not None
    for cells in _cells(table, reader):
        if not any(cell.strip() for cell in cells):
            continue
        if skip:
            skip = False
        elif not needed <= len(cells) <= len(columns):
            found = pluralize(len(cells), "cell")
            yield reader.line_num, {"fault": f"{found}, expected {len(columns)}: {delimiter.join(cells)[:60]}"}
        else:
            cells += [""] * (len(columns) - len(cells))
            yield reader.line_num, {k: "" if i is None else cells[i].strip() for k, i in where.items()}


def _cells(table: Path, reader: Any) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise UserError(f"{table}: line {reader.line_num} is not CSV ({error}).") from error


def _json_records(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(_text(table).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            yield number, {"fault": f"not JSON: {line[:60]}"}
            continue
        if not isinstance(values, dict):
            yield number, {"fault": f"not a JSON object: {line[:60]}"}
            continue
        names = [str(name).lower() for name in values]
        cells = list(values.values())
        record = {}
        for key, columns in (("path", PATH_COLUMNS), ("label", LABEL_COLUMNS), ("split", SPLIT_COLUMNS)):
            at = _find(names, columns)
            record[key] = "" if at is None or cells[at] is None else str(cells[at]).strip()
        yield number, record


def _find(columns: Sequence[str], accepted: Sequence[str]) -> int | None:
    """Position of the first accepted column name."""
    return next((columns.index(name) for name in accepted if name in columns), None)


_LAYOUT_HINT = "make one folder per class, e.g. {0}/cat/*.jpg and {0}/dog/*.jpg, or a CSV 'path,label'"
LIST_SUFFIXES = (".csv", ".tsv", ".jsonl")
_METADATA = ("metadata.csv", "metadata.jsonl")
_Labelled = dict[str, dict[str, list[Path]]]  # part -> label -> images


def load_folder(path: str | Path, *, measuring: bool = False) -> Dataset:
    """Read labelled images from a folder or an image list.

    Understood: `<class>/*.jpg`; `train/`, `val/` and `test/` of those; a CSV or JSON Lines file
    with `path,label[,split]`; a folder with Hugging Face's `metadata.csv` or `metadata.jsonl`.
    A class has its folder name, or its label in the list, as label. Its name is the same with spaces
    for underscores, or what `classnames.json` beside the class folders (or the list) says.

    Args:
        path: a folder or a list.
        measuring: accept images that could not be learned from (a single part or class, classes
            without training images); of train/, val/ and test/ only the part to measure on is read.

    Raises:
        UserError: with all problems of one kind together.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise _missing(path)
    if not path.is_dir():
        if not path.is_file() or path.suffix.lower() not in (*LIST_SUFFIXES, ".txt"):
            raise UserError(f"{path} is a file, not a folder or a CSV list.", hint=_LAYOUT_HINT.format("photos"))
        return _dataset(path, _from_rows(read_rows(path)), f"list {path.name}", measuring, listed=True)
    if tables := _metadata_files(path, measuring):
        rows = [row for table in tables for row in _metadata_rows(path, table)]
        return _dataset(path, _from_rows(rows), "metadata files", measuring, listed=True)
    parts = split_folders(path, measuring=measuring)
    if not parts:
        labelled = {"train": _images_by_class(path, boundary_of([path]))}
        return _dataset(path, labelled, "folders, all training", measuring)
    labelled = _to_measure(parts) if measuring else _to_learn(path, parts)
    return _dataset(path, labelled, f"folders {', '.join(f.name for f in parts.values())}", measuring)


def split_folders(path: Path, *, measuring: bool = False) -> dict[str, Path]:
    """Folders named train, val or test, if the images are divided that way; else empty.

    A class may be called "train": the names count only if there is no other folder beside them.
    Without train/, which is enough for measuring only, they must hold class folders.
    """
    folders = list_subfolders(path)
    parts = {SPLIT_NAMES.get(folder.name.lower(), ""): folder for folder in folders}
    if "" in parts or len(parts) < len(folders):
        return {}
    if "train" not in parts and not (measuring and any(list_subfolders(folder) for folder in folders)):
        return {}
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def boundary_of(places: Iterable[Path]) -> Boundary:
    """The boundary between all class folders inside these folders."""
    return Boundary([sub for place in places for sub in list_class_folders(place)])


def _to_measure(parts: Mapping[str, Path]) -> _Labelled:
    """The part to measure on. The classes of all parts count: together they may be a public dataset's."""
    part = next(part for part in ("test", "val", "train") if part in parts)
    named: dict[str, list[Path]] = {sub.name: [] for folder in parts.values() for sub in list_class_folders(folder)}
    return {part: named | _images_by_class(parts[part], boundary_of(parts.values()))}


def words_of(key: str) -> str:
    """Words for a folder name, with spaces for underscores.

    >>> words_of("sea_or_lake")
    'sea or lake'
    """
    return " ".join(unicodedata.normalize("NFC", key).replace("_", " ").split())


def _images_by_class(folder: Path, boundary: Boundary) -> dict[str, list[Path]]:
    """Images of each class folder. Raises UserError if there are none."""
    classes = {sub.name: list_images(sub, boundary) for sub in list_class_folders(folder)}
    if any(classes.values()):
        return classes
    loose = list_images(folder)
    hint = _LAYOUT_HINT.format(folder.name or "photos")
    if loose:
        lists = [entry.name for entry in scan_folder(folder) if entry.name.lower().endswith(LIST_SUFFIXES)]
        if lists:
            hint = f"if {lists[0]} holds the labels, name it instead of the folder: {folder / lists[0]}"
        raise UserError(
            f"{folder} has images but no class folders.",
            details=[f"expected {folder.name}/<class>/<image>; found {pluralize(len(loose), 'image')} directly inside"],
            hint=hint,
        )
    raise UserError(f"{folder}: no images found.", details=_inventory(folder), hint=hint)


def _inventory(folder: Path) -> list[str]:
    """What a folder holds instead of images."""
    names = sorted(entry.name for entry in scan_folder(folder) if not is_hidden(entry.name))
    return [f"found: {', '.join(names[:5])}{' ...' * (len(names) > 5)}" if names else "the folder is empty"]


def _to_learn(path: Path, parts: Mapping[str, Path]) -> _Labelled:
    """All parts; validation or test classes that training does not have are refused."""
    boundary = boundary_of(parts.values())
    labelled = {part: _images_by_class(folder, boundary) for part, folder in parts.items()}
    train = labelled["train"]
    strangers = [
        f"{part}/{label} ({pluralize(len(images), 'image')})"
        for part, classes in labelled.items()
        for label, images in classes.items()
        if images and label not in train
    ]
    if strangers:
        raise UserError(
            f"{path}: {pluralize(len(strangers), 'class', 'have')} no folder in train/.",
            details=strangers,
            hint="use the same folder names in train/ and test/, or add training images",
        )
    return labelled


def _metadata_files(path: Path, measuring: bool) -> list[Path]:
    folders = [path, *split_folders(path, measuring=measuring).values()]
    found = [folder / name for folder in folders for name in _METADATA if (folder / name).is_file()]
    return [table for table in found if has_labels(table)]


def _metadata_rows(path: Path, table: Path) -> list[ListedImage]:
    """Rows whose split, where it is not given, is that of their folder."""
    rows = []
    for row in read_rows(table):
        place = row.path.relative_to(path).parts if row.path.is_relative_to(path) else ()
        split = row.split or SPLIT_NAMES.get(place[0].lower() if len(place) > 1 else "", "train")
        rows.append(ListedImage(row.line, row.path, row.label, split))
    return rows


def _from_rows(rows: Sequence[ListedImage]) -> _Labelled:
    numeric = all(row.label.isdecimal() for row in rows)
    labels = sorted({row.label for row in rows}, key=lambda label: (int(label), label) if numeric else (0, label))
    labelled: _Labelled = {part: {label: [] for label in labels} for part in ("train", "val", "test")}
    for row in rows:
        labelled[row.split or "train"][row.label].append(row.path)
    return labelled


def _dataset(place: Path, labelled: _Labelled, split: str, measuring: bool, *, listed: bool = False) -> Dataset:
    """Number and name the classes; unless `measuring`, refuse what cannot be learned from.

    place: the folder or list that the user gave. listed: labels come from a list, not from folders.
    """
    if not measuring:
        _require_training(place, labelled["train"], "rows" if listed else "folders")
    root, name = (place.parent, place.stem) if place.is_file() else (place, _name(place))
    found = tuple(next(iter(labelled.values())))
    way_out = "give one class one label in the list" if listed else "rename or merge the folders"
    names = _class_names(place, _read_names(root / NAMES), found, way_out)
    labels = tuple(map(to_printable, found))

    def part(name: str) -> tuple[Item, ...]:
        images = labelled.get(name, {})
        return tuple(Item(image, y) for y, label in enumerate(found) for image in images.get(label, ()))

    return Dataset(name, labels, names, part("train"), part("val"), part("test"), root=root, split=split)


def _require_training(place: Path, train: Mapping[str, Sequence[Path]], entries: str) -> None:
    """Raise unless there are two classes, all with training images."""
    if empty := [label for label, images in train.items() if not images]:
        raise UserError(
            f"{place}: {pluralize(len(empty), 'class', 'have', of=len(train))} no training images.",
            details=empty,
            hint=f"add images to these classes, or remove their {entries}",
        )
    if len(train) < 2:
        found = pluralize(len(next(iter(train.values()))), "image")
        raise UserError(
            f"{place}: found {found} in 1 class; need at least 2 classes.",
            details=[f"the class is '{next(iter(train))}'"],
            hint="put each class into its own folder, e.g. photos/cat/*.jpg and photos/dog/*.jpg",
        )


def _class_names(place: Path, given: Mapping[str, str], labels: Sequence[str], way_out: str) -> tuple[str, ...]:
    """The words for each label. Raises UserError if CLIP could not tell two classes apart by them."""
    names = tuple(" ".join(given.get(label, words_of(label)).split()) for label in labels)
    seen: dict[str, str] = {}
    clashes: list[str] = []
    for label, name in zip(labels, names, strict=True):
        if not name:
            clashes.append(f"'{label}' has no name")
        elif to_printable(name) != name:
            clashes.append(f"'{to_printable(name)}' is not UTF-8 text")
        elif normalize_name(name) in seen:
            clashes.append(f"'{seen[normalize_name(name)]}' and '{label}' both read '{name}'")
        seen.setdefault(normalize_name(name), label)
    if clashes:
        raise UserError(
            f"{place}: {pluralize(len(clashes), 'class name', 'are')} empty, unreadable or not distinct.",
            details=clashes,
            hint=f"{way_out}, or give each its own words in {NAMES}",
        )
    return names


def unused_names(dataset: Dataset) -> tuple[list[str], bool]:
    """Entries of classnames.json that name no class, and whether some class has no entry.

    If some class has none, the unused entries are probably misspelled.
    """
    if dataset.root is None:
        return [], False
    given = [to_printable(label) for label in _read_names(dataset.root / NAMES)]
    missing = [label for label in dataset.labels if label not in given]
    unused = []
    for label in given:
        if label not in dataset.labels:
            close = nearest(label, missing)
            unused.append(f"'{label}'" + (f" (did you mean '{close}'?)" if close else ""))
    return unused, bool(missing)


def _read_names(path: Path) -> Mapping[str, str]:
    """Label -> name, from classnames.json if it exists."""
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
        found = pluralize(len(wrong), "name", "are")
        raise UserError(f"{path}: {found} not text.", details=wrong, hint=f"write {expected}")
    return names


def neighbours(path: Path) -> list[str]:
    """Names of the folders and image lists beside a path, sorted."""
    entries = scan_folder(path.parent) if path.parent.is_dir() else []
    named = [entry.name for entry in entries if entry.is_dir() or entry.name.lower().endswith(LIST_SUFFIXES)]
    return sorted(name for name in named if not is_hidden(name))


def _missing(path: Path) -> UserError:
    beside = neighbours(path)
    close = nearest(path.name, beside)
    guess = f" Did you mean '{path.parent / close}'?" if close else ""
    details = [f"beside it: {', '.join(beside[:8])}{' ...' * (len(beside) > 8)}"] if beside and not close else []
    return UserError(f"{path}: no such folder or list.{guess}", details=details, hint="check the path")


def _name(path: Path) -> str:
    return path.resolve().name or "images"
