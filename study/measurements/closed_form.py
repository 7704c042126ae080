"""Whether the closed form finds wrong labels, and the example of the README.

    python study/measurements/closed_form.py labels DATA ... [--json study/closed_form_labels.json]
    python study/measurements/closed_form.py labels --show study/closed_form_labels.json --page docs/closed-form.md
    python study/measurements/closed_form.py example CALTECH --out FOLDER

DATA are dataset folders as `dca fit` takes them. Nothing is chosen here: all settings are the defaults. `example`
copies the images of a task into FOLDER/photos and FOLDER/more_photos, for the screen in the README.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from paired import format_table, print_tables, read_rows, write_rows

from dca import Classifier, Session
from dca.datasets import load_dataset
from dca.datasets.catalog import title_of
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_training_part
from dca.model.findings import doubtful_labels

SEEDS = (1, 2, 3)
# The mark of the table of flipped labels on its page.
LABELS = "study/measurements/closed_form.py labels"


def existing_items(items: Sequence[LabelledImage]) -> tuple[LabelledImage, ...]:
    """The images that exist on this machine."""
    return tuple(item for item in items if not isinstance(item.image, Path) or item.image.is_file())


def select_classes(
    dataset: Dataset, classes: Sequence[int], train: Sequence[LabelledImage], test: Sequence[LabelledImage]
) -> Dataset:
    """A dataset of these classes, renumbered."""
    place = {c: n for n, c in enumerate(classes)}
    parts = [tuple(LabelledImage(i.image, place[i.label]) for i in part if i.label in place) for part in (train, test)]
    labels, names = tuple(dataset.labels[c] for c in classes), tuple(dataset.names[c] for c in classes)
    return dataclasses.replace(dataset, labels=labels, names=names, train=parts[0], val=(), test=parts[1])


def draw_task(datasets: Sequence[Dataset], number: int, classes: int = 6, shots: int = 8) -> Dataset:
    """A few classes of a dataset: `shots` images of each for training, all others for testing."""
    rng = np.random.default_rng(number)
    dataset = datasets[number % len(datasets)]
    images: dict[int, list[LabelledImage]] = {}
    for item in existing_items((*dataset.train, *dataset.val, *dataset.test)):
        images.setdefault(item.label, []).append(item)
    able = [c for c, own in images.items() if len(own) >= 2 * shots]
    chosen = sorted(rng.choice(able, classes, replace=False).tolist())
    shuffled = {c: [images[c][i] for i in rng.permutation(len(images[c]))] for c in chosen}
    train = [item for own in shuffled.values() for item in own[:shots]]
    return select_classes(dataset, chosen, train, [item for own in shuffled.values() for item in own[shots:]])


def area_under_curve(unknown: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """AUROC in percent of scores that should be larger for unknown images; equal scores count half."""
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive, negative = int(unknown.sum()), int((~unknown).sum())
    return float(100 * (rank[unknown].sum() - positive * (positive + 1) / 2) / (positive * negative))


def measure_labels(datasets: Sequence[Dataset], session: Session) -> list[dict[str, Any]]:
    """Share of flipped labels among the twice as many most suspicious images, 5 % flipped, 16 shots; row by dataset."""
    rows: list[dict[str, Any]] = []
    for dataset in datasets:
        shares = []
        for seed in SEEDS:
            source, _ = draw_training_part(dataset, 16, seed, rules="strict", validation="none")
            rng = np.random.default_rng(seed)
            flipped = rng.choice(len(source.train), round(0.05 * len(source.train)), replace=False)
            items = list(source.train)
            for i in flipped:
                other = int(rng.integers(len(source.names) - 1))
                items[i] = LabelledImage(items[i].image, other + (other >= items[i].label))
            wrong = dataclasses.replace(source, train=tuple(items), val=())
            model = Classifier("closed_form", seed=seed).fit(wrong, session=session)
            order = sorted((image.held_out.own, i) for i, image in enumerate(model.training_images_) if image.held_out)
            shares.append(len({i for _, i in order[: 2 * len(flipped)]} & {*flipped.tolist()}) / len(flipped))
            listed = len(doubtful_labels(model.training_images_, model.classes_.tolist()))
        click.echo(f"{dataset.name}: the last fit lists {listed} labels", err=True)
        images = len(source.train)
        rows.append({"dataset": dataset.name, "images": images, "flipped": len(flipped), "found": shares})
    return rows


def make_label_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Flipped labels that were found, in percent, one column per draw."""
    return format_table(
        ["dataset", "images", "flipped", *(f"draw {seed}" for seed in SEEDS)],
        [
            [title_of(row["dataset"]), f"{row['images']:,}", str(row["flipped"])]
            + [f"{100 * share:.0f}" for share in row["found"]]
            for row in rows
        ],
    )


def copy_example(dataset: Dataset, folder: Path) -> None:
    """Copy the images of a task into photos/CLASS/ and more_photos/CLASS/, numbered as they were drawn."""
    task = draw_task([dataset], 0)
    for name, items in (("photos", task.train), ("more_photos", task.test)):
        for number, item in enumerate(items):
            place = folder / name / str(task.labels[item.label])
            place.mkdir(parents=True, exist_ok=True)
            assert isinstance(item.image, Path)
            shutil.copyfile(item.image, place / f"{number:03}{item.image.suffix}")
        click.echo(f"{folder / name}: {len(items)} images of {', '.join(map(str, task.labels))}")


def main() -> None:
    """Run one of the studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["labels", "example"])
    parser.add_argument("data", nargs="*")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="of example: where the images go")
    parser.add_argument("--json", type=Path, help="of labels: write the figures here")
    parser.add_argument("--show", type=Path, help="of labels: only print the table of such a file")
    parser.add_argument("--page", type=Path, help="of labels: also put the table between its marks on a page")
    chosen = parser.parse_args()
    datasets, session = [load_dataset(place) for place in chosen.data], Session(device=chosen.device)
    if chosen.study == "example":
        copy_example(datasets[0], chosen.out)
    else:
        rows = read_rows(chosen.show) if chosen.show else measure_labels(datasets, session)
        write_rows(chosen.json, rows)
        print_tables(make_label_table(rows), LABELS, chosen.page)


if __name__ == "__main__":
    main()
