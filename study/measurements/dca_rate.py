"""DCA's learning rate: the one that follows from the gradient, and parts and multiples of it, on validation images.

    python study/measurements/dca_rate.py EUROSAT CALTECH FLOWERS [--classes 10] [--json study/dca_rate.json]
    python study/measurements/dca_rate.py --show study/dca_rate.json --page docs/math.md

Every dataset is reduced to --classes classes, evenly from all, so that a CPU can train. All other options are the
defaults, the number of epochs included. A row is one model: its accuracy on the validation images of its classes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import torch
from dca_centre import keep_classes
from paired import add_page_options, format_table, print_tables, read_rows, write_rows

from dca import Classifier, Session
from dca.core.progress import silent
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset
from dca.training.loop import Trainer

SCRIPT = "study/measurements/dca_rate.py"
FACTORS, SHOTS, SEEDS = (1.0, 0.5, 2.0), (1, 4), (1, 2)
KEY = ("dataset", "shots", "seed", "factor")


def measure(dataset: Dataset, shots: int, seed: int, factor: float, session: Session) -> dict[str, Any]:
    """Fit one model; one row."""
    found = Trainer.probe_learning_rate

    def multiply(trainer: Any, on_probe: Any = None) -> float:
        return factor * found(trainer, on_probe)

    with patch.object(Trainer, "probe_learning_rate", multiply):
        model = Classifier("dca", shots=shots, seed=seed, backbone="mini").fit(
            dataset, session=session, progress=silent
        )
    labels = torch.tensor([item.label for item in dataset.val])
    right = torch.from_numpy(model.predict_proba([item.image for item in dataset.val]).argmax(axis=1)) == labels
    about = dict(zip(KEY, (dataset.name, shots, seed, factor), strict=True))
    accuracy = round(100 * float(right.double().mean()), 3)
    return about | {"classes": len(dataset.names), "n": len(labels), "accuracy": accuracy}


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per dataset and number of shots, and their means: the rule, and what factors add to it, paired."""
    at = {tuple(row[name] for name in KEY): row for row in rows}
    cells = {key[:3] for key in at if all((*key[:3], factor) in at for factor in FACTORS)}
    groups = {(data, shots): [c for c in cells if c[:2] == (data, shots)] for data, shots, _ in sorted(cells)}
    for shots in sorted({shots for _, shots, _ in cells}):
        groups["all", shots] = [c for c in cells if c[1] == shots]
    lines = []
    for (data, shots), own in groups.items():
        n = "" if data == "all" else str(at[*own[0], 1.0]["n"])
        base = statistics.mean(at[*cell, 1.0]["accuracy"] for cell in own)
        line = [data, str(shots), str(len(own)), n, f"{base:.1f}"]
        for factor in FACTORS[1:]:
            gains = [at[*cell, factor]["accuracy"] - at[*cell, 1.0]["accuracy"] for cell in own]
            error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
            line.append(f"{statistics.mean(gains):+.1f} ± {error:.1f}")
        lines.append(line)
    return format_table(["dataset", "shots", "models", "n", "the rule", *(f"times {f:g}" for f in FACTORS[1:])], lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, as `dca fit` takes them")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the rows here as they come, and keep those it has")
    add_page_options(parser)
    chosen = parser.parse_args()
    rows = read_rows(chosen.show or chosen.json) if chosen.show or (chosen.json and chosen.json.is_file()) else []
    session = Session(device="cpu")
    there = {tuple(row[name] for name in KEY) for row in rows}
    datasets = [keep_classes(load_dataset(folder), chosen.classes) for folder in chosen.data]
    for seed, shots, dataset, factor in product(SEEDS, SHOTS, datasets, FACTORS):
        if (dataset.name, shots, seed, factor) not in there:
            rows.append(measure(dataset, shots, seed, factor, session))
            write_rows(chosen.json, rows)
            click.echo(rows[-1], err=True)
    print_tables(make_table(rows), SCRIPT, chosen.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
