"""Shifted versions of a dataset: "eurosat@noise" is EuroSAT's test part with noise.

Changed images are files in the cache folder, made when they are asked for the first time and named by the hash of
their originals. Files that are there are not made again, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from filelock import FileLock
from PIL import Image

from dca.core.errors import UserError, unknown_name
from dca.core.files import cache_folder, replacing, writing
from dca.data.dataset import Dataset, ImageLike, Item
from dca.data.decode_many import decode
from dca.data.hashing import sha256_of
from dca.data.shifts import SHIFTS

# Folder below the cache folder. The number changes with what a function of `shifts.py` does.
FOLDER = "shifts-1"


def split_name(name: str) -> tuple[str, str]:
    """The dataset and the kind of a name such as "eurosat@noise"; the kind is empty where there is none.

    >>> split_name("eurosat@noise"), split_name("eurosat")
    (('eurosat', 'noise'), ('eurosat', ''))
    """
    base, at, kind = name.rpartition("@")
    return (base, kind) if at and base else (name, "")


def shifted(dataset: Dataset, kind: str) -> Dataset:
    """The test part of a dataset with every image changed; the classes stay.

    Args:
        dataset: The dataset; only its test images are used.
        kind: One of `SHIFTS`.

    Returns:
        A dataset with test images only, called "NAME@KIND".

    Raises:
        UserError: If there is no such kind, there are no test images, or some cannot be read.
    """
    if kind not in SHIFTS:
        raise unknown_name("kind of shift", kind, SHIFTS, hint=f"one of: {', '.join(SHIFTS)}")
    if not dataset.test:
        raise UserError(f"{dataset.name} has no test images to change.", hint="give a dataset that has")
    place = cache_folder() / FOLDER / kind
    files = _made([item.image for item in dataset.test], kind, place)
    test = tuple(Item(file, item.label) for file, item in zip(files, dataset.test, strict=True))
    words = "; ".join(filter(None, [dataset.split, f"{kind}: {SHIFTS[kind].about}"]))
    return replace(dataset, name=f"{dataset.name}@{kind}", train=(), val=(), test=test, root=place, split=words)


def _made(images: Sequence[ImageLike], kind: str, place: Path) -> list[Path]:
    """The files of the changed images; missing ones are made, by one process at a time."""
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / ".lock"):
            files = [place / f"{sha256_of(image)}.png" for image in images]
            missing = {file: image for file, image in zip(files, images, strict=True) if not file.is_file()}
            decode(list(missing.values()), [partial(_write, file, kind) for file in missing])
    return files


def _write(file: Path, kind: str, image: Image.Image) -> None:
    with replacing(file) as unfinished:
        SHIFTS[kind].apply(image).save(unfinished, "PNG", compress_level=1)
