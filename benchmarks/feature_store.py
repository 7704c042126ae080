"""Speed of the feature store: storing, reading all, reading a few of many.

    python benchmarks/feature_store.py [--width 256] [--folder DIR] [--json]

For comparison, in the same run: one .npy file of the same features, written and flushed to disk, and read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from dca.features.store import FeatureStore

ABOUT = {"backbone": "benchmark"}
STORED, MANY, FEW, BATCH = 32_000, 100_000, 100, 128


def measure_seconds(work: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(folder: Path, width: int) -> dict[str, float]:
    """Seconds of each operation."""
    keys = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(MANY)]
    rows = torch.randn(MANY, width)
    few = [keys[n] for n in random.Random(0).sample(range(MANY), FEW)]
    store = FeatureStore(folder)

    def compute(places: Sequence[int]) -> Iterator[Tensor]:
        return (rows[list(places[start : start + BATCH])] for start in range(0, len(places), BATCH))

    def ask(some: Sequence[str]) -> Callable[[], object]:
        return lambda: store.get_or_compute(ABOUT, some, compute)

    def write_file() -> None:
        with (folder / "plain.npy").open("wb") as file:
            np.save(file, rows[:STORED].numpy())
            file.flush()
            os.fsync(file.fileno())

    result = {
        f"store {STORED:,} rows": measure_seconds(ask(keys[:STORED])),
        f"read {STORED:,} rows": measure_seconds(ask(keys[:STORED])),
        f"write a .npy file of {STORED:,} rows": measure_seconds(write_file),
        f"read a .npy file of {STORED:,} rows": measure_seconds(lambda: np.load(folder / "plain.npy")),
        f"store the rest of {MANY:,} rows": measure_seconds(ask(keys)),
        f"read {FEW:,} of {MANY:,} rows": measure_seconds(ask(few)),
        f"read {MANY:,} of {MANY:,} rows": measure_seconds(ask(keys)),
        f"find {MANY:,} keys": measure_seconds(lambda: store.known_keys(ABOUT, keys)),
    }
    size = store.path.stat().st_size / (MANY * width * 4)
    result |= {f"clear {MANY:,} rows": measure_seconds(store.clear)}
    return {**{name: 1000 * value for name, value in result.items()}, "file size / size of the features": size}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256, help="numbers per feature")
    parser.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        result = measure(Path(folder), given.width)
    if given.json:
        click.echo(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        click.echo(f"{name:<36} {value:10.4g}{'' if '/' in name else ' ms'}")


if __name__ == "__main__":
    main()
