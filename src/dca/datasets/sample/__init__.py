"""The built-in sample: a small dataset of drawn images, so that trying the package needs no download.

The images look like paper cut-outs under a lamp: everyday things in varying colours, poses, numbers
and places, some of them out of focus or partly hidden. They were drawn by a program for this package and have its
licence. They are stored without loss (WebP) as `train/<class>/NN.webp` and `test/<class>/NN.webp` beside this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from PIL import Image

from dca.core.errors import UserError
from dca.core.files import atomic_folder, explain_write_errors
from dca.datasets.dataset import Dataset, LabelledImage
from dca.images.decode import open_bytes

__all__ = ["SAMPLE_CLASSES", "load_sample", "write_sample"]

SAMPLE_CLASSES = (
    *("butterfly", "cactus", "fish", "guitar", "hot air balloon"),
    *("house", "lighthouse", "mushroom", "sailboat", "sunflower"),
)
# Images per class of each part, and the side of the images in pixels.
TRAIN, TEST, SIZE = 16, 20, 96


def load_sample(*, per_class_train: int = TRAIN, per_class_test: int = TEST, size: int = SIZE) -> Dataset:
    """Load the sample dataset into memory.

    Args:
        per_class_train: Training images per class, 1 to 16: the first ones.
        per_class_test: Test images per class, 0 to 20: the first ones.
        size: Side of the square images in pixels, at least 16; other sizes than 96 are resized.

    Returns:
        The dataset; its 10 classes are `SAMPLE_CLASSES`.

    Raises:
        UserError: If a number is out of range.

    Example:
        >>> load_sample(per_class_train=2, per_class_test=1).counts()
        {'train': 20, 'val': 0, 'test': 10}
    """
    limits = (("per_class_train", per_class_train, 1, TRAIN), ("per_class_test", per_class_test, 0, TEST))
    problems = [f"{name} is {value}; {low} to {high}" for name, value, low, high in limits if not low <= value <= high]
    if size < 16:
        problems.append(f"size is {size}; at least 16")
    if problems:
        raise UserError("the sample does not have that.", details=problems)
    train, test = (_load_part("train", per_class_train, size), _load_part("test", per_class_test, size))
    return Dataset("sample", SAMPLE_CLASSES, SAMPLE_CLASSES, train, test=test)


def write_sample(folder: Path | str, **options: int) -> Path:
    """Write the sample as `train/<class>/*.png` and `test/<class>/*.png`.

    Args:
        folder: The folder to create.
        **options: Those of `load_sample`.

    Returns:
        The folder.

    Raises:
        UserError: If the folder is not empty, it cannot be written, or a number is out of range.

    Example:
        >>> import tempfile
        >>> sorted(path.name for path in write_sample(tempfile.mkdtemp() + "/photos").iterdir())
        ['test', 'train']
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder}: already there and not empty.", hint="name a new folder for the sample")
    sample = load_sample(**options)
    with atomic_folder(folder) as unfinished, explain_write_errors(folder):
        _write_part(unfinished / "train", sample.train)
        _write_part(unfinished / "test", sample.test)
    return folder


def _load_part(part: str, per_class: int, size: int) -> tuple[LabelledImage, ...]:
    """The first images of each class."""
    root = resources.files(__name__) / part
    items = []
    for label, name in enumerate(SAMPLE_CLASSES):
        for number in range(per_class):
            image = open_bytes((root / name / f"{number:02d}.webp").read_bytes())
            image.info.clear()  # what the file format adds
            if size != SIZE:
                image = image.resize((size, size), Image.Resampling.LANCZOS)
            items.append(LabelledImage(image, label))
    return tuple(items)


def _write_part(folder: Path, items: Sequence[LabelledImage]) -> None:
    """One PNG per image, numbered within its class."""
    numbers = dict.fromkeys(SAMPLE_CLASSES, 0)
    for item in items:
        name = SAMPLE_CLASSES[item.label]
        target = folder / name / f"{numbers[name]:03d}.png"
        numbers[name] += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(item.image, Image.Image)
        item.image.save(target)
