"""Whole fits with the GPU kernels and with the plain implementations, from the same seeds.

    python tests/gpu/kernel_accuracy.py DATA [--epochs 200] [--seeds 3] [--precision bf16] [--device cuda]
        [--json FILE]

A difference of rounding grows over a thousand steps, so that single fits end up to a point apart in bfloat16; the
difference of the means is judged beside its standard error.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import nullcontext
from pathlib import Path

import click

from dca import Classifier, load_dataset
from dca.core.device import without_triton


def main() -> None:
    """Fit, evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    dataset = load_dataset(chosen.data)
    found: dict[str, list[float]] = {"kernels": [], "plain": []}
    for seed in range(1, chosen.seeds + 1):
        for name, context in (("kernels", nullcontext()), ("plain", without_triton())):
            with context:
                model = Classifier(
                    "dca",
                    shots=16,
                    seed=seed,
                    device=chosen.device,
                    precision=chosen.precision,
                    epochs=chosen.epochs,
                ).fit(dataset)
            found[name].append(100 * model.evaluate(dataset).accuracy)
            click.echo(f"seed {seed}, {name}: {found[name][-1]:.2f}")
    means = {name: statistics.mean(values) for name, values in found.items()}
    differences = [one - other for one, other in zip(found["kernels"], found["plain"], strict=True)]
    gap, error = statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5
    both = f"kernels {means['kernels']:.2f}, plain {means['plain']:.2f}"
    click.echo(f"mean: {both}, difference {gap:+.2f} points, standard error {error:.2f}")
    if chosen.json:
        result = {"accuracy": found, "difference": gap, "standard_error": error}
        chosen.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
