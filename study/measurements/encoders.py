"""The default over several encoders beside each of them alone, on test images of three datasets.

    python study/measurements/encoders.py DATA ... [--json study/encoders.json]
    python study/measurements/encoders.py --show study/encoders.json --page docs/encoders.md

DATA are dataset folders as `dca fit` takes them. All settings are the defaults. First the published draws 1 to 3 of 1
to 16 images per class, and accuracy and calibration error on the test images. Then random tasks of 6 classes with 8
images each, from all images of a dataset: how often the printed interval holds the mean accuracy over classes on the
other images, and the area under the ROC curve of the p-value between new images of these classes and images of others.

`--one-shot` measures on validation images instead, with one image per class: how much the encoder that knows texts
should count beside the other one, for which leave-one-out says nothing, and what the names of the other encoder's own
labels bring. The rule was chosen by these figures.

    python study/measurements/encoders.py DATA ... --one-shot [--json study/encoders_one_shot.json]
    python study/measurements/encoders.py --one-shot --show study/encoders_one_shot.json --page docs/encoders.md
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from closed_form import area_under_curve, draw_task, existing_items
from numpy.typing import NDArray
from paired import add_page_options, format_table, print_tables, read_rows, write_rows

from dca import Classifier, Session
from dca.datasets import load_dataset
from dca.datasets.catalog import title_of
from dca.datasets.dataset import Dataset, LabelledImage
from dca.methods.closed_form import ClosedForm
from dca.methods.shared.product_of_experts import (
    ExpertPool,
    ExpertsHead,
    select_hyperparameters,
    text_gain,
    weigh_by_zero_shot,
)
from dca.stats.calibration import calibration_error

SCRIPT = "study/measurements/encoders.py"
POOL = "mini,efficientnet-lite0"
BACKBONES = ("mini", "efficientnet-lite0", POOL)
TITLES = {"mini": "mini", "efficientnet-lite0": "Lite0", POOL: "both"}
SHOTS, SEEDS, TASKS = (1, 2, 4, 8, 16), (1, 2, 3), 60
# Most images of unknown classes in a task.
MOST_UNKNOWN = 500


def predict(model: Classifier, items: Sequence[LabelledImage], session: Session) -> tuple[NDArray[Any], NDArray[Any]]:
    """Probabilities (N, C) and p-values (N,) of images, from stored features; the second may be empty."""
    method = model.method_
    frozen = session.frozen_features(method.encoder, [item.image for item in items])
    features = method.adapt_features(frozen.to(method.encoder.device))
    p_values = method.p_values(features)
    return method.classify(features).cpu().numpy(), np.zeros(0) if p_values is None else p_values.cpu().numpy()


def mean_by_class(right: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    """Accuracy as the mean over the classes that occur."""
    return statistics.mean(float(right[labels == c].mean()) for c in np.unique(labels))


def measure_draw(dataset: Dataset, backbone: str, shots: int, seed: int, session: Session) -> dict[str, Any]:
    """Accuracy on the test images of a model of one draw, in percent, and what it said of itself."""
    model = Classifier("closed_form", shots=shots, seed=seed, backbone=backbone).fit(dataset, session=session)
    probabilities, _ = predict(model, dataset.test, session)
    labels = np.array([item.label for item in dataset.test])
    right = probabilities.argmax(axis=1) == labels
    found = model.estimate_
    return {
        "dataset": dataset.name,
        "backbone": backbone,
        "shots": shots,
        "seed": seed,
        "images": len(labels),
        "accuracy": round(100 * float(right.mean()), 4),
        "mean_by_class": round(100 * mean_by_class(right, labels), 4),
        "ece": round(100 * calibration_error(probabilities.max(axis=1), right), 4),
        "estimate": None if found is None else [round(100 * v, 4) for v in (found.accuracy, found.low, found.high)],
    }


def measure_task(datasets: Sequence[Dataset], backbone: str, number: int, session: Session) -> dict[str, Any]:
    """What a model of a random task says of itself, beside the truth."""
    dataset, task = datasets[number % len(datasets)], draw_task(datasets, number)
    model = Classifier("closed_form", backbone=backbone).fit(task, session=session)
    probabilities, known = predict(model, task.test, session)
    labels = np.array([item.label for item in task.test])
    others = [item for item in existing_items(dataset.test) if dataset.labels[item.label] not in task.labels]
    others = others[:: -(-len(others) // MOST_UNKNOWN)]
    _, unknown = predict(model, others, session)
    found = model.estimate_
    assert found is not None
    new = np.concatenate([np.zeros(len(known), dtype=bool), np.ones(len(unknown), dtype=bool)])
    return {
        "dataset": dataset.name,
        "backbone": backbone,
        "task": number,
        "images": len(labels),
        "unknown": len(unknown),
        "mean_by_class": round(100 * mean_by_class(probabilities.argmax(axis=1) == labels, labels), 4),
        "estimate": [round(100 * v, 4) for v in (found.accuracy, found.low, found.high)],
        "auroc": round(area_under_curve(new, 1 - np.concatenate([known, unknown])), 4),
    }


def measure(datasets: Sequence[Dataset], session: Session, json: Path | None) -> list[dict[str, Any]]:
    """All rows; those that `json` has already are not measured again."""
    rows = read_rows(json) if json is not None and json.is_file() else []
    draws = {(row["dataset"], row["backbone"], row["shots"], row["seed"]) for row in rows if "shots" in row}
    tasks = {(row["backbone"], row["task"]) for row in rows if "task" in row}
    for dataset in datasets:
        for shots in SHOTS:
            for seed in SEEDS:
                for backbone in BACKBONES:
                    if (dataset.name, backbone, shots, seed) in draws:
                        continue
                    rows.append(measure_draw(dataset, backbone, shots, seed, session))
                    write_rows(json, rows)
                    click.echo(rows[-1], err=True)
    for number in range(TASKS):
        for backbone in BACKBONES:
            if (backbone, number) not in tasks:
                rows.append(measure_task(datasets, backbone, number, session))
                write_rows(json, rows)
                click.echo(rows[-1], err=True)
    return rows


# Fixed weights of the first encoder, the second has 1; draws.
WEIGHTS, ONE_SHOT_SEEDS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), (1, 2, 3, 4, 5)


def measure_one_shot(dataset: Dataset, seed: int, session: Session) -> list[dict[str, Any]]:
    """Accuracy on validation images with one training image per class, by the weight of the encoder with texts."""
    dataset = replace(dataset, train=existing_items(dataset.train))
    model = Classifier("closed_form", shots=1, seed=seed, backbone=POOL).fit(dataset, session=session)
    method, seen = model.method_, {image.sha256 for image in model.training_images_}
    assert isinstance(method, ClosedForm)
    items = [item for item in existing_items(dataset.val) if session.hash_image(item.image) not in seen]
    features = method.adapt_features(session.frozen_features(method.encoder, [item.image for item in items])).double()
    labels = np.array([item.label for item in items])
    plain = ExpertPool(tuple(replace(part, reader=None) for part in method.experts.parts))
    rows = list[dict[str, Any]]()
    for names, pool in ((True, method.experts), (False, plain)):
        parts = zip(pool.parts, pool.split(features), strict=True)
        first, second = (
            ExpertsHead.from_experts(part, select_hyperparameters(part), torch.float64).logits(x) for part, x in parts
        )
        ratio = math.prod(w**power for w, power in zip(weigh_by_zero_shot(pool.parts), (1, -1), strict=True))
        gain, _ = text_gain(pool.parts[0].zero_shot, pool.labels)
        rules = {**{f"{w:g}": w for w in WEIGHTS}, "alone": math.inf, "rule": ratio}
        for rule, weight in rules.items():
            logits = first if weight == math.inf else weight * first + second
            accuracy = 100 * float((logits.argmax(dim=-1).numpy() == labels).mean())
            facts = {"dataset": dataset.name, "seed": seed, "names": names, "gain": gain, "images": len(labels)}
            rows.append({**facts, "rule": rule, "accuracy": round(accuracy, 4)})
    return rows


def make_one_shot_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy by weight, one line per dataset, with and without names through labels."""
    rules = [*dict.fromkeys(row["rule"] for row in rows)]
    head = ["dataset", "n", "names through labels", "gain", *(ONE_SHOT_TITLES.get(rule, rule) for rule in rules)]
    lines = []
    for name in dict.fromkeys(row["dataset"] for row in rows):
        for names in (True, False):
            own = [row for row in rows if row["dataset"] == name and row["names"] == names]
            facts = [title_of(name), str(own[0]["images"]), "yes" if names else "no", f"{mean_of(own, 'gain'):.2f}"]
            lines.append([*facts, *(f"{mean_of(own, 'accuracy', rule=rule):.1f}" for rule in rules)])
    return format_table(head, lines)


ONE_SHOT_TITLES = {"0": "Lite0 alone", "alone": "mini alone", "rule": "the rule"}


def mean_of(rows: Sequence[Mapping[str, Any]], key: str, **facts: Any) -> float:
    """Mean of a figure over the rows with these facts."""
    own = [float(row[key]) for row in rows if all(row.get(name) == value for name, value in facts.items())]
    return statistics.mean(own)


def make_tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy by dataset and shots, calibration error by shots, and the tasks."""
    draws, tasks = [row for row in rows if "shots" in row], [row for row in rows if "task" in row]
    names = list(dict.fromkeys(row["dataset"] for row in draws))
    sizes = {name: next(row["images"] for row in draws if row["dataset"] == name) for name in names}

    def cell(key: str, shots: int, **facts: Any) -> str:
        values = [mean_of(draws, key, backbone=backbone, shots=shots, **facts) for backbone in BACKBONES]
        return " / ".join(f"{value:.1f}" for value in values)

    head = ["images per class", *(f"{title_of(name)}, n = {sizes[name]:,}" for name in names), "mean", "ECE, mean"]
    accuracy = []
    for shots in SHOTS:
        by_set = [cell("accuracy", shots, dataset=name) for name in names]
        accuracy.append([str(shots), *by_set, cell("accuracy", shots), cell("ece", shots)])
    parts = [format_table(head, accuracy)]
    if tasks:
        parts.append(format_table(TASK_HEAD, [_task_row(tasks, backbone) for backbone in BACKBONES]))
    return "\n\n".join(parts)


TASK_HEAD = ["encoder", "accuracy", "estimate minus accuracy", "interval holds it", "AUROC of the p-value"]


def _task_row(tasks: Sequence[Mapping[str, Any]], backbone: str) -> list[str]:
    own = [row for row in tasks if row["backbone"] == backbone]
    held = sum(row["estimate"][1] <= row["mean_by_class"] <= row["estimate"][2] for row in own)
    gap = statistics.mean(row["estimate"][0] - row["mean_by_class"] for row in own)
    truth, area = (statistics.mean(row[key] for row in own) for key in ("mean_by_class", "auroc"))
    return [TITLES[backbone], f"{truth:.1f}", f"{gap:+.1f}", f"{held} of {len(own)}", f"{area:.1f}"]


def main() -> None:
    """Measure, or print the tables of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--json", type=Path, help="write the figures here, and go on where they end")
    add_page_options(parser)
    parser.add_argument("--one-shot", action="store_true", help="one image per class, on validation images")
    chosen = parser.parse_args()
    datasets, session = [load_dataset(place) for place in chosen.data], Session()
    if chosen.one_shot:
        rows = read_rows(chosen.show) if chosen.show else []
        for dataset, seed in product([] if chosen.show else datasets, ONE_SHOT_SEEDS):
            rows += measure_one_shot(dataset, seed, session)
            write_rows(chosen.json, rows)
        print_tables(make_one_shot_table(rows), f"{SCRIPT} --one-shot", chosen.page)
        return
    rows = read_rows(chosen.show) if chosen.show else measure(datasets, session, chosen.json)
    print_tables(make_tables(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
