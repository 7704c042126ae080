"""Find a dataset by what the user wrote: a path, a public name, or the name of the built-in sample."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from dca.core.errors import UserError, unknown_name
from dca.core.hints import list_datasets, set_data_root, show_dataset
from dca.datasets import catalog
from dca.datasets.classes import NAMES
from dca.datasets.dataset import Dataset
from dca.datasets.folder import load_folder, neighbours, unused_names
from dca.datasets.layouts import CatalogEntry, adopt
from dca.datasets.shifts import shift_dataset, split_shift_name

SAMPLE = "sample"
_log = logging.getLogger(__name__)


def find_dataset(source: str | Path, root: str | Path | None = None, *, measuring: bool = False) -> Dataset:
    """Dataset of a path, a catalog name, or the sample; see `dca.datasets.load_dataset`."""
    path = Path(source).expanduser()
    if root is None and path.exists():
        return _at_path(path, measuring)
    if str(source) == SAMPLE:
        from dca.datasets.sample import load_sample

        return load_sample()
    entry = catalog.lookup(source) if isinstance(source, str) else None
    if entry is not None:
        return entry.build(folder_of_dataset(entry, root))
    if root is not None and (Path(root) / path).exists():
        return _at_path(Path(root) / path, measuring)
    base, kind = split_shift_name(str(source))
    if kind:
        return shift_dataset(find_dataset(base, root), kind)
    if isinstance(source, Path) or path.suffix or source != path.name:
        return load_folder(path)  # says what is missing
    known = [*catalog.entries(), SAMPLE, *neighbours(path)]
    raise unknown_name("dataset or folder", str(source), known, hint=["give a folder of images", list_datasets()])


def recognise(path: Path) -> CatalogEntry | None:
    """The public dataset that a folder holds by its split file or layout, if any; its name does not count."""
    if not path.is_dir():
        return None
    return next((entry for entry in catalog.entries().values() if entry.layout.recognises(path)), None)


def folder_of_dataset(entry: CatalogEntry, root: str | Path | None) -> Path:
    """The entry's folder under the data root, or the root itself if it is that folder."""
    given = root if root is not None else os.environ.get("DCA_DATA")
    if given is None:
        raise UserError(
            f"where is {entry.title}? Only its name was given.",
            hint=["give the path of its folder instead", set_data_root(entry.folder)],
        )
    base = Path(given).expanduser()
    names = (entry.folder, entry.name, entry.title, *entry.aliases)
    folder = next((base / name for name in names if (base / name).is_dir()), None)
    if folder is not None:
        return folder
    if entry.layout.recognises(base):
        return base
    raise UserError(
        f"{base}: no folder {entry.folder}/ here.",
        details=[f"expected {entry.folder}/{line}" for line in entry.layout.tree()],
        hint=show_dataset(entry.name),
    )


def _at_path(path: Path, measuring: bool) -> Dataset:
    entry = recognise(path)
    if entry is not None:
        return entry.build(path)
    dataset = load_folder(path, measuring=measuring)
    unused, misspelled = unused_names(dataset)
    if unused and misspelled and not measuring:  # a model may be measured on some of its classes, with all names
        _log.warning("%s of %s: no class is called %s", NAMES, path, ", ".join(unused[:5]))
    for entry in catalog.entries().values():
        if len(dataset.labels) == entry.classes and (named := adopt(entry, dataset)) is not None:
            return replace(named, split=f"{named.split} (recognised as {entry.title}; not its public split)")
    return dataset
