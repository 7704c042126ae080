"""How long the index over result files takes: the first look, a second look, and a question.

    python benchmarks/run_index.py [--cells 100000] [--folder DIR]

Writes that many small result files into a temporary folder under DIR.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dca.study.index import RunIndex

METHODS, DATASETS, SHOTS = 20, 11, (1, 2, 4, 8, 16)


def write_cells(runs: Path, number: int) -> None:
    """Finished cells over methods, datasets, shots and seeds."""
    for n in range(number):
        method, dataset = f"method{n % METHODS}", f"dataset{n // METHODS % DATASETS}"
        shots = SHOTS[n // (METHODS * DATASETS) % len(SHOTS)]
        seed = n // (METHODS * DATASETS * len(SHOTS))
        spec = {"data": dataset, "method": method, "backbone": "vit-b-16", "rules": "strict"}
        result = {
            "method": method,
            "protocol": "few-shot",
            "shots": shots,
            "seed": seed,
            "accuracy": 0.5,
            "seconds": 1.0,
        }
        folder = runs / f"{n:016x}"
        folder.mkdir()
        (folder / "spec.json").write_text(json.dumps({"spec": spec}))
        target = {
            "name": dataset,
            "classes": 10,
            "test_images": 100,
            "accuracy": 0.5,
            "zero_shot_accuracy": 0.3,
            "ece": 0,
        }
        (folder / "result.json").write_text(json.dumps({**result, "targets": [target]}))


def print_time(words: str, action: Callable[[], Any]) -> None:
    """Print how long an action takes."""
    began = time.perf_counter()
    action()
    print(f"{words}: {time.perf_counter() - began:.2f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        runs = Path(name)
        print_time(f"writing {chosen.cells:,} cells", lambda: write_cells(runs, chosen.cells))
        with RunIndex(runs) as index:
            print_time("first look", index.refresh)
            print_time("second look", index.refresh)
            print_time(
                "one method, dataset and number of shots",
                lambda: index.rows(method="method3", dataset="dataset5", shots=4),
            )
            print_time("all rows", index.rows)


if __name__ == "__main__":
    main()
