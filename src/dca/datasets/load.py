"""Find a dataset by what the user wrote: a path, a public name, a shifted version, or the built-in sample."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from dca.core.errors import UserError, unknown_name
from dca.core.hints import list_datasets, set_data_root, show_dataset
from dca.datasets import catalog
from dca.datasets.classes import CLASS_NAMES_FILE, unused_names
from dca.datasets.dataset import Dataset
from dca.datasets.folder import list_siblings, load_folder
from dca.datasets.shifts import shift_dataset, split_shift_name

SAMPLE = "sample"
_log = logging.getLogger(__name__)


def load_dataset(source: str | Path, *, root: str | Path | None = None, for_evaluation: bool = False) -> Dataset:
    """Find a dataset by path or name.

    Args:
        source: A folder of images or an image list; a folder with a public dataset in its official
            layout, whose split, class names and template are then used; the name of a public dataset;
            or "sample", the small built-in dataset of drawn images. "NAME@KIND" is a shifted version of
            its test part, see `dca.datasets.shifts`.
        root: Folder that holds the public datasets; by default the folder named by the environment
            variable DCA_DATA.
        for_evaluation: Accept images that are enough to evaluate on, but not to learn from.

    Returns:
        The dataset; its image files are listed, not opened.

    Raises:
        UserError: If there is no such dataset, or it cannot be read.

    Example:
        >>> import tempfile
        >>> from dca import load_dataset
        >>> from dca.datasets.sample import write_sample
        >>> folder = write_sample(tempfile.mkdtemp() + "/photos", per_class_train=2, per_class_test=1)
        >>> dataset = load_dataset(folder)
        >>> dataset.names[:3], dataset.counts()
        (('butterfly', 'cactus', 'fish'), {'train': 20, 'val': 0, 'test': 10})
    """
    path = Path(source).expanduser()
    if root is None and path.exists():
        return _load_path(path, for_evaluation)
    if str(source) == SAMPLE:
        from dca.datasets.sample import load_sample

        return load_sample()
    entry = catalog.find(source) if isinstance(source, str) else None
    if entry is not None:
        return entry.load(find_dataset_folder(entry, root))
    if root is not None and (Path(root) / path).exists():
        return _load_path(Path(root) / path, for_evaluation)
    base, kind = split_shift_name(str(source))
    if kind:
        return shift_dataset(load_dataset(base, root=root), kind)
    if isinstance(source, Path) or path.suffix or source != path.name:
        return load_folder(path)  # raises the error for a missing path
    known = [*catalog.entries(), SAMPLE, *list_siblings(path)]
    raise unknown_name("dataset or folder", str(source), known, hint=["give a folder of images", list_datasets()])


def find_root(root: str | Path | None) -> Path | None:
    """The folder that holds the public datasets: the one given, or DCA_DATA; None if there is neither."""
    found = os.environ.get("DCA_DATA") if root is None else root
    return None if found is None else Path(found).expanduser()


def find_dataset_folder(entry: catalog.CatalogEntry, root: str | Path | None) -> Path:
    """The folder of a public dataset under the data root, or the root itself if it is that folder.

    root: by default the folder named by the environment variable DCA_DATA.
    Raises UserError if there is no such folder.
    """
    base = find_root(root)
    if base is None:
        raise UserError(
            f"where is {entry.title}? Only its name was given.",
            hint=["give the path of its folder instead", set_data_root(entry.folder)],
        )
    names = (entry.folder, entry.name, entry.title, *entry.aliases)
    folder = next((base / name for name in names if (base / name).is_dir()), None)
    if folder is not None:
        return folder
    if entry.matches(base):
        return base
    raise UserError(
        f"{base}: no folder {entry.folder}/ here.",
        details=[f"expected {entry.folder}/{line}" for line in entry.layout.expected_files()],
        hint=show_dataset(entry.name),
    )


def _load_path(path: Path, for_evaluation: bool) -> Dataset:
    """The public dataset in a folder, or else its images; if their classes are a public dataset's, named as there."""
    entry = catalog.detect(path)
    if entry is not None:
        return entry.load(path)
    dataset = load_folder(path, for_evaluation=for_evaluation)
    unused, misspelled = unused_names(dataset)
    # A model may be evaluated on some of its classes with a file that names all of them.
    if unused and misspelled and not for_evaluation:
        _log.warning("%s of %s: no class is called %s", CLASS_NAMES_FILE, path, ", ".join(unused[:5]))
    for entry in catalog.entries().values():
        if len(dataset.labels) == entry.classes and (named := catalog.name_classes(entry, dataset)) is not None:
            return replace(named, split=f"{named.split}, not its public split")
    return dataset
