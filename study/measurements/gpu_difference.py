"""How far accuracies on a GPU are from those on the CPU: the same specs, fitted on both.

    python study/measurements/gpu_difference.py DATA [--backbone mini] [--shots 4] [--epochs 5] [--seeds 1 2 3] [--json]

DATA is a dataset with test images: a folder, or the name of a public one below DCA_DATA, such as eurosat. Each method
is fitted on the CPU, and on the GPU in float32 and in bfloat16, the default there. Printed are the accuracies and the
differences to the CPU in points: their mean over seeds, and the largest. Draws are the same on both, which is checked.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from dca.core.files import json_digest
from dca.datasets import load_dataset
from dca.runs.result import RunResult
from dca.study import Experiment, run_experiment
from dca.training.session import Session

METHODS = ("closed_form", "coop", "dca")
# Where and in which precision; the first is what the others are compared with.
PLACES = (("cpu", "fp32"), ("cuda", "fp32"), ("cuda", "bf16"))
Row = dict[str, Any]


def iterate_specs(given: argparse.Namespace, seed: int, precision: str) -> Iterator[Experiment]:
    """The experiments of one seed."""
    shared = {"data": given.data, "backbone": given.backbone, "shots": given.shots, "seed": seed}
    for method in METHODS:
        options = {} if method == "closed_form" else {"epochs": given.epochs}
        yield Experiment(method=method, precision=precision, options=options, **shared)


def measure(given: argparse.Namespace, places: Sequence[tuple[str, str]], folder: Path) -> list[Row]:
    """One row per method, seed and place."""
    dataset, rows = load_dataset(given.data), list[Row]()
    for device, precision in places:
        session = Session(device=device)
        for seed in given.seeds:
            for spec in iterate_specs(given, seed, precision):
                outcome = run_experiment(spec, folder / device / spec.id, dataset=dataset, session=session)
                assert outcome.classifier is not None
                drawn = json_digest([image.sha256 for image in outcome.classifier.training_images_])
                result = outcome.result
                place = f"{device} {precision}"
                rows.append(
                    {"method": spec.method, "seed": seed, "place": place, "draw": drawn, **keep_figures(result)}
                )
                click.echo(f"{place:<10} {spec.method:<12} seed {seed}  {100 * (result.accuracy or 0):.2f}", err=True)
    return rows


def keep_figures(result: RunResult) -> Row:
    """The figures of a result that are compared."""
    return {name: getattr(result, name) for name in ("accuracy", "zero_shot_accuracy", "test_images", "seconds")}


def compute_differences(rows: Sequence[Row]) -> list[Row]:
    """Differences to the CPU in points, one row per method and place."""
    first = " ".join(PLACES[0])
    known = {(row["method"], row["seed"]): row for row in rows if row["place"] == first}
    found: list[Row] = []
    for method in METHODS:
        for place in dict.fromkeys(row["place"] for row in rows if row["place"] != first):
            pairs = [
                (row, known[method, row["seed"]]) for row in rows if (row["method"], row["place"]) == (method, place)
            ]
            assert all(one["draw"] == other["draw"] for one, other in pairs), "other images were drawn"
            points = [100 * (one["accuracy"] - other["accuracy"]) for one, other in pairs]
            mean, largest = sum(points) / len(points), max(points, key=abs)
            found.append({"method": method, "place": place, "mean": mean, "largest": largest, "seeds": len(points)})
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a dataset with test images")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5, help="of the methods that train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    places = [place for place in PLACES if place[0] == "cpu" or torch.cuda.is_available()]
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(given, places, Path(folder))
    found = compute_differences(rows)
    if given.json:
        click.echo(json.dumps({"rows": rows, "differences": found}, indent=1))
        return
    if not found:
        click.echo("no GPU was found: there is nothing to compare the CPU with", err=True)
    for row in found:
        text = f"mean {row['mean']:+.2f} points, largest {row['largest']:+.2f}, {row['seeds']} seeds"
        click.echo(f"{row['method']:<12} {row['place']:<10} {text}")


if __name__ == "__main__":
    main()
