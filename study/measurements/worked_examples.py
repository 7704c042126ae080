"""The folders of the worked examples: a few classes of a public dataset, with some photos in wrong folders.

    python study/measurements/worked_examples.py instruments CALTECH --out FOLDER
    python study/measurements/worked_examples.py flowers FLOWERS --out FOLDER
    python study/measurements/worked_examples.py satellite EUROSAT --out FOLDER

writes FOLDER/photos (some of its files, called wrong-*, are in another class's folder), FOLDER/sorted (the same photos,
each in its own), FOLDER/more_photos (other photos of these classes) and FOLDER/other (photos of other classes).
docs/examples.md has the commands that follow, and what they print. Classes and numbers were written down before the
first fit; what is drawn is decided by the name of the example.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from closed_form import existing_items

from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset


@dataclass(frozen=True)
class Example:
    """Which photos are copied."""

    classes: Sequence[str]  # labels of the dataset
    shots: int  # photos per class to learn from
    wrong: int  # of them, put into another class's folder
    more: int = 100  # at most so many further photos per class
    other: int = 100  # photos of the dataset's other classes


EXAMPLES = {
    "instruments": Example(("accordion", "electric guitar", "euphonium", "grand piano", "mandolin", "saxophone"), 8, 3),
    "flowers": Example(("buttercup", "common dandelion", "oxeye daisy", "rose", "sunflower"), 5, 2),
    "satellite": Example(
        ("Forest", "Highway or Road", "Industrial Buildings", "Pasture Land", "Residential Buildings", "River"), 16, 5
    ),
}


def write_example(name: str, dataset: Dataset, folder: Path) -> list[str]:
    """Copy the photos of an example into folders; returns the lines that say what was copied."""
    example = EXAMPLES[name]
    rng = np.random.default_rng(sorted(EXAMPLES).index(name))
    labels = [str(label) for label in dataset.labels]
    missing = [label for label in example.classes if label not in labels]
    if missing:
        raise SystemExit(f"{dataset.name} has no class {', '.join(missing)}")
    images: dict[str, list[Path]] = {}
    for item in existing_items((*dataset.train, *dataset.val, *dataset.test)):
        assert isinstance(item.image, Path)
        images.setdefault(labels[item.label], []).append(item.image)

    chosen = []  # class, file
    for label in example.classes:
        own = [images[label][i] for i in rng.permutation(len(images[label]))]
        chosen += [(label, path) for path in own[: example.shots]]
        for path in own[example.shots : example.shots + example.more]:
            copy_photo(folder / "more_photos" / label, path)
    planted = {*rng.choice(len(chosen), example.wrong, replace=False).tolist()}
    for number, (label, path) in enumerate(chosen):
        copy_photo(folder / "sorted" / label, path)
        if number in planted:
            to = str(rng.choice([other for other in example.classes if other != label]))
            copy_photo(folder / "photos" / to, path, f"wrong-{label}-")
        else:
            copy_photo(folder / "photos" / label, path)
    rest = [(label, path) for label, own in sorted(images.items()) if label not in example.classes for path in own]
    for i in rng.permutation(len(rest))[: example.other]:
        label, path = rest[i]
        copy_photo(folder / "other", path, f"{label}-")
    return [
        f"{folder / part}: {sum(path.is_file() for path in (folder / part).rglob('*'))} photos"
        for part in ("photos", "sorted", "more_photos", "other")
    ]


def copy_photo(folder: Path, path: Path, prefix: str = "") -> None:
    """Copy a file into a folder, with a prefix to its name that keeps files of different classes apart."""
    target = folder / f"{prefix}{path.name}".replace(" ", "_")
    if target.exists():
        raise SystemExit(f"{target}: two photos have this name")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def main() -> None:
    """Write the folders of one example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=sorted(EXAMPLES))
    parser.add_argument("data", help="the folder of the public dataset")
    parser.add_argument("--out", type=Path, required=True, help="where the folders go")
    chosen = parser.parse_args()
    if chosen.out.exists():
        raise SystemExit(f"{chosen.out}: already there")
    for line in write_example(chosen.example, load_dataset(chosen.data), chosen.out):
        click.echo(line)


if __name__ == "__main__":
    main()
