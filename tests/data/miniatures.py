"""Miniatures of the public datasets' official layouts: every class, one or two images each."""

from __future__ import annotations

import json
from pathlib import Path

from small_images import photo

from dca.data.sources import catalog
from dca.data.sources.entry import Entry

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


def miniature(name: str, root: Path) -> Path:
    """Lay a dataset out under `root` as its authors do, in small; returns its folder."""
    entry = catalog.get(name)
    folder = root / entry.folder
    folder.mkdir(parents=True)
    source = root / "one.jpg"
    photo().save(source)
    if name in SPLIT_FILES:
        _split_file(entry, folder, source)
    elif name == "fgvc_aircraft":
        _variant_lists(entry, folder, source)
    else:
        for part in WNID_FOLDERS[name]:
            for y, (key, _) in enumerate(entry.class_list()):
                _put(folder / part / (str(y) if name == "imagenetv2" else key) / "x.JPEG", source)
    return folder


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


def _split_file(entry: Entry, folder: Path, source: Path) -> None:
    file, images = SPLIT_FILES[entry.name]
    split = {
        part: [
            [split_path(entry.name, y, key, part, i), y, stored_name(entry.name, key, words)]
            for y, (key, words) in enumerate(entry.class_list())
            for i in range(n)
        ]
        for part, n in PER_CLASS.items()
    }
    (folder / file).write_text(json.dumps(split))
    for rows in split.values():
        for path, _, _ in rows:
            _put(folder / images / path, source)


def _variant_lists(entry: Entry, folder: Path, source: Path) -> None:
    variants = [key for key, _ in entry.class_list()]
    (folder / "variants.txt").write_text("\n".join(variants) + "\n")
    for part, n in PER_CLASS.items():
        rows = [(f"{part}{y}{i}", variant) for y, variant in enumerate(variants) for i in range(n)]
        (folder / f"images_variant_{part}.txt").write_text("".join(f"{image} {name}\n" for image, name in rows))
        for image, _ in rows:
            _put(folder / "images" / f"{image}.jpg", source)


def _put(path: Path, source: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(source)
