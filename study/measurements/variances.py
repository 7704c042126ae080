"""How much the mean variance of all features counts in that of each, in the ridge of the closed form's Gaussian.

    python study/measurements/variances.py EUROSAT CALTECH FLOWERS --features FOLDER [--json study/variances.json]
    python study/measurements/variances.py --show study/variances.json --page docs/closed-form.md

Sets of features are those of estimate_coverage.py that constants may be chosen on, without their test images: training
images of the datasets, encoded by the embedded model, and validation rows of Caltech101, Flowers102 and Pets by
OpenAI's ViT-B/32; and the same training images, encoded by EfficientNet-Lite0, whose features are those of a ReLU: the
closed form has one variance for all of these, which is left out here. A task draws six classes, or all with enough
images, photos of each, and new images of the same classes; every n₀ is given the same tasks. With n₀ = ∞ there is one
variance for all features.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from closed_form import existing_items
from estimate_coverage import Source, read_sources
from more_photos import CLASSES, fit, keep_open_parts
from paired import add_page_options, format_table, print_tables, read_rows, write_rows
from rejection import LEAST_NEW, Pool, draw_task
from torch.nn import functional as F

from dca import Session
from dca.datasets import load_dataset
from dca.methods.shared import experts

SCRIPT = "study/measurements/variances.py"
PRIORS = (math.inf, 100.0, 20.0, 5.0, 0.0)
SHOTS = (2, 4, 8)
# Tasks of six classes, and of all.
TASKS, TASKS_OF_ALL = 20, 3


def encode_by_lite0(data: Sequence[str]) -> Iterator[Source]:
    """Features of the training images of datasets."""
    session = Session(device="cpu")
    encoder = session.load_backbone("efficientnet-lite0")
    for place in data:
        dataset = load_dataset(place)
        items = existing_items(dataset.train)
        x = F.normalize(session.frozen_features(encoder, [item.image for item in items]).double(), dim=-1)
        y = torch.tensor([item.label for item in items])
        pool = Pool(f"{dataset.name}, Lite0", x, y, torch.zeros_like(y))
        yield Source("Lite0, no text", pool, torch.zeros(int(y.max()) + 1, x.shape[1]), 100.0)


def measure(job: tuple[Source, int, int, bool]) -> dict[str, Any] | None:
    """Percent of the new images of a task that are right, for every n₀; None if the set has too few images."""
    torch.set_num_threads(1)
    source, shots, seed, every = job
    counts = torch.bincount(source.pool.labels)
    classes = int((counts >= shots + LEAST_NEW).sum()) if every else CLASSES
    if 2 * classes < int((counts > 0).sum()) and every:
        return None
    if (task := draw_task(source.pool, (shots,) * classes, seed, unknown=False)) is None:
        return None
    found = {}
    for prior in PRIORS:
        # Infinity, and 0 where a feature is always silent, would make 0 / 0 of it.
        each = patch.object(experts, "is_nonnegative", lambda x: False)
        with each, patch.object(experts, "VARIANCE_IMAGES", min(max(prior, 1e-3), 1e12)):
            method, _ = fit(task.x, task.y, source.text[task.classes], source.tau)
        with torch.no_grad():
            right = method.classify(F.normalize(task.new.float(), dim=-1)).argmax(dim=-1) == task.new_y
        found[f"{prior:g}"] = round(100 * float(right.double().mean()), 3)
    return {
        "kind": source.kind.partition(" (")[0], "set": source.pool.name, "all": every, "classes": classes,
        "shots": shots, "task": seed, "images": len(task.new_y), "accuracy": found,
    }  # fmt: skip


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per kind of features and number of photos: the first n₀, and what the others add to it, paired."""
    groups: dict[tuple[bool, int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["all"], row["shots"], row["kind"]), []).append(row)
    first, *others = (f"{prior:g}" for prior in PRIORS)
    head = ["classes", "photos of each", "features", "tasks", "n₀ = ∞", *(f"n₀ = {prior}" for prior in others)]
    lines = []
    for (every, shots, kind), own in sorted(groups.items(), key=lambda group: group[0]):
        base = statistics.mean(row["accuracy"][first] for row in own)
        cells = ["all" if every else str(CLASSES), str(shots), kind, str(len(own)), f"{base:.1f}"]
        for prior in others:
            gains = [row["accuracy"][prior] - row["accuracy"][first] for row in own]
            half = 1.96 * statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
            cells.append(f"{statistics.mean(gains):+.1f} ± {half:.1f}")
        lines.append(cells)
    return format_table(head, lines)


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--json", type=Path, help="write the figures here")
    add_page_options(parser)
    chosen = parser.parse_args()
    if chosen.show:
        rows = read_rows(chosen.show)
    else:
        sources = [*keep_open_parts(list(read_sources(chosen.data, chosen.features))), *encode_by_lite0(chosen.data)]
        jobs = [(s, shots, seed, False) for s, shots, seed in product(sources, SHOTS, range(TASKS))]
        jobs += [(s, shots, seed, True) for s, shots, seed in product(sources, SHOTS, range(TASKS_OF_ALL))]
        with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as processes:
            rows = [row for row in processes.map(measure, jobs) if row is not None]
        write_rows(chosen.json, rows)
    print_tables(make_table(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
