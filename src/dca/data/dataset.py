"""What a dataset is to the rest of the house: class names and labelled pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class Item:
    """One labelled picture: a file, or an image already in memory."""

    picture: Path | Image.Image
    label: int


@dataclass(frozen=True)
class Dataset:
    """Labelled pictures of one task.

    classes: words for each label, in label order; they go into the prompts.
    test: seen by evaluation only; methods never receive it.
    template: zero-shot sentence with `{}` for the class name.
    keys: stable identifier of each class (folder name, CSV label, WordNet id), in label order.
    root: folder that the pictures' recorded paths are relative to.
    split: where the division into train, val and test comes from.
    labels: what the caller calls each class (a number, say), in label order, where that was given;
    `classes` has the same as text.
    """

    name: str
    classes: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()
    template: str = "a photo of a {}."
    keys: tuple[str, ...] = ()
    root: Path | None = None
    split: str = ""
    labels: tuple[Any, ...] = ()

    def counts(self) -> dict[str, int]:
        """Number of pictures in each part."""
        return {"train": len(self.train), "val": len(self.val), "test": len(self.test)}

    def path_of(self, item: Item) -> str:
        """Path of an item as records write it: relative to the root, with forward slashes."""
        if not isinstance(item.picture, Path):
            return ""
        path = item.picture
        if self.root is not None and path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return printable(path.as_posix())


def printable(name: str) -> str:
    """A file name that can be printed and stored: bytes that are not UTF-8 become a sign.

    >>> printable("caf" + chr(0xDCE9)) == "caf" + chr(0xFFFD)
    True
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
