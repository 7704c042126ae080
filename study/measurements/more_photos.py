"""Whether "more photos" is right: the accuracy that is expected with twice as many photos, and the one that they bring.

    python study/measurements/more_photos.py EUROSAT CALTECH FLOWERS --features FOLDER [--tasks 20] [--json FILE]
    python study/measurements/more_photos.py --show study/more_photos.json --page docs/closed-form.md

The arguments are those of `estimate_coverage.py`, and so are the sets. A task draws six classes and twice as many
photos of each as the model learns from; it says what it expects with twice as many, and the model of all of them is
measured on the new images. The change is that of the accuracy on new images, beside the one that was expected; the
interval is the one that is printed. The numbers of `stats/learning_curve.py` were fitted to tasks of training and
validation images (--choose), which has no test image and none of UCF101, SUN397 and Food101.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from clip_features import Given, Rows
from estimate_coverage import Source, read_sources
from paired import add_page_options, format_table, print_tables, read_rows, write_rows
from rejection import HELD_BACK, Task, draw_task
from torch import Tensor
from torch.nn import functional as F

from dca.methods.base import Problem
from dca.methods.closed_form import ClosedForm, ClosedFormOptions
from dca.model.estimate import estimate_accuracy
from dca.stats.intervals import held_out_interval, macro_accuracy
from dca.stats.learning_curve import expect_with_twice

SCRIPT = "study/measurements/more_photos.py"
CLASSES, SHOTS = 6, (4, 8)
KEYS = ("now", "twice", "estimate", "half")


def fit(x: Tensor, y: Tensor, text: Tensor, tau: float) -> tuple[ClosedForm, Rows]:
    """The default on rows x (N, D) with labels (N,) and texts (C, D)."""
    given, rows = Given(text.float()), Rows(x.float(), y)
    given.tau = tau
    problem = Problem(names=tuple(map(str, range(len(text)))), shots=len(y) // len(text))
    method = ClosedForm.build(given, problem, ClosedFormOptions())  # type: ignore[arg-type]
    method.finish(rows)  # type: ignore[arg-type]
    return method.build_head(), rows


def measure(source: Source, task: Task, shots: int) -> dict[str, float]:
    """Accuracies with half of the photos and with all of them, and what half of them let expect."""
    text = source.text[task.classes]
    half = torch.cat([(task.y == c).nonzero()[:shots, 0] for c in range(CLASSES)])

    def accuracy(method: ClosedForm) -> float:
        with torch.no_grad():
            right = method.classify(F.normalize(task.new.float(), dim=-1)).argmax(dim=-1) == task.new_y
        return macro_accuracy(right.numpy(), task.new_y.numpy())[0]

    first, rows = fit(task.x[half], task.y[half], text, source.tau)
    labels = rows.labels.numpy()
    zero_shot = (source.tau * task.x[half] @ text.double().T).softmax(dim=-1).numpy() if text.any() else None
    held = first.predict_held_out(rows)  # type: ignore[arg-type]
    estimate = estimate_accuracy(held, labels, zero_shot).accuracy
    points = first.learning_curve(estimate)
    last, _ = fit(task.x, task.y, text, source.tau)
    found = {"now": accuracy(first), "twice": accuracy(last), "estimate": estimate}
    if points:
        found["half"] = points[0].accuracy
    return {key: round(value, 4) for key, value in found.items()}


def measure_task(job: tuple[Source, int, int]) -> dict[str, Any] | None:
    """A row of figures: of a set, photos per class and number of the task; None if the set has too few images."""
    torch.set_num_threads(1)
    source, shots, seed = job
    task = draw_task(source.pool, (2 * shots,) * CLASSES, seed, unknown=False)
    if task is None:
        return None
    about = {"shots": shots, "kind": source.kind, "set": source.pool.name, "task": seed}
    return about | {"new": len(task.new_y)} | measure(source, task, shots)


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each number of photos and kind of features."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "half" in row:
            groups.setdefault((row["shots"], row["kind"]), []).append(row)
    head = ["photos of each class", "features", "tasks", "accuracy", "change", "expected", "expected minus change"]
    head += ["its standard deviation", "accuracy with twice as many in the interval"]
    lines = []
    for (shots, kind), own in groups.items():
        now, twice, estimate, _ = (100 * np.array([row[key] for row in own]) for key in KEYS)
        expected = np.array([100 * expect_with_twice(row["estimate"], row["half"], CLASSES) for row in own])
        low, high = np.array([held_out_interval(e / 100, CLASSES * shots) for e in expected]).T * 100
        off = expected - estimate - (twice - now)
        error = 1.96 * off.std(ddof=1) / len(own) ** 0.5 if len(own) > 1 else 0.0
        inside = int(((low <= twice + 1e-9) & (twice <= high + 1e-9)).sum())
        lines.append([
            f"{shots} to {2 * shots}", kind, str(len(own)), f"{now.mean():.1f}", f"{(twice - now).mean():+.1f}",
            f"{(expected - estimate).mean():+.1f}", f"{off.mean():+.1f} ± {error:.1f}",
            f"{off.std(ddof=min(1, len(own) - 1)):.1f}", f"{inside} of {len(own)}",
        ])  # fmt: skip
    return format_table(head, lines)


def keep_open_parts(sources: Sequence[Source]) -> Iterator[Source]:
    """The first part, which holds no test images, of the sets that are not held back."""
    for source in sources:
        pool = source.pool
        if pool.name.split(",")[0] not in HELD_BACK:
            first = pool.part == 0
            part = replace(pool, features=pool.features[first], labels=pool.labels[first], part=pool.part[first])
            yield replace(source, pool=part)


def measure_tasks(
    sources: Sequence[Source], chosen: argparse.Namespace, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """All rows, those that are there already first; written as they come."""
    there = {(row["set"], row["kind"], row["shots"], row["task"]) for row in rows}
    jobs = [
        (source, shots, seed)
        for seed, shots, source in product(range(chosen.tasks), SHOTS, sources)
        if (source.pool.name, source.kind, shots, seed) not in there
    ]
    with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as processes:
        for number, row in enumerate(processes.map(measure_task, jobs), 1):
            if row is not None:
                rows.append(row)
            if number % 20 == 0 or number == len(jobs):
                write_rows(chosen.json, rows)
                click.echo(f"{number} of {len(jobs)} tasks", err=True)
    return rows


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--tasks", type=int, default=20, help="of every set")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--json", type=Path, help="write the figures here as they come, and keep those it has")
    add_page_options(parser)
    parser.add_argument(
        "--choose", action="store_true", help="only sets and parts of them that constants may be chosen on"
    )
    chosen = parser.parse_args()
    rows = read_rows(chosen.show or chosen.json) if chosen.show or (chosen.json and chosen.json.exists()) else []
    if not chosen.show:
        sources = list(read_sources(chosen.data, chosen.features))
        rows = measure_tasks(list(keep_open_parts(sources)) if chosen.choose else sources, chosen, rows)
    print_tables(make_table(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
