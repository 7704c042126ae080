"""Whether the default should choose its numbers by leave-one-out where classes are rare, or do without a choice.

    python study/measurements/rare_classes.py EUROSAT CALTECH FLOWERS --features FOLDER [--json study/rare_classes.json]
    python study/measurements/rare_classes.py --show study/rare_classes.json --page docs/closed-form.md

Sets of features are those of variances.py: no test images of them, and none of UCF101, SUN397 and Food101. A task draws
classes, photos of each, and at most 60 new images of each; both ways are given the same tasks, and accuracies are means
over classes. Votes are what the photos are worth: as many of balanced classes (`stats.intervals.effective_images`).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from estimate_coverage import LEAST, Source, read_sources
from more_photos import fit, keep_open_parts
from paired import add_page_options, format_table, print_tables, read_rows, write_rows
from rejection import draw_task
from torch.nn import functional as F
from variances import encode_by_lite0

from dca.methods.shared import experts
from dca.stats.intervals import effective_images, macro_accuracy

SCRIPT = "study/measurements/rare_classes.py"
# Photos of each class: unequal ones by their votes, and balanced ones to compare with.
UNEQUAL: tuple[tuple[int, ...], ...] = (
    *((8, 2), (30, 2), (100, 2), (200, 2), (20, 3), (30, 2, 2, 2), (16, 16, 2), (112, 4), (30, 6, 3)),
    *((8, 8, 8, 2, 2, 2), (60, 6), (60, 8), (40, 20, 5), (50, 12), (30, 30, 7), (112, 16)),
    *((16,) * 8 + (2,) * 8, (8,) * 10 + (2,) * 10),
)
BALANCED: tuple[tuple[int, ...], ...] = ((4,) * 2, (2,) * 6, (4,) * 6)
TASKS = 20


def describe_photos(photos: Sequence[int]) -> str:
    """Photos of each class in words; equal classes together.

    >>> describe_photos((8, 8, 8, 2)), describe_photos((200, 2))
    ('3 x 8, 2', '200, 2')
    """
    parts = [(photos.count(n), n) for n in dict.fromkeys(photos)]
    return ", ".join(f"{classes} x {n}" if classes > 1 else str(n) for classes, n in parts)


def measure(job: tuple[Source, tuple[int, ...], int]) -> dict[str, Any] | None:
    """Percent of the new images of a task that are right, with and without a choice; None if there are too few."""
    torch.set_num_threads(1)
    source, photos, seed = job
    task = draw_task(source.pool, photos, seed, unknown=False)
    if task is None or torch.bincount(task.new_y).min() < LEAST:
        return None
    found = {}
    for way, rare in (("chosen", math.inf), ("without", 0.0)):
        with patch.object(experts, "RARE", rare), patch.object(experts, "FEW_VOTES", math.inf):
            method, _ = fit(task.x, task.y, source.text[task.classes], source.tau)
        with torch.no_grad():
            right = method.classify(F.normalize(task.new.float(), dim=-1)).argmax(dim=-1) == task.new_y
        found[way] = round(100 * macro_accuracy(right.numpy(), task.new_y.numpy())[0], 3)
    kind = source.kind.partition(" (")[0]
    return {"kind": kind, "set": source.pool.name, "photos": list(photos), "task": seed, "accuracy": found}


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per situation: for every kind of features the accuracy with a choice, and what doing without it adds."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    head = ["photos of each class", "votes", *kinds, "all"]
    lines = []
    for photos in (*UNEQUAL, *BALANCED):
        own = [row for row in rows if tuple(row["photos"]) == photos]
        cells = []
        for kind in (*kinds, None):
            each = [row["accuracy"] for row in own if kind in (None, row["kind"])]
            gains = [accuracy["without"] - accuracy["chosen"] for accuracy in each]
            if len(gains) < 2:
                cells.append("")
                continue
            half = 1.96 * statistics.stdev(gains) / len(gains) ** 0.5
            base = statistics.mean(accuracy["chosen"] for accuracy in each)
            cells.append(f"{base:.1f}, {statistics.mean(gains):+.1f} ± {half:.1f} ({len(gains)})")
        votes = effective_images(np.repeat(np.arange(len(photos)), photos))
        lines.append([describe_photos(photos), f"{votes:.0f}", *cells])
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
        jobs = list(product(sources, (*UNEQUAL, *BALANCED), range(TASKS)))
        with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as processes:
            rows = [row for row in processes.map(measure, jobs) if row is not None]
        write_rows(chosen.json, rows)
    print_tables(make_table(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
