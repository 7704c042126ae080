"""The built-in sample: a small dataset painted by code, so that trying the package needs no download.

The images look like paper cut-outs under a lamp: everyday things in varying colours, poses, numbers
and places, some of them out of focus or partly hidden.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dca.core import seeds
from dca.core.errors import UserError
from dca.core.files import atomic_replace, explain_write_errors
from dca.datasets.dataset import Dataset, Item
from dca.datasets.sample import nature, things
from dca.datasets.sample.places import deep, desert, forest, meadow, sea, sky, studio, table, wall
from dca.datasets.sample.scene import Motif, Pose, paint

__all__ = ["SAMPLE_CLASSES", "load_sample", "write_sample"]

_MOTIFS: dict[str, tuple[Motif, Pose]] = {
    "butterfly": (nature.butterfly, Pose(lean=0.1, homes=(meadow, sky, forest, studio))),
    "cactus": (nature.cactus, Pose(lean=0.02, homes=(desert, table, studio))),
    "fish": (nature.fish, Pose(lean=0.03, homes=(deep, deep, studio))),
    "guitar": (things.guitar, Pose(lean=0.055, homes=(studio, wall, table))),
    "hot air balloon": (things.hot_air_balloon, Pose(lean=0.02, homes=(sky, sky, meadow))),
    "house": (things.house, Pose(lean=0.01, homes=(meadow, sky, studio))),
    "lighthouse": (things.lighthouse, Pose(lean=0.015, homes=(sea, sky))),
    "mushroom": (nature.mushroom, Pose(lean=0.04, homes=(forest, meadow, studio))),
    "sailboat": (things.sailboat, Pose(lean=0.025, homes=(sea, sky))),
    "sunflower": (nature.sunflower, Pose(lean=0.04, homes=(meadow, sky, forest, studio))),
}
SAMPLE_CLASSES = tuple(_MOTIFS)


def load_sample(*, per_class_train: int = 16, per_class_test: int = 20, size: int = 96, seed: int = 0) -> Dataset:
    """Paint the sample dataset; the same arguments give the same pixels.

    size: side of the square images, in pixels.

    >>> len(load_sample(per_class_train=1, per_class_test=0).train) == len(SAMPLE_CLASSES)
    True
    """
    problems = [
        f"{name} is {value}; at least {least}"
        for name, value, least in (
            ("per_class_train", per_class_train, 1),
            ("per_class_test", per_class_test, 0),
            ("size", size, 16),
        )
        if value < least
    ]
    if problems:
        raise UserError("the sample cannot be made that small.", details=problems)
    train, test = (
        tuple(
            Item(_paint(name, number, split, size, seed), label)
            for label, name in enumerate(SAMPLE_CLASSES)
            for number in range(count)
        )
        for split, count in (("train", per_class_train), ("test", per_class_test))
    )
    return Dataset("sample", SAMPLE_CLASSES, SAMPLE_CLASSES, train, test=test)


def _paint(name: str, number: int, split: str, size: int, seed: int) -> Image.Image:
    """One image. It has its own random stream, so asking for more images never changes the first ones."""
    motif, pose = _MOTIFS[name]
    # "picture" is the name of the random stream: another name would change every pixel.
    rng = np.random.default_rng(seeds.derive_seed(seed, "picture", split, name, number))
    return paint(motif, pose, rng, size)


def write_sample(folder: Path | str, **options: int) -> Path:
    """Write the sample as `train/<class>/*.png` and `test/<class>/*.png`; returns the folder.

    options: those of `load_sample`.
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder}: already there and not empty.", hint="name a new folder for the sample")
    sample = load_sample(**options)
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            made = Path(scratch) / "sample"
            for split, items in (("train", sample.train), ("test", sample.test)):
                _write_split(made / split, items)
            atomic_replace(made, folder)
    return folder


def _write_split(folder: Path, items: Sequence[Item]) -> None:
    """One PNG per image, numbered within its class."""
    numbers = dict.fromkeys(SAMPLE_CLASSES, 0)
    for item in items:
        name = SAMPLE_CLASSES[item.label]
        target = folder / name / f"{numbers[name]:03d}.png"
        numbers[name] += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(item.image, Image.Image)
        item.image.save(target)
