"""Datasets: which images there are, and which of them are used. Independent of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dca.data.dataset import Dataset, Item

__all__ = ["Dataset", "Item", "load_dataset"]


def load_dataset(source: str | Path, *, root: str | Path | None = None, measuring: bool = False) -> Dataset:
    """Find a dataset by path or name.

    Args:
        source: a folder of images or an image list; a folder with a public dataset in its official
            layout, whose split, class names and template are then used; the name of a public dataset;
            or "sample", the small built-in dataset.
        root: folder that holds the public datasets; by default the folder named by the environment
            variable DCA_DATA.
        measuring: accept images that are enough to measure on, but not to learn from.

    Returns:
        The dataset; its images are listed, not opened.

    Raises:
        UserError: if there is no such dataset, or it cannot be read.

    >>> sample = load_dataset("sample")
    >>> sample.names[:3], sample.counts()
    (('butterfly', 'cactus', 'fish'), {'train': 160, 'val': 0, 'test': 200})
    """
    from dca.data.sources.find import find_dataset

    return find_dataset(source, root, measuring=measuring)


def __getattr__(name: str) -> object:
    if name in ("Dataset", "Item"):
        from dca.data import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
