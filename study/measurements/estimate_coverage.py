"""Whether the estimated accuracy of the default is right, and its interval covers, where that is hardest.

    python study/measurements/estimate_coverage.py EUROSAT CALTECH FLOWERS --features FOLDER [--held-back] [--json FILE]
    python study/measurements/estimate_coverage.py --show study/estimate_coverage.json

The first arguments are dataset folders as `dca fit` takes them, whose images the embedded model encodes; FOLDER holds
features of OpenAI's ViT-B/32 (shared/data/clip_features), which have no text here. A task draws classes, photos of each
to learn from, and at most 60 new images of each, all from one pool; the accuracy on the new images, the mean over
classes, is the truth. Situations:

- so many photos of each of six classes;
- few photos of a class beside many of another;
- copies: eight photos that are in two classes; the truth is one half;
- noise: features that say nothing; the truth is one sixth.

Beside the estimate that `dca fit` prints stands exact leave-one-out of the same model with Wilson's interval of 0.8 n
images, which it printed before. The constants of the estimate were chosen on training and validation images of EuroSAT,
Caltech101 and Flowers102 and on validation rows of Caltech101, Flowers102 and Pets; the pools here hold their test
images, too. --held-back measures UCF101, SUN397 and Food101, which were opened for this once, after that.
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
from paired import format_table, print_tables, read_rows, write_rows
from rejection import HELD_BACK, OPEN, Pool, draw_task, encode_dataset, read_features
from torch import Tensor
from torch.nn import functional as F

from dca import Session
from dca.datasets import load_dataset
from dca.methods.base import Problem
from dca.methods.closed_form import ClosedForm, ClosedFormOptions
from dca.methods.shared.frozen_features import encode_class_texts, unit_mean
from dca.model.estimate import estimate_accuracy
from dca.stats.intervals import macro_accuracy, wilson_interval

SCRIPT = "study/measurements/estimate_coverage.py"
# Photos of each class.
BALANCED = ((2,) * 6, (3,) * 6, (4,) * 6, (8,) * 6)
UNEQUAL = ((200, 2), (112, 4), (112, 2), (12, 12, 12, 2, 2, 2))
COPIED, NOISE = 8, ((2,) * 6, (8,) * 6)
# Fewest new images of a class: with fewer the truth is not known.
LEAST = 6


def encode_texts(place: str, session: Session) -> tuple[Tensor, float]:
    """Unit text features (C, D) of a dataset by the embedded model, and its τ."""
    dataset, clip = load_dataset(place), session.load_backbone("mini")
    problem = Problem(names=tuple(dataset.names), shots=1, template=dataset.template)
    return unit_mean(encode_class_texts(clip, problem)), float(clip.tau)


def measure(x: Tensor, y: Tensor, groups: Tensor, new: Tensor, truth: Tensor, text: Tensor, tau: float) -> list[float]:
    """The estimate, its ends, that of leave-one-out, its ends, and the accuracy on new images (M, D)."""
    given, support = Given(text.float()), Rows(x.float(), y)
    given.tau = tau
    problem = Problem(names=tuple(map(str, range(len(text)))), shots=max(len(y) // len(text), 1))
    method = ClosedForm.build(given, problem, ClosedFormOptions())  # type: ignore[arg-type]
    method.finish(_Grouped(support, groups))  # type: ignore[arg-type]
    method.build_head()
    labels, zero_shot = y.numpy(), (tau * x @ text.double().T).softmax(dim=-1).numpy()
    found = estimate_accuracy(method.predict_held_out(support), labels, zero_shot)  # type: ignore[arg-type]
    before = method.leave_one_out()
    known = before.known
    right = before.probabilities[known].argmax(axis=1) == labels[known]
    earlier, worth = macro_accuracy(right, labels[known])
    with torch.no_grad():
        predicted = method.classify(F.normalize(new.float(), dim=-1)).argmax(dim=-1)
    accuracy, _ = macro_accuracy((predicted == truth).numpy(), truth.numpy())
    return [found.accuracy, found.low, found.high, earlier, *wilson_interval(earlier, 0.8 * worth), accuracy]


class _Grouped:
    """Rows whose copies are known."""

    def __init__(self, rows: Rows, groups: Tensor) -> None:
        self.rows, self.groups, self.labels = rows, groups, rows.labels

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rows, name)


def measure_task(pool: Pool, texts: tuple[Tensor, float], photos: Sequence[int], seed: int) -> list[float] | None:
    """One task; None if the pool has too few classes with so many images and `LEAST` new ones."""
    task = draw_task(pool, photos, seed, unknown=False)
    if task is None or torch.bincount(task.new_y).min() < LEAST:
        return None
    rows = [int((pool.features == task.x[task.y == c][0]).all(dim=1).nonzero()[0]) for c in range(len(photos))]
    text = texts[0][pool.labels[rows]]
    return measure(task.x, task.y, torch.arange(len(task.y)), task.new, task.new_y, text, texts[1])


def measure_copies(pool: Pool, photos: int, seed: int) -> list[float] | None:
    """The photos of one class under two names, which have the same text: new images belong to both."""
    if (task := draw_task(pool, (photos,), seed, unknown=False)) is None or len(task.new) < LEAST:
        return None
    twice = torch.arange(2).repeat_interleave(photos)
    new = torch.arange(2).repeat_interleave(len(task.new))
    nothing = torch.zeros(2, task.x.shape[1])
    groups = torch.arange(photos).repeat(2)
    return measure(task.x.repeat(2, 1), twice, groups, task.new.repeat(2, 1), new, nothing, 100.0)


def measure_noise(photos: Sequence[int], seed: int, D: int = 512) -> list[float]:
    """Random features, 100 new ones of each class."""
    generator, C = torch.Generator().manual_seed(seed), len(photos)
    y = torch.arange(C).repeat_interleave(torch.tensor(photos))
    x, new = (F.normalize(torch.randn(n, D, generator=generator).double(), dim=-1) for n in (len(y), 100 * C))
    truth = torch.arange(C).repeat_interleave(100)
    return measure(x, y, torch.arange(len(y)), new, truth, torch.zeros(C, D), 100.0)


def summarize(name: str, situation: str, tasks: Sequence[list[float]]) -> dict[str, Any]:
    """Means over tasks, in percent, and how many intervals cover."""
    found = np.array(tasks)
    estimate, low, high, earlier, earlier_low, earlier_high, truth = found.T
    row: dict[str, Any] = {"set": name, "situation": situation, "tasks": len(found), "truth": 100 * truth.mean()}
    for key, values, ends in (("now", estimate, (low, high)), ("before", earlier, (earlier_low, earlier_high))):
        row[key] = {
            "bias": 100 * (values - truth).mean(),
            "error": 196 * (values - truth).std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else 0.0,
            "covered": int(((ends[0] <= truth + 1e-9) & (truth <= ends[1] + 1e-9)).sum()),
            "width": 100 * float(np.median(ends[1] - ends[0])),
        }
    return row


def describe_photos(photos: Sequence[int]) -> str:
    """A situation in words.

    >>> describe_photos((8, 8)), describe_photos((200, 2))
    ('2 x 8', '200, 2')
    """
    return f"{len(photos)} x {photos[0]}" if len({*photos}) == 1 else ", ".join(map(str, photos))


def measure_pools(
    pools: Sequence[tuple[Pool, tuple[Tensor, float] | None]], tasks: int, noise: bool, json: Path | None
) -> list[dict[str, Any]]:
    """All rows, written to `json` after each."""
    rows: list[dict[str, Any]] = []

    def keep(name: str, situation: str, found: Sequence[list[float] | None]) -> None:
        if done := [one for one in found if one is not None]:
            rows.append(summarize(name, situation, done))
            click.echo(format_row(rows[-1]), err=True)
            write_rows(json, rows)

    for photos in NOISE if noise else ():
        situation = f"noise, {describe_photos(photos)}"
        keep("random features", situation, [measure_noise(photos, seed) for seed in range(tasks)])
    for photos in (*BALANCED, *UNEQUAL):
        for pool, texts in pools:
            nothing = (torch.zeros(int(pool.labels.max()) + 1, pool.features.shape[1]), 100.0)
            for name, given in ((f"{pool.name}, text", texts), (pool.name, nothing)):
                if given is not None:
                    found = [measure_task(pool, given, photos, seed) for seed in range(tasks)]
                    keep(name, describe_photos(photos), found)
    for pool, _ in pools:
        keep(pool.name, f"copies, 2 x {COPIED}", [measure_copies(pool, COPIED, seed) for seed in range(tasks)])
    return rows


def format_row(row: Mapping[str, Any]) -> str:
    """One row of the table."""
    cells = [row["set"], row["situation"], f"{row['truth']:.1f}"]
    for key in ("before", "now"):
        found = row[key]
        cells += [f"{found['bias']:+.1f} ± {found['error']:.1f}", f"{found['covered']} of {row['tasks']}"]
    return f"| {' | '.join([*cells, format(row['now']['width'], '.0f')])} |"


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """All rows as Markdown."""
    head = ["features", "photos of each class", "accuracy", "before: estimate minus accuracy", "covered"]
    head += ["now: estimate minus accuracy", "covered", "median width"]
    table = format_table(head, [])
    balanced = [row for row in rows if " x " in row["situation"] and row["situation"][0].isdigit()]
    worst = {k: max((abs(r["now"]["bias"]) for r in balanced if r["situation"].endswith(k)), default=0) for k in "2348"}
    total, covered = sum(r["tasks"] for r in rows), sum(r["now"]["covered"] for r in rows)
    said = ", ".join(f"{value:.1f} with {k}" for k, value in worst.items())
    return "\n".join([table, *map(format_row, rows)]) + (
        f"\n\nLargest bias of a row of six classes, in points: {said} photos of each. "
        f"Covered in all rows: {covered:,} of {total:,}, {100 * covered / max(total, 1):.1f} %."
    )


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--held-back", action="store_true", help="the sets that nothing was chosen on")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the figures here after every row")
    parser.add_argument("--show", type=Path, help="only print the table of such a file")
    parser.add_argument("--page", type=Path, help="also put the table between its marks on a page")
    chosen = parser.parse_args()
    if chosen.show:
        rows = read_rows(chosen.show)
    else:
        torch.set_num_threads(1)
        session = Session(device="cpu")
        pools: list[tuple[Pool, tuple[Tensor, float] | None]] = [
            (encode_dataset(place, session), encode_texts(place, session)) for place in chosen.data
        ]
        if chosen.features:
            parts = HELD_BACK if chosen.held_back else OPEN
            pools += [(read_features(chosen.features, name, part), None) for name, part in parts.items()]
        rows = measure_pools(pools, chosen.tasks, not chosen.held_back, chosen.json)
    mark = f"{SCRIPT} --held-back" if chosen.held_back else SCRIPT
    print_tables(make_table(rows), mark, chosen.page)


if __name__ == "__main__":
    main()
