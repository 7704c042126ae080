"""What each as-published option changes: paired differences on the same draws and test images.

    python study/measurements/published_options.py DATA ... [--shots 4] [--seed 1] [--device cuda] [--json FILE] [--all]
    python study/measurements/published_options.py --show FILE --page docs/methods-research.md

Every row compares two settings of one method that differ in one choice, ours and that of the authors. By default only
methods over frozen features; --all adds those that run the image tower in every step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from paired import (
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

from dca import Classifier, Session
from dca.core.errors import UserError
from dca.core.progress import silent
from dca.datasets.dataset import Dataset
from dca.methods.clap import UNDERSCORED
from dca.methods.registry import get_method

SCRIPT = "study/measurements/published_options.py"


@dataclass(frozen=True)
class Comparison:
    """Two settings of one method: ours, and those of its authors. images: whether steps run the image tower."""

    method: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    images: bool = False

    def applies(self, dataset: Dataset) -> bool:
        """Whether the settings can differ on a dataset: most have no underscores in their class names."""
        return "names" not in self.published or dataset.public in UNDERSCORED


COMPARISONS = (
    Comparison("tip_adapter_f", {"last_batch": "drop"}, {"last_batch": "keep"}),
    Comparison("tip_adapter", {"crop_low": 0.08}, {"crop_low": 0.5}),
    Comparison("gda", {"crop_low": 0.08}, {"crop_low": 0.5}),
    Comparison("prolip", {"crop_low": 0.08}, {"crop_low": 0.5}),
    Comparison("clap", {"names": "plain"}, {"names": "raw"}),
    Comparison("clap", {"sampling": "images"}, {"sampling": "views"}),
    Comparison("cross_modal", {"init": "zeroshot"}, {"init": "random"}),
    Comparison("cross_modal", {"search": "none"}, {"search": "grid"}),
    Comparison("cross_modal", {"init": "zeroshot", "search": "none"}, {"init": "random", "search": "grid"}),
    Comparison("dapt", {"prototypes": "evaluation"}, {"prototypes": "augmented"}, images=True),
    Comparison("two_sfs", {"norms": "all"}, {"norms": "blocks"}, images=True),
    Comparison("dca", {"reading": "own"}, {"reading": "plots"}, images=True),
    Comparison("dca", {"reading": "own"}, {"reading": "printed"}, images=True),
)


class Measurements:
    """Fits every setting once per dataset, shots and seed, also where several comparisons share it."""

    def __init__(self, session: Session, backbone: str, epochs: int | None) -> None:
        self.session, self.backbone, self.epochs = session, backbone, epochs
        self._known: dict[tuple[Any, ...], NDArray[np.bool_]] = {}

    def right(
        self, method: str, options: Mapping[str, Any], dataset: Dataset, shots: int, seed: int
    ) -> NDArray[np.bool_]:
        """Whether each test image is classified correctly, (N,)."""
        kind = get_method(method)
        shorter = self.epochs is not None and kind.trains_on != "nothing"
        given = dict(options) | ({"epochs": self.epochs} if shorter else {})
        key = (kind.parse_options(given), dataset.name, shots, seed)
        if key not in self._known:
            model = Classifier(method, shots=shots, seed=seed, backbone=self.backbone, **given)
            found = model.fit(dataset, session=self.session, progress=silent).evaluate(dataset)
            self._known[key] = found.probabilities.argmax(axis=1) == found.truth
        return self._known[key]


def make_row(
    one: Comparison, dataset: Dataset, shots: int, seeds: Sequence[int], source: Measurements
) -> dict[str, Any]:
    """One row: both accuracies and their difference, with intervals."""
    ours, theirs = (
        np.stack([source.right(one.method, options, dataset, shots, seed) for seed in seeds])
        for options in (one.ours, one.published)
    )
    row: dict[str, Any] = {"method": one.method, "ours": dict(one.ours), "published": dict(one.published)}
    row |= {"dataset": dataset.name, "shots": shots, "seeds": list(seeds), "n": len(dataset.test)}
    row |= {
        "accuracy": {"ours": mean_accuracy(ours), "published": mean_accuracy(theirs)},
        "difference": mean_difference(ours, theirs),
    }
    row["difference_by_seed"] = (100 * (theirs.mean(axis=1) - ours.mean(axis=1))).tolist()
    return row


def make_tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """One row per comparison and number of shots, one column per dataset, as Markdown."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    found: dict[tuple[str, str, str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        key = (row["method"], format_options(row["ours"]), format_options(row["published"]), row["shots"])
        found.setdefault(key, {})[row["dataset"]] = row
    body = []
    for (method, ours, published, shots), by_data in found.items():
        cells = [format_interval(by_data[name]["difference"], "+") if name in by_data else "–" for name in names]
        body.append([f"`{method}`", ours, published, str(shots), *cells])
    sizes = ", ".join(f"{name} {n:,}" for name, n in {row["dataset"]: row["n"] for row in rows}.items())
    seeds = ", ".join(map(str, rows[0]["seeds"])) if rows else ""
    about = f"Points of the published setting against ours, mean of seeds {seeds}, with the 95 % interval over "
    about += f"the test images ({sizes}):"
    return f"{about}\n\n{format_table(['method', 'ours', 'published', 'shots', *names], body)}"


def format_options(options: Mapping[str, Any]) -> str:
    """Options as they are typed."""
    return " ".join(f"`{name}={value}`" for name, value in options.items())


def main() -> int:
    """Measure and print; returns 2 if a comparison failed."""
    arguments = make_parser(__doc__)
    arguments.add_argument("--all", action="store_true", help="also methods that run the image tower in every step")
    arguments.add_argument("--method", action="append", help="repeatable; all unless given")
    chosen = arguments.parse_args()
    if chosen.show:
        print_tables(make_tables(read_rows(chosen.show)), SCRIPT, chosen.page)
        return 0
    source = Measurements(Session(device=chosen.device), chosen.backbone, chosen.epochs)
    able = [one for one in COMPARISONS if chosen.all or not one.images]
    wanted = [one for one in able if one.method in (chosen.method or [one.method])]
    rows, failed = list[dict[str, Any]](), 0
    for dataset in load_datasets(chosen.data, chosen.test_images):
        for one in (one for one in wanted if one.applies(dataset)):
            for shots in chosen.shots or (4, 16):
                place = f"{dataset.name}, {one.method} {dict(one.published)}, {shots} shots"
                try:
                    rows.append(make_row(one, dataset, shots, chosen.seed or (1, 2, 3), source))
                except UserError as error:  # training with the printed sums may diverge
                    click.echo(f"{place}: {error.problem}", err=True)
                    failed += 1
                    continue
                click.echo(f"{place}: done", err=True)
                write_rows(chosen.json, rows)
    print_tables(make_tables(rows), SCRIPT, chosen.page)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
