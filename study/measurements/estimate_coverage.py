"""Whether the estimated accuracy of the default is right, and its interval covers, where that is hardest.

    python study/measurements/estimate_coverage.py EUROSAT CALTECH FLOWERS --features FOLDER [--json FILE]
    python study/measurements/estimate_coverage.py --show study/estimate_coverage.json --page docs/closed-form.md

The first arguments are dataset folders as `dca fit` takes them, whose images the embedded model encodes; FOLDER holds
features of OpenAI's ViT-B/32 (shared/data/clip_features), which have text for 31 classes of Caltech101. What FILE has
already is kept. A task draws classes, photos of each to learn from, and at most 60 new images of each, all from one
pool; the accuracy on the new images, the mean over classes, is the truth. Situations:

- so many photos of each of six classes;
- few photos of a class beside many of another;
- copies: eight photos that are in two classes; the truth is one half;
- siblings: half of the photos differ from the others by a quarter of the mean distance within their class, as photos of
  one occasion do;
- noise: features that say nothing; the truth is guessing.

Every task is given to this tree and to an earlier one (`--before`, a commit), each in a process of its own: that is
what `dca fit` said before, and how accurate its model was. A row of the table is the mean over the tasks of all its
sets.

The constants of the estimate were chosen on training and validation images of EuroSAT, Caltech101 and Flowers102 and on
validation rows of Caltech101, Flowers102 and Pets; the pools here hold their test images, too. UCF101, SUN397 and
Food101 were opened after that.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click
import numpy as np
import torch
from estimate_task import Photos
from paired import add_page_options, format_table, print_tables, read_rows, write_rows
from rejection import HELD_BACK, OPEN, Pool, add_siblings, draw_task, encode_dataset, read_features
from rivals import encode_texts, read_named_caltech
from torch import Tensor
from torch.nn import functional as F

from dca import Session

SCRIPT = "study/measurements/estimate_coverage.py"
ROOT = Path(__file__).resolve().parents[2]
# The commit before the estimate was changed.
EARLIER = "193db6e7"
# Photos of each class.
BALANCED: tuple[tuple[int, ...], ...] = ((2,) * 6, (3,) * 6, (4,) * 6, (8,) * 6)
UNEQUAL: tuple[tuple[int, ...], ...] = ((200, 2), (112, 4), (30, 2, 2, 2))
COPIED = 8
# Photos of each class, half of which are siblings of the others.
SIBLINGS = 8
NOISE: tuple[tuple[int, ...], ...] = ((2,) * 6, (3,) * 6, (8,) * 6, (200, 2), (112, 4), (30, 2, 2, 2))
# Fewest new images of a class: with fewer the truth is not known.
LEAST = 10
# Most draws for each task that is wanted: those with too few new images are not taken.
MOST_SEEDS = 4
WAYS = ("before", "now")


@dataclass(frozen=True)
class Source:
    """A set to draw tasks from. kind: what the rows of the table take together. text: (C, D), zeros for none."""

    kind: str
    pool: Pool
    text: Tensor
    tau: float


def read_sources(data: Sequence[str], features: Path | None) -> Iterator[Source]:
    """The sets with and without text."""
    session = Session(device="cpu")
    for place in data:
        pool, (text, tau) = encode_dataset(place, session), encode_texts(place, session)
        yield Source("mini, with text", pool, text, tau)
        yield Source("mini, no text", pool, torch.zeros_like(text), tau)
    if features is None:
        return
    named = read_named_caltech(features)
    assert named.text is not None
    yield Source("ViT-B/32, with text (31 classes of Caltech101)", named.pool, named.text, named.tau)
    for kind, parts in (("Caltech101, Flowers102, Pets", OPEN), ("UCF101, SUN397, Food101", HELD_BACK)):
        for name, part in parts.items():
            pool = read_features(features, name, part)
            text = torch.zeros(int(pool.labels.max()) + 1, pool.features.shape[1])
            yield Source(f"ViT-B/32, no text ({kind})", pool, text, 100.0)


class Estimator:
    """A process that measures tasks by the `dca` of one tree."""

    def __init__(self, tree: Path) -> None:
        paths = [tree / "src", tree / "study" / "measurements", tree / "scripts"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        # -P: modules beside the script are those of the tree, not those of this folder.
        command = [sys.executable, "-P", str(Path(__file__).with_name("estimate_task.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def measure(self, task: Photos) -> dict[str, float]:
        """The figures of one task."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(tuple(task), self.process.stdin)
        self.process.stdin.flush()
        found: dict[str, float] = pickle.load(self.process.stdout)
        return found

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


@contextmanager
def extract_tree(commit: str) -> Iterator[Path]:
    """The files of a commit in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit, "src", "study/measurements", "scripts"], cwd=ROOT, stdout=subprocess.PIPE
        )
        archive.check_returncode()
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def make_photos(x: Tensor, y: Tensor, new: Tensor, new_y: Tensor, text: Tensor, tau: float) -> Photos:
    """A task without copies."""
    alone = torch.arange(len(y))
    return Photos(
        x.float().numpy(), y.numpy(), alone.numpy(), new.float().numpy(), new_y.numpy(), text.float().numpy(), tau
    )


def draw_photos(source: Source, photos: Sequence[int], seed: int) -> Photos | None:
    """Draw one task; None if the pool has too few classes with so many images and `LEAST` new ones."""
    task = draw_task(source.pool, photos, seed, unknown=False)
    if task is None or torch.bincount(task.new_y).min() < LEAST:
        return None
    return make_photos(task.x, task.y, task.new, task.new_y, source.text[task.classes], source.tau)


def draw_copies(source: Source, seed: int) -> Photos | None:
    """Draw the photos of one class under two names, which have the same text: new images belong to both."""
    if (task := draw_task(source.pool, (COPIED,), seed, unknown=False)) is None or len(task.new) < LEAST:
        return None
    twice, new = torch.arange(2).repeat_interleave(COPIED), torch.arange(2).repeat_interleave(len(task.new))
    text = source.text[task.classes].repeat(2, 1)
    photos = make_photos(task.x.repeat(2, 1), twice, task.new.repeat(2, 1), new, text, source.tau)
    return photos._replace(groups=np.tile(np.arange(COPIED), 2))


def draw_siblings(source: Source, seed: int) -> Photos | None:
    """Draw six classes, half of whose photos are siblings of the others, as photos of one occasion are."""
    task = draw_task(source.pool, (SIBLINGS,) * 6, seed, unknown=False)
    if task is None or torch.bincount(task.new_y).min() < 2 * LEAST:  # half of the new images make the siblings
        return None
    task = add_siblings(task)
    return make_photos(task.x, task.y, task.new, task.new_y, source.text[task.classes], source.tau)


def draw_noise(photos: Sequence[int], seed: int, D: int = 512) -> Photos:
    """Draw random features, 100 new ones of each class."""
    generator, C = torch.Generator().manual_seed(seed), len(photos)
    y, new_y = torch.arange(C).repeat_interleave(torch.tensor(photos)), torch.arange(C).repeat_interleave(100)
    x, new = (F.normalize(torch.randn(n, D, generator=generator), dim=-1) for n in (len(y), len(new_y)))
    return make_photos(x, y, new, new_y, torch.zeros(C, D), 100.0)


def describe_photos(photos: Sequence[int]) -> str:
    """A situation in words.

    >>> describe_photos((8, 8)), describe_photos((200, 2))
    ('2 x 8', '200, 2')
    """
    return f"{len(photos)} x {photos[0]}" if len({*photos}) == 1 else ", ".join(map(str, photos))


@dataclass(frozen=True)
class Row:
    """The tasks of one situation and set, `draw` by seed."""

    kind: str
    name: str
    situation: str
    draw: Callable[[int], Photos | None]


def list_rows(sources: Sequence[Source], *, noise: bool) -> Iterator[Row]:
    """All situations, of all sets."""

    def drawn(source: Source, photos: tuple[int, ...]) -> Callable[[int], Photos | None]:
        return lambda seed: draw_photos(source, photos, seed)

    def copied(source: Source) -> Callable[[int], Photos | None]:
        return lambda seed: draw_copies(source, seed)

    def related(source: Source) -> Callable[[int], Photos | None]:
        return lambda seed: draw_siblings(source, seed)

    def random(photos: tuple[int, ...]) -> Callable[[int], Photos | None]:
        return lambda seed: draw_noise(photos, seed)

    for photos in NOISE if noise else ():
        yield Row("noise", "random features", describe_photos(photos), random(photos))
    for photos in (*BALANCED, *UNEQUAL):
        for source in sources:
            yield Row(source.kind, source.pool.name, describe_photos(photos), drawn(source, photos))
    for source in (source for source in sources if not source.text.any()):
        yield Row(source.kind, source.pool.name, f"copies, 2 x {COPIED}", copied(source))
        yield Row(source.kind, source.pool.name, f"half siblings, 6 x {SIBLINGS}", related(source))


def measure_row(row: Row, tasks: int, estimators: Mapping[str, Estimator], done: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of every task by every tree, beside those that are done."""
    found: dict[str, Any] = {"kind": row.kind, "set": row.name, "situation": row.situation, **done}
    found.update({way: list[dict[str, float]]() for way in estimators})
    drawn = filter(None, map(row.draw, range(MOST_SEEDS * tasks)))
    for task in islice(drawn, tasks):
        for way, estimator in estimators.items():
            found[way].append({key: round(value, 4) for key, value in estimator.measure(task).items()})
    return found


def divide_tasks(rows: Sequence[Row], tasks: int) -> dict[tuple[str, str], int]:
    """How many tasks each set has of a line of the table, by kind and situation: sets with too few images have none."""
    able = Counter((row.kind, row.situation) for row in rows if any(row.draw(seed) is not None for seed in range(3)))
    return {line: -(-tasks // sets) for line, sets in able.items()}


def measure_rows(
    rows: Sequence[Row],
    tasks: Mapping[tuple[str, str], int],
    workers: int,
    json: Path | None,
    done: Sequence[dict[str, Any]],
    *,
    again: bool,
) -> list[dict[str, Any]]:
    """All rows with those that are done; written to `json` as they come.

    tasks: of `divide_tasks`. again: whether those that are done are measured again by this tree; the earlier one stays.
    """
    keys = [(row.kind, row.name, row.situation) for row in rows]
    found = {(row["kind"], row["set"], row["situation"]): row for row in done}

    def kept() -> list[dict[str, Any]]:
        return [found[key] for key in keys if key in found]

    with extract_tree(EARLIER) if not again else nullcontext() as earlier, ThreadPoolExecutor(workers) as threads:
        idle: SimpleQueue[dict[str, Estimator]] = SimpleQueue()
        for _ in range(workers):
            idle.put(({"before": Estimator(earlier)} if earlier else {}) | {"now": Estimator(ROOT)})

        def measure_next(row: Row) -> dict[str, Any]:
            estimators = idle.get()
            count = tasks.get((row.kind, row.situation), 0)
            made = measure_row(row, count, estimators, found.get((row.kind, row.name, row.situation), {}))
            idle.put(estimators)
            return made

        wanted = [row for row, key in zip(rows, keys, strict=True) if (key in found) == again]
        for new in threads.map(measure_next, wanted):
            found[new["kind"], new["set"], new["situation"]] = new
            write_rows(json, kept())
            if new["now"]:
                click.echo(f"{new['set']}: {format_cells(summarize([new]))}", err=True)
        for _ in range(workers):
            for estimator in idle.get().values():
                estimator.close()
    return kept()


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over all tasks of some rows, in percent, and how many intervals cover."""
    made: dict[str, Any] = {"kind": rows[0]["kind"], "situation": rows[0]["situation"]}
    for way in WAYS:
        tasks = [task for row in rows for task in row[way]]
        keys = ("estimate", "low", "high", "accuracy")
        estimate, low, high, truth = (np.array([task[key] for task in tasks]) for key in keys)
        made[way] = {
            "tasks": len(tasks),
            "truth": 100 * truth.mean(),
            "bias": 100 * (estimate - truth).mean(),
            "half": 196 * (estimate - truth).std(ddof=1) / len(tasks) ** 0.5 if len(tasks) > 1 else 0.0,
            "covered": int(((low <= truth + 1e-9) & (truth <= high + 1e-9)).sum()),
            "width": 100 * float(np.median(high - low)),
            "seconds": float(np.mean([task["seconds"] for task in tasks])),
        }
    return made


def format_cells(row: Mapping[str, Any]) -> str:
    """One row of the table."""
    cells = [row["situation"], row["kind"]]
    for way in WAYS:
        found = row[way]
        cells += [f"{found['truth']:.1f}", f"{found['bias']:+.1f} ± {found['half']:.1f}"]
        cells += [f"{found['covered']} of {found['tasks']}"]
    return f"| {' | '.join([*cells, format(row['now']['width'], '.0f')])} |"


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per situation and kind."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["now"]:
            groups.setdefault((row["situation"], row["kind"]), []).append(row)
    found = [summarize(own) for own in groups.values()]
    head = ["photos of each class", "features", "before: accuracy", "estimate minus it", "covered"]
    head += ["now: accuracy", "estimate minus it", "covered", "median width"]
    situations = [f"6 x {n}" for n in "2348"]
    worst = [
        max((abs(r["now"]["bias"]) for r in found if r["situation"] == name and r["kind"] != "noise"), default=0)
        for name in situations
    ]
    said = ", ".join(f"{value:.1f} with {name}" for value, name in zip(worst, situations, strict=True))
    total, covered = (sum(row["now"][key] for row in found) for key in ("tasks", "covered"))
    slower = sum(r["now"]["seconds"] for r in found) / max(sum(r["before"]["seconds"] for r in found), 1e-9)
    return "\n".join([format_table(head, []), *map(format_cells, found)]) + (
        f"\n\nLargest bias now of a line of six classes, in points: {said}. Covered in all lines: {covered:,} of "
        f"{total:,}, {100 * covered / max(total, 1):.1f} %. Fit and estimate took {slower:.1f} times as long as before."
    )


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--tasks", type=int, default=100, help="of a line of the table, divided among its sets")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here after every row, and keep those it has")
    parser.add_argument("--again", action="store_true", help="measure this tree again in the rows that the file has")
    add_page_options(parser)
    chosen = parser.parse_args()
    if chosen.show:
        rows = read_rows(chosen.show)
    else:
        torch.set_num_threads(1)
        sources = list(read_sources(chosen.data, chosen.features))
        done = read_rows(chosen.json) if chosen.json and chosen.json.exists() else []
        wanted = list(list_rows(sources, noise=True))
        tasks = divide_tasks(wanted, chosen.tasks)
        rows = measure_rows(wanted, tasks, chosen.workers, chosen.json, done, again=chosen.again)
    print_tables(make_table(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
