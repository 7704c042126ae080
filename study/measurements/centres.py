"""Heads of one trained DCA model: which centre of the covariances, and what image means alone would do.

    python study/measurements/centres.py EUROSAT CALTECH FLOWERS [--shots 16] [--seed 1] [--device cuda] [--json FILE]
    python study/measurements/centres.py --show FILE --page docs/math.md

DCA is trained once per dataset, number of shots and seed. Its head is then made again, without training, on the same
features of the test images:

    text alone        d_e to the text features: no covariance, no image mean
    centre visual     d_m, covariances about the mean of a class's images: no image mean in the head
    centre text       d_m, covariances about the text features (the default): the image mean enters through them
    image means       d_e to the normalised image mean of each class: no text
    text + means      d_e to the normalised sum of text feature and image mean: no covariance

All have the same τ / (d + ε) and the same mean over the prompts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from paired import (
    Right,
    format_interval,
    format_table,
    load_datasets,
    make_parser,
    mean_accuracy,
    mean_difference,
    print_tables,
    read_rows,
    write_rows,
)
from torch import Tensor

from dca import Classifier, Session
from dca.core.progress import silent
from dca.datasets.dataset import Dataset
from dca.methods.base import Head
from dca.methods.dca import DCA
from dca.training.evaluate import encode_images

SCRIPT = "study/measurements/centres.py"
BASE = "text alone"
# Name -> options of the head.
HEADS: dict[str, dict[str, Any]] = {
    BASE: {"test_metric": "euclidean"},
    "centre visual": {"test_metric": "mahalanobis", "center": "visual"},
    "centre text": {"test_metric": "mahalanobis", "center": "text"},
    "image means": {"test_metric": "euclidean", "anchors": "means"},
    "text + means": {"test_metric": "euclidean", "anchors": "both"},
}
BATCH = 128


def build_heads(method: DCA) -> dict[str, Head]:
    """The heads to compare, by name."""
    return {name: method.with_options(options).head for name, options in HEADS.items()}


@torch.no_grad()
def predict_classes(head: Head, features: Tensor) -> NDArray[np.int64]:
    """The class of each image, (N,), from features (N, D)."""
    parts = torch.split(features, min(BATCH, head.max_batch_size))
    return torch.cat([head(rows).argmax(dim=1).cpu() for rows in parts]).numpy()


def measure_heads(
    dataset: Dataset, shots: int, seed: int, session: Session, chosen: Any
) -> dict[str, NDArray[np.bool_]]:
    """Train one model; whether each test image is classified correctly under each head, (N,)."""
    options = {} if chosen.epochs is None else {"epochs": chosen.epochs}
    model = Classifier("dca", shots=shots, seed=seed, backbone=chosen.backbone, **options)
    method = model.fit(dataset, session=session, progress=silent).method_
    assert isinstance(method, DCA)
    (features,) = encode_images([method], [item.image for item in dataset.test], session)
    truth = np.array([item.label for item in dataset.test])
    with torch.no_grad():
        return {name: predict_classes(head, features) == truth for name, head in build_heads(method).items()}


def make_row(dataset: Dataset, shots: int, found: Mapping[str, Right], seeds: Sequence[int]) -> dict[str, Any]:
    """One row: accuracies and differences to text alone, with intervals; found: (seeds, N) by head."""
    row: dict[str, Any] = {"dataset": dataset.name, "shots": shots, "seeds": list(seeds), "n": len(dataset.test)}
    row["accuracy"] = {name: mean_accuracy(right) for name, right in found.items()}
    row["difference"] = {name: mean_difference(found[BASE], right) for name, right in found.items() if name != BASE}
    return row


def make_tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracies, and differences to text alone, as Markdown."""
    first = ["dataset", "shots", "seeds", "n"]
    left = [[row["dataset"], str(row["shots"]), str(row["seeds"])[1:-1], f"{row['n']:,}"] for row in rows]
    values = [[format_interval(row["accuracy"][name]) for name in HEADS] for row in rows]
    changes = [[format_interval(row["difference"][name], "+") for name in list(HEADS)[1:]] for row in rows]
    both = [[*start, *cells] for start, cells in zip(left, values, strict=True)]
    moved = [[*start, *cells] for start, cells in zip(left, changes, strict=True)]
    about = "Accuracy in percent with the 95 % interval over the n test images, mean over the seeds:"
    points = f"Points against {BASE}, image by image:"
    return "\n\n".join(
        [about, format_table([*first, *HEADS], both), points, format_table([*first, *list(HEADS)[1:]], moved)]
    )


def main() -> int:
    """Measure and print."""
    chosen = make_parser(__doc__).parse_args()
    if chosen.show:
        print_tables(make_tables(read_rows(chosen.show)), SCRIPT, chosen.page)
        return 0
    session, rows = Session(device=chosen.device), list[dict[str, Any]]()
    for dataset in load_datasets(chosen.data, chosen.test_images):
        for shots in chosen.shots or (4, 16):
            seeds = chosen.seed or (1, 2, 3)
            each = [measure_heads(dataset, shots, seed, session, chosen) for seed in seeds]
            found = {name: np.stack([one[name] for one in each]) for name in HEADS}
            rows.append(make_row(dataset, shots, found, seeds))
            click.echo(f"{dataset.name}, {shots} shots: done", err=True)
            write_rows(chosen.json, rows)
    print_tables(make_tables(rows), SCRIPT, chosen.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
