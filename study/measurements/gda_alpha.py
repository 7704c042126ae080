"""GDA's α chosen by leave-one-out on the training images, on the validation images of the draw, and at its best.

    python study/measurements/gda_alpha.py EUROSAT CALTECH FLOWERS --json study/gda_alpha.json --page docs/methods-research.md
    python study/measurements/gda_alpha.py --show study/gda_alpha.json --page docs/methods-research.md

Measured on the validation images that are not in the draw; no test image is opened. The best of the seven values on
these images themselves is what no choice can exceed. Evaluation views only.
"""  # fmt: skip  # noqa: E501

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from paired import format_table, load_datasets, make_parser, print_tables, read_rows, write_rows

from dca import Classifier, Session
from dca.core.progress import silent
from dca.datasets.dataset import Dataset
from dca.methods.gda import ALPHAS
from dca.study.protocols import use_validation_as_test

SCRIPT = "study/measurements/gda_alpha.py"
SHOTS, SEEDS = (2, 4, 8, 16), (1, 2, 3)


def measure_choices(dataset: Dataset, shots: int, seed: int, session: Session, backbone: str) -> dict[str, float]:
    """Accuracy with the α of each choice on the validation images that are not in the draw, and their number n."""
    source = use_validation_as_test(dataset, shots, seed)

    def measure(**options: Any) -> float:
        model = Classifier("gda", shots=shots, seed=seed, backbone=backbone, views=0, **options)
        return model.fit(source, session=session, progress=silent).score(source)

    best = max(measure(alpha=alpha) for alpha in ALPHAS)
    return {
        "loo": measure(select="loo"),
        "validation": measure(select="validation"),
        "best": best,
        "n": len(source.test),
    }


def make_tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per number of shots: leave-one-out / validation images of the draw / the best, mean over the draws."""
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    lines = []
    for shots in dict.fromkeys(row["shots"] for row in rows):
        cells = []
        for dataset in datasets:
            own = [row for row in rows if (row["dataset"], row["shots"]) == (dataset, shots)]
            means = [100 * statistics.mean(row[choice] for row in own) for choice in ("loo", "validation", "best")]
            images = sorted({row["n"] for row in own})
            cells += [" / ".join(f"{mean:.1f}" for mean in means), " to ".join(f"{n:,}" for n in images)]
        lines.append([str(shots), *cells])
    return format_table(["shots", *(title for dataset in datasets for title in (dataset, "n"))], lines)


def main() -> int:
    """Measure and print."""
    chosen = make_parser(__doc__).parse_args()
    if chosen.show:
        print_tables(make_tables(read_rows(chosen.show)), SCRIPT, chosen.page)
        return 0
    session, rows = Session(device=chosen.device), list[dict[str, Any]]()
    for dataset in load_datasets(chosen.data, 0):
        for shots in chosen.shots or SHOTS:
            for seed in chosen.seed or SEEDS:
                found = measure_choices(dataset, shots, seed, session, chosen.backbone)
                rows.append({"dataset": dataset.name, "shots": shots, "seed": seed, **found})
                write_rows(chosen.json, rows)
            click.echo(f"{dataset.name}, {shots} shots: done", err=True)
    print_tables(make_tables(rows), SCRIPT, chosen.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
