"""What images there are and which of them are used. Knows no model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dca.data.dataset import Dataset, Item

__all__ = ["Dataset", "Item", "load_dataset"]


def load_dataset(source: str | Path, *, root: str | Path | None = None, measuring: bool = False) -> Dataset:
    """Find a dataset by path or name.

    source: a folder or image list of one's own; a folder in a public dataset's layout (its split,
    class names and template are then used); the name of a public dataset, looked for under `root`
    or, failing that, the folder named by DCA_DATA; or "sample", the built-in drawn set.
    measuring: accept images of one's own that could not be learned from, as only their labels are needed.
    """
    from dca.data.sources.find import find_dataset

    return find_dataset(source, root, measuring=measuring)


def __getattr__(name: str) -> object:
    if name in ("Dataset", "Item"):
        from dca.data import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
