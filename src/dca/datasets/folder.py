"""Anyone's own images: class folders, train and test folders, and lists with a path and a label per image.

Understood: `<class>/*.jpg`; `train/`, `val/` and `test/` of those; a CSV or JSON Lines file with `path,label[,split]`;
a folder with Hugging Face's `metadata.csv` or `metadata.jsonl`. Images are listed, not opened.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dca.core.errors import UserError, nearest
from dca.core.text import name_fault, normalize_name, pluralize, to_printable
from dca.datasets import archive
from dca.datasets.classes import CLASS_NAMES_FILE, label_to_name, read_names_by_label
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.walk import (
    IMAGE_SUFFIXES,
    LinkFilter,
    is_hidden,
    is_named_image,
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
LIST_SUFFIXES = (".csv", ".tsv", ".jsonl")
# How the images are divided where they are not.
ALL_TRAINING = "folders, all training"
_METADATA = ("metadata.csv", "metadata.jsonl")
ARCHIVE_SUFFIX = archive.SUFFIX
_LAYOUT_HINT = "make one folder per class, e.g. {0}/cat/*.jpg and {0}/dog/*.jpg, or a CSV 'path,label'"
_LIST_HINT = "expected a header 'path,label' or 'path,label,split'"
_Images = dict[str, dict[str, list[Path]]]  # part -> label -> images


def load_folder(path: str | Path, *, for_evaluation: bool = False) -> Dataset:
    """Read labelled images from a folder or an image list.

    A class has its folder name, or its label in the list, as label. Its name is the same with spaces
    for underscores, or what `classnames.json` beside the class folders (or the list) says.

    Args:
        path: A folder or a list.
        for_evaluation: Accept images that could not be learned from (a single part or class, classes
            without training images); of train/, val/ and test/ only the part to evaluate on is read.

    Returns:
        The dataset.

    Raises:
        UserError: With all problems of one kind together.

    Example:
        >>> import tempfile
        >>> from dca.datasets.sample import write_sample
        >>> load_folder(write_sample(tempfile.mkdtemp() + "/photos", per_class_train=1, per_class_test=0)).split
        'folders train'
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise _missing_path_error(path)
    if path.is_file() and path.suffix.lower() == ARCHIVE_SUFFIX:
        return replace(load_folder(archive.unpack_archive(path), for_evaluation=for_evaluation), name=path.stem)
    if not path.is_dir():
        if not path.is_file() or path.suffix.lower() not in (*LIST_SUFFIXES, ".txt"):
            raise UserError(f"{path} is a file, not a folder or a CSV list.", hint=_LAYOUT_HINT.format("photos"))
        images = _group_rows(read_rows(path))
        return _make_dataset(path, images, f"list {path.name}", for_evaluation, from_list=True)
    path = enter_folder(path)
    if lists := _metadata_lists(path, for_evaluation):
        images = _group_rows([row for metadata in lists for row in _read_metadata(path, metadata)])
        return _make_dataset(path, images, "metadata files", for_evaluation, from_list=True)
    parts = split_folders(path, for_evaluation=for_evaluation)
    if not parts:
        images = {"train": _images_by_class(path, class_link_filter([path]))}
        return _make_dataset(path, images, ALL_TRAINING, for_evaluation)
    images = _list_evaluation_part(parts) if for_evaluation else _list_parts(path, parts)
    return _make_dataset(path, images, f"folders {', '.join(f.name for f in parts.values())}", for_evaluation)


def enter_folder(path: Path) -> Path:
    """The folder itself, or the one that holds its class folders, where a folder holds nothing but another folder.

    An archive usually has one folder around all others. A folder whose only folder holds images has one class.
    """
    inner = list_subfolders(path)
    if len(inner) != 1 or inner[0].name.lower() in SPLIT_NAMES or not list_subfolders(inner[0]):
        return path
    loose = [entry.name for folder in (path, inner[0]) for entry in scan_folder(folder) if entry.is_file()]
    if any(is_named_image(Path(name)) or name.lower().endswith(LIST_SUFFIXES) for name in loose):
        return path
    return enter_folder(inner[0])


def load_classes(path: Path, classes: Mapping[str, Sequence[Path]]) -> Dataset:
    """The dataset of `load_folder`, of these images of a folder alone.

    Args:
        path: The folder.
        classes: Images of each class, by the name of its folder.

    Returns:
        The dataset.

    Raises:
        UserError: As `load_folder`.
    """
    images = {label: list(files) for label, files in classes.items()}
    return _make_dataset(path, {"train": images}, ALL_TRAINING, for_evaluation=False)


def split_folders(path: Path, *, for_evaluation: bool = False) -> dict[str, Path]:
    """Folders named train, val or test, if the images are divided that way; else empty.

    A class may be called "train": the names count only if there is no other folder beside them.
    Without train/, which is not needed for evaluation, they must hold class folders.
    """
    folders = list_subfolders(path)
    parts = {SPLIT_NAMES.get(folder.name.lower(), ""): folder for folder in folders}
    if "" in parts or len(parts) < len(folders):
        return {}
    if "train" not in parts and not (for_evaluation and any(list_subfolders(folder) for folder in folders)):
        return {}
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def class_link_filter(folders: Iterable[Path]) -> LinkFilter:
    """The filter that keeps the walk through one of the class folders inside these folders out of the others."""
    return LinkFilter([sub for folder in folders for sub in list_class_folders(folder)])


def list_siblings(path: Path) -> list[str]:
    """Names of the folders and image lists beside a path, sorted."""
    entries = scan_folder(path.parent) if path.parent.is_dir() else []
    names = [entry.name for entry in entries if entry.is_dir() or entry.name.lower().endswith(LIST_SUFFIXES)]
    return sorted(name for name in names if not is_hidden(name))


def _missing_path_error(path: Path) -> UserError:
    siblings = list_siblings(path)
    close = nearest(path.name, siblings)
    guess = f" Did you mean '{path.parent / close}'?" if close else ""
    details = []
    if siblings and not close:
        details = [f"beside it: {', '.join(siblings[:8])}{' ...' * (len(siblings) > 8)}"]
    return UserError(f"{path}: no such folder or list.{guess}", details=details, hint="check the path")


# Class folders


def _list_parts(path: Path, parts: Mapping[str, Path]) -> _Images:
    """All parts. Raises UserError for validation or test classes that training does not have."""
    link_filter = class_link_filter(parts.values())
    images = {part: _images_by_class(folder, link_filter) for part, folder in parts.items()}
    unknown = [
        f"{part}/{label} ({pluralize(len(files), 'image')})"
        for part, classes in images.items()
        for label, files in classes.items()
        if files and label not in images["train"]
    ]
    if unknown:
        raise UserError(
            f"{path}: {pluralize(len(unknown), 'class', 'have')} no folder in train/.",
            details=unknown,
            hint="use the same folder names in train/ and test/, or add training images",
        )
    return images


def _list_evaluation_part(parts: Mapping[str, Path]) -> _Images:
    """The part to evaluate on. The classes of all parts count: together they may be a public dataset's."""
    part = next(part for part in ("test", "val", "train") if part in parts)
    classes: dict[str, list[Path]] = {sub.name: [] for folder in parts.values() for sub in list_class_folders(folder)}
    return {part: classes | _images_by_class(parts[part], class_link_filter(parts.values()))}


def _images_by_class(folder: Path, link_filter: LinkFilter) -> dict[str, list[Path]]:
    """Images of each class folder. Raises UserError if there are none."""
    classes = {sub.name: list_images(sub, link_filter) for sub in list_class_folders(folder)}
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
    names = sorted(entry.name for entry in scan_folder(folder) if not is_hidden(entry.name))
    contents = f"found: {', '.join(names[:5])}{' ...' * (len(names) > 5)}" if names else "the folder is empty"
    raise UserError(f"{folder}: no images found.", details=[contents], hint=hint)


# From images to a dataset


def _make_dataset(path: Path, images: _Images, split: str, for_evaluation: bool, *, from_list: bool = False) -> Dataset:
    """Number and name the classes; unless `for_evaluation`, refuse what cannot be learned from.

    path: the folder or list that the user gave. from_list: labels come from a list, not from folders.
    """
    if not for_evaluation:
        _require_training(path, images["train"], "rows" if from_list else "folders")
    root, name = (path.parent, path.stem) if path.is_file() else (path, path.resolve().name or "images")
    classes = tuple(next(iter(images.values())))
    hint = "give one class one label in the list" if from_list else "rename or merge the folders"
    names = _class_names(path, read_names_by_label(root / CLASS_NAMES_FILE), classes, hint)
    labels = tuple(map(to_printable, classes))

    def items(part: str) -> tuple[LabelledImage, ...]:
        by_class = images.get(part, {})
        return tuple(LabelledImage(image, y) for y, label in enumerate(classes) for image in by_class.get(label, ()))

    return Dataset(name, labels, names, items("train"), items("val"), items("test"), root=root, split=split)


def _require_training(path: Path, train: Mapping[str, Sequence[Path]], entries: str) -> None:
    """Raise unless there are two classes, all with training images."""
    if empty := [label for label, images in train.items() if not images]:
        raise UserError(
            f"{path}: {pluralize(len(empty), 'class', 'have', of=len(train))} no training images.",
            details=empty,
            hint=f"add images to these classes, or remove their {entries}",
        )
    if len(train) < 2:
        count = pluralize(len(next(iter(train.values()))), "image")
        raise UserError(
            f"{path}: found {count} in 1 class; need at least 2 classes.",
            details=[f"the class is '{next(iter(train))}'"],
            hint="put each class into its own folder, e.g. photos/cat/*.jpg and photos/dog/*.jpg",
        )


def _class_names(path: Path, listed: Mapping[str, str], labels: Sequence[str], hint: str) -> tuple[str, ...]:
    """The name of each class: that in classnames.json, or that of its label.

    Raises UserError if CLIP could not tell two classes apart by their names.
    """
    names = tuple(" ".join(listed.get(label, label_to_name(label)).split()) for label in labels)
    first: dict[str, str] = {}
    clashes: list[str] = []
    for label, name in zip(labels, names, strict=True):
        if not name:
            clashes.append(f"'{label}' has no name")
        elif to_printable(name) != name:
            clashes.append(f"'{to_printable(name)}' is not UTF-8 text")
        elif fault := name_fault(to_printable(label)) or name_fault(name):
            clashes.append(fault)
        elif normalize_name(name) in first:
            clashes.append(f"'{first[normalize_name(name)]}' and '{label}' both read '{name}'")
        first.setdefault(normalize_name(name), label)
    if clashes:
        raise UserError(
            f"{path}: {pluralize(len(clashes), 'class name', 'are')} empty, unreadable or not distinct.",
            details=clashes,
            hint=f"{hint}, or give each its own words in {CLASS_NAMES_FILE}",
        )
    return names


# Image lists


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
        row = _parse_row(table.parent, line, record)
        if isinstance(row, ListedImage) and row.path in first:
            other = first[row.path]
            row = f"line {line}: {record['path']} " + (
                f"is listed again (first in line {other.line})"
                if other.label == row.label
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
        raise UserError(f"{table}: no rows.", hint=_LIST_HINT)
    return rows


def _metadata_lists(path: Path, for_evaluation: bool) -> list[Path]:
    """Hugging Face's metadata files with labels, in the folder or its parts."""
    folders = [path, *split_folders(path, for_evaluation=for_evaluation).values()]
    files = [folder / name for folder in folders for name in _METADATA if (folder / name).is_file()]
    return [file for file in files if _has_labels(file)]


def _has_labels(table: Path) -> bool:
    """Whether an image list has a label column (captions alone are no classes)."""
    if table.suffix.lower() == ".jsonl":
        return any(record.get("label") for _, record in _json_records(table))
    header, _ = _csv_header(table)
    return header is not None and _find_column(header, LABEL_COLUMNS) is not None


def _read_metadata(path: Path, table: Path) -> list[ListedImage]:
    """Rows whose split, where it is not given, is that of their folder."""
    rows = []
    for row in read_rows(table):
        folders = row.path.relative_to(path).parts[:-1] if row.path.is_relative_to(path) else ()
        split = row.split or SPLIT_NAMES.get(folders[0].lower() if folders else "", "train")
        rows.append(replace(row, split=split))
    return rows


def _group_rows(rows: Sequence[ListedImage]) -> _Images:
    """The images by part and label; labels sorted, numbers by value. Rows without a split are for training."""
    numeric = all(row.label.isdecimal() for row in rows)
    labels = sorted({row.label for row in rows}, key=lambda label: (int(label), label) if numeric else (0, label))
    images: _Images = {part: {label: [] for label in labels} for part in ("train", "val", "test")}
    for row in rows:
        images[row.split or "train"][row.label].append(row.path)
    return images


def _parse_row(folder: Path, line: int, record: dict[str, str]) -> ListedImage | str:
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


def _read_text(table: Path) -> str:
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
    first = next((line for line in _read_text(table).splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    cells = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), [])]
    names = [cell.lower() for cell in cells]
    if _find_column(names, PATH_COLUMNS) is not None:
        return names, delimiter
    if len(cells) in (2, 3) and Path(cells[0]).suffix.lower() in IMAGE_SUFFIXES:
        return None, delimiter
    raise UserError(f"{table}: the first line is '{first[:80]}'.", hint=_LIST_HINT)


def _csv_records(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    header, delimiter = _csv_header(table)
    columns = header or ["path", "label", "split"]
    positions = {
        "path": _find_column(columns, PATH_COLUMNS),
        "label": _find_column(columns, LABEL_COLUMNS),
        "split": _find_column(columns, SPLIT_COLUMNS),
    }
    if positions["label"] is None:
        raise UserError(f"{table}: no label column among {', '.join(columns)}.", hint=_LIST_HINT)
    needed = 1 + max(positions["path"] or 0, positions["label"])
    reader = csv.reader(io.StringIO(_read_text(table), newline=""), delimiter=delimiter)
    skip = header is not None
    for cells in _read_cells(table, reader):
        if not any(cell.strip() for cell in cells):
            continue
        if skip:
            skip = False
        elif not needed <= len(cells) <= len(columns):
            count = pluralize(len(cells), "cell")
            yield reader.line_num, {"fault": f"{count}, expected {len(columns)}: {delimiter.join(cells)[:60]}"}
        else:
            cells += [""] * (len(columns) - len(cells))
            yield reader.line_num, {k: "" if i is None else cells[i].strip() for k, i in positions.items()}


def _read_cells(table: Path, reader: Any) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise UserError(f"{table}: line {reader.line_num} is not CSV ({error}).") from error


def _json_records(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(_read_text(table).split("\n"), start=1):
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
            position = _find_column(names, columns)
            value = None if position is None else cells[position]
            record[key] = "" if value is None else str(value).strip()
        yield number, record


def _find_column(columns: Sequence[str], accepted: Sequence[str]) -> int | None:
    """Position of the first accepted column name."""
    return next((columns.index(name) for name in accepted if name in columns), None)
