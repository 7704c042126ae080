"""Fits per minute of a study of small fits that share one process and one session.

    python benchmarks/many_fits.py DATA [--seeds 3] [--epochs 100] [--jobs 1] [--device cuda] [--json FILE]

DCA, 16 shots, seeds × 14 settings (α of 7 values, β of 2), each tested on all test images. With --jobs, so many
processes share the device.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import click

from dca import Session
from dca.study import Experiment, run_experiment

SETTINGS = [
    {"alpha": alpha, "beta": beta} for alpha, beta in product((0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0), (0.1, 0.5))
]


def run_fits(data: str, cells: list[tuple[int, dict[str, float]]], epochs: int, device: str) -> list[float]:
    """Accuracies of the cells, one after the other."""
    session, found = Session(device=device, keep_crops=True), []
    with tempfile.TemporaryDirectory() as folder:
        for number, (seed, options) in enumerate(cells):
            chosen = {**options, "epochs": epochs}
            experiment = Experiment(data=data, method="dca", shots=16, seed=seed, backbone="mini", options=chosen)
            found.append(run_experiment(experiment, Path(folder) / str(number), session=session).result.accuracy or 0.0)
    return found


def main() -> None:
    """Run all cells and print the rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    cells = list(product(range(1, chosen.seeds + 1), SETTINGS))
    parts = [cells[job :: chosen.jobs] for job in range(chosen.jobs)]
    began = time.perf_counter()
    with ProcessPoolExecutor(chosen.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run_fits, chosen.data, part, chosen.epochs, chosen.device) for part in parts]
        accuracies = [accuracy for job in waiting for accuracy in job.result()]
    seconds = time.perf_counter() - began
    found = {
        "fits": len(cells),
        "jobs": chosen.jobs,
        "seconds": round(seconds, 1),
        "fits_per_minute": round(60 * len(cells) / seconds, 1),
        "mean_accuracy": sum(accuracies) / len(accuracies),
    }
    click.echo(json.dumps(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
