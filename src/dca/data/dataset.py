"""Labelled images: what every source of data is read into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from dca.core.wording import printable

ImageLike = Path | Image.Image


@dataclass(frozen=True, slots=True)
class Item:
    """One labelled image: a file or an image in memory, and the index of its class."""

    image: ImageLike
    label: int


@dataclass(frozen=True)
class Dataset:
    """Labelled images of one classification problem.

    A class has an index (its place in `labels` and `names`), a label and a name. The label is what
    the user calls the class: models return it, store it, and are evaluated by it. The name is the
    text that CLIP reads. For a folder `n01440764` with the entry "tench" in classnames.json, the
    label is "n01440764" and the name "tench".

    Args:
        name: what to call the dataset in messages; nothing else depends on it.
        labels: label of each class, all different: folder names, labels of a CSV list, numbers.
        names: words for each class, in the same order.
        train: images to learn from.
        val: images to choose settings on.
        test: images for evaluation only; methods never receive them.
        template: zero-shot sentence with `{}` for the class name.
        keys: stable identifier of each class (WordNet id), where a public dataset has one.
        root: folder that recorded image paths are relative to.
        split: where the division into train, val and test comes from.
        public: name of the public dataset that these images were recognised as, or "".

    >>> photos = Dataset("photos", labels=(0, 1), names=("cat", "dog"), train=(Item(Path("a.jpg"), 1),))
    >>> photos.names[photos.train[0].label], photos.counts()
    ('dog', {'train': 1, 'val': 0, 'test': 0})
    """

    name: str
    labels: tuple[Any, ...]
    names: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()
    template: str = "a photo of a {}."
    keys: tuple[str, ...] = ()
    root: Path | None = None
    split: str = ""
    public: str = ""

    def counts(self) -> dict[str, int]:
        """Number of images in each part."""
        return {"train": len(self.train), "val": len(self.val), "test": len(self.test)}

    def path_of(self, item: Item) -> str:
        """Path of an item as records write it: relative to the root, with forward slashes; "" in memory."""
        if not isinstance(item.image, Path):
            return ""
        path = item.image
        if self.root is not None and path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return printable(path.as_posix())
