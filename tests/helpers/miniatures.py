"""Miniatures of the public datasets' official layouts: by default every class, with one or two images each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from dca.datasets import catalog
from dca.datasets.catalog import CatalogEntry
from helpers.small_images import photo

SPLIT_FILES = {
    "dtd": ("split_zhou_DescribableTextures.json", "images"),
    "food101": ("split_zhou_Food101.json", "images"),
    "stanford_cars": ("split_zhou_StanfordCars.json", "."),
    "caltech101": ("split_zhou_Caltech101.json", "101_ObjectCategories"),
    "oxford_flowers": ("split_zhou_OxfordFlowers.json", "jpg"),
    "oxford_pets": ("split_zhou_OxfordPets.json", "images"),
    "sun397": ("split_zhou_SUN397.json", "SUN397"),
    "ucf101": ("split_zhou_UCF101.json", "UCF-101-midframes"),
    "eurosat": ("split_zhou_EuroSAT.json", "2750"),
}
WNID_FOLDERS = {
    "imagenet": ("images/train", "images/val"),
    "imagenetv2": ("imagenetv2-matched-frequency-format-val",),
    "imagenet_sketch": ("images",),
    "imagenet_a": ("imagenet-a",),
    "imagenet_r": ("imagenet-r",),
}
PER_CLASS = {"train": 2, "val": 1, "test": 1}


@dataclass(frozen=True)
class Size:
    """How small a miniature is.

    per_class: images of each part. classes: the first of them; None for all, which ImageNet and its variants always
    have. per_folder: images in each class folder of ImageNet's training part. tested: how many classes of ImageNet
    have a test image. distinct: different images among them.
    """

    per_class: dict[str, int] = field(default_factory=lambda: dict(PER_CLASS))
    classes: int | None = None
    per_folder: int = 1
    tested: int | None = None
    distinct: int = 1

    def classes_of(self, entry: CatalogEntry) -> list[tuple[str, str]]:
        return list(entry.class_list())[: self.classes]


def miniature(name: str, root: Path, size: Size | None = None) -> Path:
    """Lay a dataset out under `root` as its authors do, in small; returns its folder."""
    entry, size = catalog.get(name), size or Size()
    folder = root / entry.folder
    folder.mkdir(parents=True)
    put = Putter([root / "one.jpg", *(root / f"{n}.jpg" for n in range(1, size.distinct))])
    if name in SPLIT_FILES:
        _split_file(entry, folder, put, size)
    elif name == "fgvc_aircraft":
        _variant_lists(entry, folder, put, size)
    else:
        for number, part in enumerate(WNID_FOLDERS[name]):
            step = 1 if size.tested is None or (name, number) != ("imagenet", 1) else 1000 // size.tested
            for y, (key, _) in list(enumerate(entry.class_list()))[::step]:
                place = folder / part / (str(y) if name == "imagenetv2" else key)
                for i in range(size.per_folder if name == "imagenet" and number == 0 else 1):
                    put(place / ("x.JPEG" if i == 0 else f"x{i}.JPEG"))
    return folder


class Putter:
    """Puts images into their places, the sources in turn."""

    def __init__(self, sources: list[Path]) -> None:
        self.sources, self.count = sources, 0
        for n, source in enumerate(sources):
            photo(n).save(source)

    def __call__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.sources[self.count % len(self.sources)])
        self.count += 1


def split_path(name: str, y: int, key: str, part: str, i: int) -> str:
    """Path of an image as the split file writes it."""
    if name == "stanford_cars":
        return f"cars_{'test' if part == 'test' else 'train'}/{y:03d}{part}{i}.jpg"
    if name == "oxford_pets":
        return f"{key}_{part}{i}.jpg"
    if name == "oxford_flowers":
        return f"image_{y:03d}{part}{i}.jpg"
    return f"{key}/{part}{i}.jpg"


def stored_name(name: str, key: str, words: str) -> str:
    """Class name as the split file writes it: underscores where its authors have them."""
    if name in ("food101", "ucf101", "oxford_pets", "caltech101", "sun397"):
        return words.replace(" ", "_") if name != "sun397" else " ".join(key.split("/")[1:][::-1])
    return words


def _split_file(entry: CatalogEntry, folder: Path, put: Putter, size: Size) -> None:
    file, images = SPLIT_FILES[entry.name]
    split = {
        part: [
            [split_path(entry.name, y, key, part, i), y, stored_name(entry.name, key, words)]
            for y, (key, words) in enumerate(size.classes_of(entry))
            for i in range(n)
        ]
        for part, n in size.per_class.items()
    }
    (folder / file).write_text(json.dumps(split))
    for rows in split.values():
        for path, _, _ in rows:
            put(folder / images / path)


def _variant_lists(entry: CatalogEntry, folder: Path, put: Putter, size: Size) -> None:
    variants = [key for key, _ in size.classes_of(entry)]
    (folder / "variants.txt").write_text("\n".join(variants) + "\n")
    for part, n in size.per_class.items():
        rows = [(f"{part}{y}{i}", variant) for y, variant in enumerate(variants) for i in range(n)]
        (folder / f"images_variant_{part}.txt").write_text("".join(f"{image} {name}\n" for image, name in rows))
        for image, _ in rows:
            put(folder / "images" / f"{image}.jpg")
