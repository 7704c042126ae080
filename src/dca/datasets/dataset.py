"""Labelled images: what data from every source is read into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core.text import to_printable
from dca.images.decode import ImageLike


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One labelled image.

    Args:
        image: A file, or an image in memory.
        label: Index of its class in `Dataset.labels` and `Dataset.names`.

    Example:
        >>> from pathlib import Path
        >>> from dca import LabelledImage
        >>> LabelledImage(Path("cat/1.jpg"), 0).label
        0
    """

    image: ImageLike
    label: int


@dataclass(frozen=True)
class Dataset:
    """Labelled images of one classification problem.

    A class has an index (in `labels` and `names`), a label and a name. The label is what
    the user calls the class: models return it, store it, and are evaluated by it. The name is the
    text that CLIP reads. For a folder `n01440764` with the entry "tench" in classnames.json, the
    label is "n01440764" and the name "tench".

    Args:
        name: What to call the dataset in messages; nothing else depends on it.
        labels: Label of each class, all different: folder names, labels of a CSV list, numbers.
        names: Words for each class, in the same order.
        train: Images to learn from.
        val: Images to choose options on.
        test: Images for evaluation only; methods never receive them.
        other: Images of none of the classes, to learn what is to be rejected.
        template: Zero-shot sentence with `{}` for the class name.
        keys: Stable identifier of each class (WordNet id), where a public dataset has one.
        root: Folder that recorded image paths are relative to.
        split: Where the division into train, val and test comes from.
        public: Name of the public dataset that these images were recognised as, or "".

    Example:
        >>> from pathlib import Path
        >>> from dca import Dataset, LabelledImage
        >>> photos = Dataset("photos", labels=(0, 1), names=("cat", "dog"), train=(LabelledImage(Path("a.jpg"), 1),))
        >>> photos.names[photos.train[0].label], photos.counts()
        ('dog', {'train': 1, 'val': 0, 'test': 0})
    """

    name: str
    labels: tuple[Any, ...]
    names: tuple[str, ...]
    train: tuple[LabelledImage, ...]
    val: tuple[LabelledImage, ...] = ()
    test: tuple[LabelledImage, ...] = ()
    other: tuple[ImageLike, ...] = ()
    template: str = "a photo of a {}."
    keys: tuple[str, ...] = ()
    root: Path | None = None
    split: str = ""
    public: str = ""

    def counts(self) -> dict[str, int]:
        """Number of images in each part."""
        return {"train": len(self.train), "val": len(self.val), "test": len(self.test)}

    def path_of(self, item: LabelledImage) -> str:
        """The path of an image as records hold it.

        Args:
            item: One of the images.

        Returns:
            The path relative to `root`, with forward slashes; "" for an image in memory.
        """
        if not isinstance(item.image, Path):
            return ""
        path = item.image
        if self.root is not None and path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return to_printable(path.as_posix())
