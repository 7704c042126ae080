"""Datasets: which images there are, and which of them are used. Independent of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset, Item

__all__ = ["Dataset", "Item", "load_dataset"]


def load_dataset(source: str | Path, *, root: str | Path | None = None, measuring: bool = False) -> Dataset:
    """Find a dataset by path or name.

    Args:
        source: A folder of images or an image list; a folder with a public dataset in its official
            layout, whose split, class names and template are then used; the name of a public dataset;
            or "sample", the small built-in dataset of images drawn by code. "NAME@KIND" is a shifted version of
            its test part, see `dca.datasets.shifts`.
        root: Folder that holds the public datasets; by default the folder named by the environment
            variable DCA_DATA.
        measuring: Accept images that are enough to measure on, but not to learn from.

    Returns:
        The dataset; its image files are listed, not opened.

    Raises:
        UserError: If there is no such dataset, or it cannot be read.

    Example:
        >>> import tempfile
        >>> from dca import load_dataset
        >>> from dca.datasets.sample import write_sample
        >>> folder = write_sample(tempfile.mkdtemp() + "/photos", per_class_train=2, per_class_test=1, size=32)
        >>> dataset = load_dataset(folder)
        >>> dataset.names[:3], dataset.counts()
        (('butterfly', 'cactus', 'fish'), {'train': 20, 'val': 0, 'test': 10})
    """
    from dca.datasets.load import find_dataset

    return find_dataset(source, root, measuring=measuring)


def __getattr__(name: str) -> object:
    if name in ("Dataset", "Item"):
        from dca.datasets import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
