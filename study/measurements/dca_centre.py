"""Centre and γ of DCA's head on validation images; one model per row, trained or not.

    python study/measurements/dca_centre.py EUROSAT --shots 4 --seed 1 --epochs 0 --json study/dca_centre.json
    python study/measurements/dca_centre.py --show study/dca_centre.json --page docs/math.md

With --epochs 0 nothing is trained: texts are the initial prompts, and image features have the initial visual tokens.
--classes takes so many classes, evenly from all; --prompts is M. --json adds rows to those of the file. Each head is
made of the features of one model:

    cosine               the cosine to the texts
    text, γ 100, 50      d_m, covariances about the texts, as in the models of study/
    text, γ by shots     the same with the γ of the paper
    images, γ by shots   covariances about the image means
    chosen               the default: one of the last two, for which training images that were left out speak

"Left out" is how many percent of the training images these two recognise while they are left out, with the features of
the finished model, which was trained on these images: the choice is made before training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from paired import add_page_options, format_table, print_tables, read_rows, write_rows
from torch import Tensor

from dca import Classifier, LabelledImage, Session
from dca.core.progress import silent
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset
from dca.methods.dca import DCA
from dca.methods.shared.center import recognise_left_out
from dca.training.evaluate import encode_images

SCRIPT = "study/measurements/dca_centre.py"
TABLE = {"gamma1": None, "gamma2": None}
# Name -> options of the head.
HEADS: dict[str, dict[str, Any]] = {
    "cosine": {"test_metric": "cosine"},
    "text, γ 100, 50": {"center": "text", "gamma1": 100.0, "gamma2": 50.0},
    "text, γ by shots": {"center": "text", **TABLE},
    "images, γ by shots": {"center": "visual", **TABLE},
    "chosen": {"center": "chosen", **TABLE},
}
ABOUT = ("dataset", "classes", "M", "epochs", "shots", "seed", "n")
BATCH = 128


def keep_classes(dataset: Dataset, count: int) -> Dataset:
    """The dataset with `count` of its classes, evenly from all; 0 for all."""
    total = len(dataset.names)
    kept = [total * place // count for place in range(count)] if count else list(range(total))
    places = {label: place for place, label in enumerate(kept)}

    def select(items: Sequence[LabelledImage]) -> tuple[LabelledImage, ...]:
        return tuple(LabelledImage(item.image, places[item.label]) for item in items if item.label in places)

    return replace(
        dataset,
        labels=tuple(dataset.labels[label] for label in kept),
        names=tuple(dataset.names[label] for label in kept),
        keys=tuple(dataset.keys[label] for label in kept) if dataset.keys else (),
        train=select(dataset.train),
        val=select([item for item in dataset.val if not isinstance(item.image, Path) or item.image.is_file()]),
        test=(),
        public=dataset.public if len(kept) == total else "",
    )


@torch.no_grad()
def measure_heads(method: DCA, features: Tensor, labels: Tensor) -> dict[str, float]:
    """Percent of images (N, D) with these labels (N,) that each head recognises."""
    found = {}
    for name, options in HEADS.items():
        head = method.with_options(options).head
        predicted = torch.cat([head(rows).argmax(dim=1) for rows in torch.split(features, BATCH)])
        found[name] = 100 * float((predicted == labels).double().mean())
    return found


def measure_left_out(method: DCA) -> list[float]:
    """Percent of training images recognised while they are left out, about the texts and about the image means."""
    labels = method.class_features.labels()
    right = recognise_left_out(
        method.text_features,
        method.train_features,
        labels,
        torch.arange(len(labels), device=labels.device),
        shots=method.problem.shots,
        tau=method.clip.tau,
    )
    return (100 * right.double().mean(dim=1)).tolist()


def measure_model(dataset: Dataset, shots: int, seed: int, session: Session, chosen: Any) -> dict[str, Any]:
    """Fit one model; one row."""
    options = {} if chosen.epochs is None else {"epochs": chosen.epochs}
    model = Classifier("dca", shots=shots, seed=seed, backbone=chosen.backbone, n_prompts=chosen.prompts, **options)
    method = model.fit(dataset, session=session, progress=silent).method_
    assert isinstance(method, DCA)
    (features,) = encode_images([method], [item.image for item in dataset.val], session)
    labels = torch.tensor([item.label for item in dataset.val], device=features.device)
    values = (dataset.name, len(dataset.names), chosen.prompts, method.options.epochs, shots, seed, len(labels))
    return {
        **dict(zip(ABOUT, values, strict=True)),
        "accuracy": measure_heads(method, features, labels),
        "chosen": method.center,
        "left_out": measure_left_out(method),
    }


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per model, in the order of the datasets, epochs and shots."""
    lines = []
    for row in sorted(rows, key=lambda row: [row[name] for name in ("dataset", "epochs", "shots", "M", "seed")]):
        accuracies = [f"{row['accuracy'][name]:.1f}" for name in HEADS]
        accuracies[-1] += " (images)" if row["chosen"] == "visual" else " (text)"
        lines.append(
            [*(str(row[name]) for name in ABOUT), *accuracies, " / ".join(f"{x:.0f}" for x in row["left_out"])]
        )
    about = "Percent of the n validation images, and of training images that were left out (about texts / images):"
    return "\n\n".join([about, format_table([*ABOUT, *HEADS, "left out"], lines)])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, as `dca fit` takes them")
    parser.add_argument("--shots", action="append", type=int, help="repeatable; 4 unless given")
    parser.add_argument("--seed", action="append", type=int, help="repeatable; 1 unless given")
    parser.add_argument("--epochs", type=int, help="those of `dca fit` unless given")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--classes", type=int, default=0)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="add the rows to this file")
    add_page_options(parser)
    chosen = parser.parse_args()
    rows = read_rows(chosen.json) if chosen.json and chosen.json.is_file() else []
    session = Session(device=chosen.device)
    for folder in chosen.data:
        dataset = keep_classes(load_dataset(folder), chosen.classes)
        for shots in chosen.shots or (4,):
            for seed in chosen.seed or (1,):
                rows.append(measure_model(dataset, shots, seed, session, chosen))
                click.echo(f"{dataset.name}, {shots} shots, seed {seed}: done", err=True)
                write_rows(chosen.json, rows)
    print_tables(make_table(read_rows(chosen.show) if chosen.show else rows), SCRIPT, chosen.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
