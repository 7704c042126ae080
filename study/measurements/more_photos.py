"""Whether "more photos" is right: the accuracy that is expected with twice as many photos, and the one that they bring.

    python study/measurements/more_photos.py EUROSAT CALTECH FLOWERS --features FOLDER [--tasks 20] [--json FILE]
    python study/measurements/more_photos.py --show study/more_photos.json --page docs/closed-form.md

The arguments are those of `estimate_coverage.py`, and so are the sets. A task draws six classes and twice as many
photos of each as the model learns from; it says what it expects with twice as many, and the model of all of them is
measured on the new images. The change is that of the accuracy on new images, beside the one that was expected; the
range is the printed one, less the estimate. The repeats of `stats/learning_curve.py` were chosen on training and
validation images.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from clip_features import Given, Rows
from estimate_coverage import Source, read_sources
from paired import format_table, print_tables, read_rows, write_rows
from rejection import Task, draw_task
from torch import Tensor
from torch.nn import functional as F

from dca.methods.base import Problem
from dca.methods.closed_form import ClosedForm, ClosedFormOptions
from dca.model.estimate import estimate_accuracy
from dca.stats.intervals import macro_accuracy

SCRIPT = "study/measurements/more_photos.py"
CLASSES, SHOTS = 6, (4, 8)


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
    twice = next((p for p in first.learning_curve(estimate) if p.expected), None)
    last, _ = fit(task.x, task.y, text, source.tau)
    found = {"now": accuracy(first), "twice": accuracy(last), "estimate": estimate}
    if twice is not None and twice.low is not None and twice.high is not None:
        found |= {"expected": twice.accuracy, "low": twice.low, "high": twice.high}
    return {key: round(value, 4) for key, value in found.items()}


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each number of photos and kind of features."""
    groups: dict[tuple[int, str], list[Mapping[str, float]]] = {}
    for row in rows:
        if "expected" in row:
            groups.setdefault((row["shots"], row["kind"]), []).append(row)
    head = ["photos of each class", "features", "tasks", "change", "expected", "expected minus change", "in the range"]
    lines = []
    for (shots, kind), own in groups.items():
        now, twice, estimate, expected, low, high = (
            100 * np.array([row[key] for row in own]) for key in ("now", "twice", "estimate", "expected", "low", "high")
        )
        change, promised = twice - now, expected - estimate
        off = promised - change
        half = 1.96 * off.std(ddof=1) / len(own) ** 0.5 if len(own) > 1 else 0.0
        inside = np.mean((low - estimate <= change + 1e-9) & (change <= high - estimate + 1e-9))
        lines.append([
            f"{shots} to {2 * shots}", kind, str(len(own)), f"{change.mean():+.1f}", f"{promised.mean():+.1f}",
            f"{off.mean():+.1f} ± {half:.1f}", f"{100 * inside:.0f} %",
        ])  # fmt: skip
    return format_table(head, lines)


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--tasks", type=int, default=20, help="of every set")
    parser.add_argument("--json", type=Path, help="write the figures here after every set")
    parser.add_argument("--show", type=Path, help="only print the table of such a file")
    parser.add_argument("--page", type=Path, help="also put the table between its marks on a page")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = read_rows(chosen.show) if chosen.show else []
    if not chosen.show:
        torch.set_num_threads(1)
        sources = list(read_sources(chosen.data, chosen.features))
        for shots in SHOTS:
            for source in sources:
                for seed in range(chosen.tasks):
                    task = draw_task(source.pool, (2 * shots,) * CLASSES, seed, unknown=False)
                    if task is not None:
                        about = {"shots": shots, "kind": source.kind, "set": source.pool.name}
                        rows.append(about | measure(source, task, shots))
                write_rows(chosen.json, rows)
                click.echo(f"{source.pool.name}, {shots} photos", err=True)
    print_tables(make_table(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
