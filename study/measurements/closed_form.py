"""What the closed form promises, measured on test images: intervals, calibration, "none of these", wrong labels.

    python study/measurements/closed_form.py intervals DATA ... [--tasks 60]
    python study/measurements/closed_form.py calibration DATA ... [--method gda ...] [--shots 4 ...]
    python study/measurements/closed_form.py unknown DATA ...
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
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from paired import format_table, print_tables, read_rows, write_rows

from dca import Classifier, Session
from dca.core import seeds
from dca.datasets import load_dataset
from dca.datasets.catalog import title_of
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_training_part
from dca.methods.registry import get_method
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


def measure_intervals(datasets: Sequence[Dataset], session: Session, tasks: int) -> None:
    """How often the printed 95 % interval holds the accuracy on the other images of the classes."""
    covered, macro_covered, widths, errors = 0, 0, [], []
    for number in range(tasks):
        task = draw_task(datasets, number)
        model = Classifier("closed_form").fit(task, session=session)
        found, report = model.estimate_, model.evaluate(task)
        assert found is not None
        macro = statistics.mean(report.per_class.values())
        covered += found.low <= report.accuracy <= found.high
        macro_covered += found.low <= macro <= found.high
        widths.append(found.high - found.low)
        errors.append(found.accuracy - macro)
    click.echo(f"{tasks} tasks of 6 classes x 8 images: covered {covered} (mean over classes: {macro_covered}), "
          f"median width {100 * statistics.median(widths):.1f} points, "
          f"mean of estimate minus accuracy {100 * statistics.mean(errors):+.1f}")  # fmt: skip


def measure_calibration(
    datasets: Sequence[Dataset],
    session: Session,
    methods: Sequence[str],
    shots: Sequence[int],
    seed_numbers: Sequence[int],
) -> None:
    """ECE on the test images, with and without the temperature."""
    click.echo("| method | shots | " + " | ".join(f"{d.name}: ECE before, after" for d in datasets) + " | mean |")
    for method in methods:
        for K in shots:
            rows = []
            for dataset in datasets:
                before: list[float] = []
                after: list[float] = []
                for seed in seed_numbers:
                    own = get_method(method).calibrated
                    for calibrate, into in ((False, before), (True, after)):
                        if own and not calibrate:
                            continue
                        model = Classifier(method, shots=K, seed=seed, estimate=True, calibrate=calibrate)
                        into.append(100 * model.fit(dataset, session=session).evaluate(dataset).ece)
                rows.append((statistics.mean(before or after), statistics.mean(after)))
            means = [statistics.mean(column) for column in zip(*rows, strict=True)]
            cells = " | ".join(f"{a:.1f}, {b:.1f}" for a, b in [*rows, tuple(means)])
            click.echo(f"| {method} | {K} | {cells} |")


def area_under_curve(unknown: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """AUROC in percent of scores that should be larger for unknown images; equal scores count half."""
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive, negative = int(unknown.sum()), int((~unknown).sum())
    return float(100 * (rank[unknown].sum() - positive * (positive + 1) / 2) / (positive * negative))


def measure_unknown(datasets: Sequence[Dataset], session: Session, shots: Sequence[int]) -> None:
    """AUROC of known against unknown test images, with half of the classes unknown."""
    for dataset in datasets:
        for K in shots:
            found: dict[str, list[float]] = {}
            for seed in SEEDS:
                order = torch.randperm(len(dataset.names), generator=seeds.generator(seed, "known classes")).tolist()
                known = sorted(order[: len(order) // 2])
                task = select_classes(dataset, known, existing_items(dataset.train), dataset.test)
                source, _ = draw_training_part(task, K, seed, rules="strict", validation="none")
                model = Classifier("closed_form", seed=seed).fit(source, session=session)
                test = [item.image for item in dataset.test]
                new = np.array([item.label not in known for item in dataset.test])
                method, zero = model.method_, model.zero_shot()
                # Stored features: `model.answers` would encode all test images again for every model.
                features = method.adapt_features(session.frozen_features(method.clip, test).to(method.clip.device))
                p_values, probabilities = method.p_values(features), method.classify(features).double()
                cosines = features @ zero.head.weight.T / zero.clip.tau  # type: ignore[attr-defined]
                assert p_values is not None
                scores = {
                    "p-value": 1 - p_values.numpy(),
                    "max softmax": 1 - probabilities.amax(dim=-1).cpu().numpy(),
                    "MCM": 1 - cosines.softmax(dim=-1).amax(dim=-1).double().cpu().numpy(),
                }
                for name, score in scores.items():
                    found.setdefault(name, []).append(area_under_curve(new, score))
            areas = {name: round(statistics.mean(values), 1) for name, values in found.items()}
            click.echo(f"{dataset.name}, {K} shots: AUROC {areas}")


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
    parser.add_argument("study", choices=["intervals", "calibration", "unknown", "labels", "example"])
    parser.add_argument("data", nargs="*")
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--method", action="append")
    parser.add_argument("--shots", action="append", type=int)
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="of example: where the images go")
    parser.add_argument("--json", type=Path, help="of labels: write the figures here")
    parser.add_argument("--show", type=Path, help="of labels: only print the table of such a file")
    parser.add_argument("--page", type=Path, help="of labels: also put the table between its marks on a page")
    chosen = parser.parse_args()
    datasets, session = [load_dataset(place) for place in chosen.data], Session(device=chosen.device)
    if chosen.study == "intervals":
        measure_intervals(datasets, session, chosen.tasks)
    elif chosen.study == "calibration":
        measure_calibration(
            datasets, session, chosen.method or ["closed_form"], chosen.shots or [4, 8, 16], chosen.seed or SEEDS
        )
    elif chosen.study == "unknown":
        measure_unknown(datasets, session, chosen.shots or [4, 16])
    elif chosen.study == "example":
        copy_example(datasets[0], chosen.out)
    else:
        rows = read_rows(chosen.show) if chosen.show else measure_labels(datasets, session)
        write_rows(chosen.json, rows)
        print_tables(make_label_table(rows), LABELS, chosen.page)


if __name__ == "__main__":
    main()
