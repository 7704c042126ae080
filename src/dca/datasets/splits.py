"""Few-shot draws: which images of a split are trained on.

The algorithm is that of the published draws. The drawn positions depend only on the class sizes,
the shots and the seed, so equal seeds mean equal images everywhere.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dca.core.errors import UserError
from dca.core.hints import set_shots
from dca.core.seeds import derive
from dca.datasets.dataset import Dataset, Item

MOST_VAL_SHOTS = 4


def draw_positions(labels: Sequence[int], shots: int, rng: random.Random) -> list[int]:
    """Positions of `shots` images per class, in the published order.

    Classes come in order of first appearance, images in the order they were sampled. A class with
    fewer images than `shots` gives all of them and uses no random numbers.

    >>> draw_positions([7, 7, 7, 2, 2], 2, random.Random(1))
    [0, 2, 4, 3]
    """
    if shots < 1:
        raise UserError(f"shots must be at least 1, not {shots}.", hint=set_shots(1, 2, 4, 8, 16))
    by_class: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        by_class.setdefault(label, []).append(position)
    chosen: list[int] = []
    for positions in by_class.values():
        chosen += rng.sample(positions, shots) if len(positions) >= shots else positions
    return chosen


def draw_few_shot(dataset: Dataset, shots: int | None, seed: int) -> Dataset:
    """Keep `shots` training images and min(shots, 4) validation images per class.

    Both are drawn from one stream, training first, as published. The test part stays whole;
    `shots=None` keeps everything.
    """
    if shots is None:
        return dataset
    rng = random.Random(seed)
    train = draw_positions([item.label for item in dataset.train], shots, rng)
    val = draw_positions([item.label for item in dataset.val], min(shots, MOST_VAL_SHOTS), rng)
    return replace(dataset, train=_take(dataset.train, train), val=_take(dataset.val, val))


def short_classes(dataset: Dataset, shots: int) -> list[tuple[str, int]]:
    """Labels of classes with fewer than `shots` training images, each with the number it has."""
    counts = Counter(item.label for item in dataset.train)
    return [(str(label), counts[y]) for y, label in enumerate(dataset.labels) if counts[y] < shots]


def hold_out(dataset: Dataset, fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Move a stratified share of the training images to an empty test part.

    Every class gives round(fraction * n) images, at least one, and keeps at least one; a class
    with a single image keeps it. A dataset that has test images is returned unchanged.
    """
    if not 0 < fraction < 1:
        raise UserError(f"the held-out fraction must be between 0 and 1, not {fraction}.")
    if dataset.test:
        return dataset
    rng = random.Random(derive(seed, "hold-out"))
    by_class: dict[int, list[int]] = {}
    for position, item in enumerate(dataset.train):
        by_class.setdefault(item.label, []).append(position)
    held: set[int] = set()
    for label in sorted(by_class):
        n = len(by_class[label])
        held.update(rng.sample(by_class[label], min(n - 1, max(1, math.floor(fraction * n + 0.5)))))
    kept = [position for position in range(len(dataset.train)) if position not in held]
    origin = f"{dataset.split}; " if dataset.split else ""
    return replace(
        dataset,
        train=_take(dataset.train, kept),
        test=_take(dataset.train, sorted(held)),
        split=f"{origin}{fraction:.0%} of each class held out as test, seed {seed}",
    )


def _take(items: Sequence[Item], positions: Iterable[int]) -> tuple[Item, ...]:
    return tuple(items[position] for position in positions)
