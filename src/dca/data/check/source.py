"""Checking any data: a public dataset, a folder, a list or the sample."""

from __future__ import annotations

from pathlib import Path

from dca.data.check.folder import check_dataset, check_folder
from dca.data.check.public import Report, check_public
from dca.data.decode_many import Count
from dca.data.sources import catalog
from dca.data.sources.find import SAMPLE, find_dataset, place_of, recognise


def check_source(
    source: str | Path,
    root: str | Path | None = None,
    *,
    open_images: bool | None = None,
    progress: Count | None = None,
) -> Report:
    """Check what `find_dataset` would find.

    open_images: whether to open every image; by default only those of folders and lists, not of public datasets.
    """
    path = Path(source).expanduser()
    entry = recognise(path) if root is None and path.exists() else None
    if entry is None and not (root is None and path.exists()) and isinstance(source, str):
        entry = catalog.lookup(source)
        path = place_of(entry, root) if entry is not None else path
    if entry is not None:
        return check_public(entry, path, open_images=bool(open_images), progress=progress)
    if str(source) == SAMPLE and not path.exists():
        return check_dataset(find_dataset(SAMPLE), path, open_images=open_images is not False, progress=progress)
    return check_folder(path, open_images=open_images is not False, progress=progress)
