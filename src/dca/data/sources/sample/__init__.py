"""The built-in sample: a small dataset drawn by code, so that nothing has to be downloaded to try.

The pictures look like paper cut-outs under a lamp: everyday things with their own colours, habits,
numbers and places, photographed now and then out of focus or behind a leaf.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dca.core import seeds
from dca.core.errors import UserError
from dca.core.files import publish, writing
from dca.data.dataset import Dataset, Item
from dca.data.sources.sample import nature, things
from dca.data.sources.sample.places import deep, desert, forest, meadow, sea, sky, studio, table, wall
from dca.data.sources.sample.scene import Drawing, Habit, paint

__all__ = ["SAMPLE_CLASSES", "load_sample", "write_sample"]

_DRAWINGS: dict[str, tuple[Drawing, Habit]] = {
    "butterfly": (nature.butterfly, Habit(lean=0.1, homes=(meadow, sky, forest, studio))),
    "cactus": (nature.cactus, Habit(lean=0.02, homes=(desert, table, studio))),
    "fish": (nature.fish, Habit(lean=0.03, homes=(deep, deep, studio))),
    "guitar": (things.guitar, Habit(lean=0.055, homes=(studio, wall, table))),
    "hot air balloon": (things.hot_air_balloon, Habit(lean=0.02, homes=(sky, sky, meadow))),
    "house": (things.house, Habit(lean=0.01, homes=(meadow, sky, studio))),
    "lighthouse": (things.lighthouse, Habit(lean=0.015, homes=(sea, sky))),
    "mushroom": (nature.mushroom, Habit(lean=0.04, homes=(forest, meadow, studio))),
    "sailboat": (things.sailboat, Habit(lean=0.025, homes=(sea, sky))),
    "sunflower": (nature.sunflower, Habit(lean=0.04, homes=(meadow, sky, forest, studio))),
}
SAMPLE_CLASSES = tuple(_DRAWINGS)


def load_sample(*, per_class_train: int = 16, per_class_test: int = 20, size: int = 96, seed: int = 0) -> Dataset:
    """Draw the sample dataset; the same arguments give the same pixels.

    size: side of the square pictures, in pixels.

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
        raise UserError("the sample cannot be drawn so small.", details=problems)
    train, test = (
        tuple(
            Item(_draw(name, number, split, size, seed), label)
            for label, name in enumerate(SAMPLE_CLASSES)
            for number in range(count)
        )
        for split, count in (("train", per_class_train), ("test", per_class_test))
    )
    return Dataset("sample", SAMPLE_CLASSES, train, test=test)


def _draw(name: str, number: int, split: str, size: int, seed: int) -> Image.Image:
    """One picture. Its stream is its own, so asking for more pictures never changes the first ones."""
    draw, habit = _DRAWINGS[name]
    rng = np.random.default_rng(seeds.derive(seed, "picture", split, name, number))
    return paint(draw, habit, rng, size)


def write_sample(folder: Path | str, **options: int) -> Path:
    """Write the sample as `train/<class>/*.png` and `test/<class>/*.png`; returns the folder.

    options: those of `load_sample`.
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder}: already there and not empty.", hint="name a new folder for the sample")
    sample = load_sample(**options)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            made = Path(scratch) / "sample"
            for split, items in (("train", sample.train), ("test", sample.test)):
                _write_split(made / split, items)
            publish(made, folder)
    return folder


def _write_split(folder: Path, items: Sequence[Item]) -> None:
    """One PNG per picture, numbered within its class."""
    numbers = dict.fromkeys(SAMPLE_CLASSES, 0)
    for item in items:
        name = SAMPLE_CLASSES[item.label]
        target = folder / name / f"{numbers[name]:03d}.png"
        numbers[name] += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(item.picture, Image.Image)
        item.picture.save(target)
