"""Time and memory of the heads for scikit-learn over very many rows.

    python benchmarks/many_rows.py [--rows 100000] [--features 512] [--classes 100] [--heads KernelRidgeHead ...]

Rows are drawn about random class centres. Each head is fitted in a process of its own, whose peak memory is that of the
fit above the arrays that it is given.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import numpy as np
from numpy.typing import NDArray

from dca import estimators

TEST_ROWS = 2000


def draw(
    rng: np.random.Generator, centers: NDArray[np.float64], n: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rows (n, D) about the centres (C, D) of their classes, and labels (n,)."""
    labels = rng.integers(0, len(centers), n)
    rows = rng.standard_normal((n, centers.shape[1]))
    rows *= 2.5
    rows += centers[labels]
    return rows, labels


def peak() -> float:
    """Largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(name: str, rows: int, features: int, classes: int) -> str:
    """One line about the fit of a head."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((classes, features))
    X, y = draw(rng, centers, rows)
    X_test, y_test = draw(rng, centers, TEST_ROWS)
    head, before, began = getattr(estimators, name)(), peak(), time.perf_counter()
    head.fit(X, y)
    fitted = time.perf_counter()
    share = float((head.predict(X_test) == y_test).mean())
    return (
        f"{name}: fit {fitted - began:.1f} s, peak {peak() - before:.2f} GB above {before:.2f} GB; "
        f"{TEST_ROWS:,} rows predicted in {time.perf_counter() - fitted:.2f} s, {share:.1%} of them right"
    )


def main() -> None:
    """Measure the heads, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--heads", nargs="+", choices=estimators.__all__, default=estimators.__all__)
    args = parser.parse_args()
    for name in args.heads:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(measure, (name, args.rows, args.features, args.classes)), flush=True)


if __name__ == "__main__":
    main()
