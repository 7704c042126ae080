"""Which images of a dataset are used: few-shot draws, held-out test images, and files that list a draw.

The algorithm is that of the published draws. The drawn positions depend only on the class sizes, the shots and the
seed, so equal seeds mean equal images everywhere. A draw can be written to a small file, so that two people can verify
that they trained on the same images.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from dca.core.choices import Rules, ValidationUse
from dca.core.errors import UserError, unknown_name
from dca.core.files import write_bytes
from dca.core.hints import set_shots, write_draw
from dca.core.seeds import derive_seed
from dca.core.text import normalize_name, pluralize
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.pickled_draws import is_pickle, read_pickled_draw
from dca.images.hashing import sha256_of

# Most validation images per class that a draw takes.
MOST_VAL_SHOTS = 4
_NO_VALIDATION = "no validation images"
# What the files of draws call their format.
FORMAT = "dca-draw/1"
PARTS = ("train", "val")


# Drawing


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
    """Draw `shots` training images and min(shots, 4) validation images per class.

    Both are drawn from one stream, training first, as published.

    Args:
        dataset: What to draw from.
        shots: Training images per class; None keeps everything. A class with fewer images gives all it has.
        seed: Seed of the draw.

    Returns:
        The drawn dataset; its test part stays whole.

    Raises:
        UserError: If `shots` is below 1.

    Example:
        >>> from dca.datasets.sample import load_sample
        >>> draw_few_shot(load_sample(per_class_train=4, per_class_test=1), 2, seed=1).counts()
        {'train': 20, 'val': 0, 'test': 10}
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

    Every class gives round(fraction * n) images, at least one, and keeps at least one; a class with a single image
    keeps it.

    Args:
        dataset: The dataset; one that has test images is returned unchanged.
        fraction: The share, between 0 and 1.
        seed: Seed of the choice.

    Returns:
        The dataset with a test part.

    Raises:
        UserError: If `fraction` is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise UserError(f"the held-out fraction must be between 0 and 1, not {fraction}.")
    if dataset.test:
        return dataset
    rng = random.Random(derive_seed(seed, "hold-out"))
    by_class: dict[int, list[int]] = {}
    for position, item in enumerate(dataset.train):
        by_class.setdefault(item.label, []).append(position)
    held_out: set[int] = set()
    for label in sorted(by_class):
        n = len(by_class[label])
        held_out.update(rng.sample(by_class[label], min(n - 1, max(1, math.floor(fraction * n + 0.5)))))
    kept = [position for position in range(len(dataset.train)) if position not in held_out]
    origin = f"{dataset.split}; " if dataset.split else ""
    return replace(
        dataset,
        train=_take(dataset.train, kept),
        test=_take(dataset.train, sorted(held_out)),
        split=f"{origin}{fraction:.0%} of each class held out as test, seed {seed}",
    )


def draw_training_part(
    dataset: Dataset,
    shots: int | None,
    seed: int,
    *,
    rules: Rules = "strict",
    validation: ValidationUse = "few",
) -> tuple[Dataset, str]:
    """Draw training and validation images; test images are left out.

    A dataset without a validation part uses min(K, 4), or K, training images per class that were not drawn.

    Args:
        dataset: What to draw from.
        shots: Training images per class, K; None for all. A class with fewer images gives all it has.
        seed: Seed of the draw.
        rules: With "strict", `validation` "shots" and "full" count as "few".
        validation: Validation images that the official code of the method chooses its settings on:
            "none", "few" (min(K, 4) per class), "shots" (K per class) or "full" (the whole validation part).

    Returns:
        The drawn dataset without test images, and its validation images in words.

    Raises:
        UserError: If `shots` is below 1, or a word is unknown.

    Example:
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=1, size=32)
        >>> drawn, words = draw_training_part(sample, shots=1, seed=1, validation="none")
        >>> drawn.counts(), words
        ({'train': 10, 'val': 0, 'test': 0}, 'strict: no validation images')
    """
    if rules not in get_args(Rules):
        raise unknown_name("rules", rules, get_args(Rules))
    if validation not in get_args(ValidationUse):
        raise unknown_name("use of validation images", validation, get_args(ValidationUse))
    if rules == "strict" and validation in ("shots", "full"):
        validation = "few"
    drawn = draw_few_shot(dataset, shots, seed)
    val, words = _choose_validation_images(dataset, drawn, shots, seed, validation)
    return replace(drawn, val=val, test=()), f"{rules}: {words}"


def _choose_validation_images(
    dataset: Dataset, drawn: Dataset, shots: int | None, seed: int, validation: ValidationUse
) -> tuple[tuple[LabelledImage, ...], str]:
    """Validation images, and what they are in words."""
    if validation == "none":
        return (), _NO_VALIDATION
    if dataset.val and (validation == "full" or (validation == "shots" and shots is None)):
        return dataset.val, "the full validation split"
    most = MOST_VAL_SHOTS if shots is None else min(shots, MOST_VAL_SHOTS)
    per_class = shots if validation == "shots" and shots is not None else most
    if validation == "few" and dataset.val and shots is not None:
        return drawn.val, f"{per_class} validation images per class"  # the published draw
    pool, origin = dataset.val, "validation images"
    if not pool:
        used = {id(item) for item in drawn.train}
        pool, origin = tuple(i for i in dataset.train if id(i) not in used), "undrawn training images"
    rng = random.Random(derive_seed(seed, "validation", dataset.public, "all" if shots is None else shots))
    chosen = draw_positions([item.label for item in pool], per_class, rng)
    return tuple(pool[i] for i in chosen), f"{per_class} {origin} per class" if chosen else _NO_VALIDATION


def _take(items: Sequence[LabelledImage], positions: Iterable[int]) -> tuple[LabelledImage, ...]:
    return tuple(items[position] for position in positions)


# Files that list a draw


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """One drawn image: its recorded path, the name of its class and its content hash (empty if not known)."""

    path: str
    name: str
    sha256: str = ""


@dataclass(frozen=True)
class DrawRecord:
    """What was drawn from a dataset.

    Attributes:
        dataset: Name of the dataset.
        shots, seed: What it was drawn with.
        split: Where the dataset's division into parts comes from.
        images: The drawn images of "train" and "val", in draw order.
    """

    dataset: str
    shots: int | None
    seed: int
    split: str
    images: Mapping[str, Sequence[DrawnImage]]

    @property
    def hash(self) -> str:
        """Hash over part, class name and content of every image, in order.

        It covers no labels or paths, so that copies of a public dataset in different layouts agree.
        """
        return draw_hash(self.images)

    def to_dict(self) -> dict[str, Any]:
        """The record, ready for JSON. `paths_sha256` is the hash of the relative paths, joined by newlines."""
        return {
            "format": FORMAT,
            "dataset": self.dataset,
            "shots": self.shots,
            "seed": self.seed,
            "split": self.split,
            "hash": self.hash,
            "paths_sha256": {part: _sha256("\n".join(i.path for i in images)) for part, images in self.images.items()},
            **{part: [[i.path, i.name, i.sha256] for i in images] for part, images in self.images.items()},
        }


def record_draw(dataset: Dataset, shots: int | None, seed: int) -> DrawRecord:
    """Describe a draw by its images; their content is hashed.

    Args:
        dataset: The drawn dataset.
        shots, seed: What it was drawn with.

    Returns:
        The record.
    """
    images = {part: [_drawn_image(dataset, item) for item in getattr(dataset, part)] for part in PARTS}
    return DrawRecord(dataset.name, shots, seed, dataset.split, images)


def export_draw(dataset: Dataset, shots: int | None, seed: int, path: str | Path) -> str:
    """Write a draw to a file, whole or not at all.

    Args:
        dataset: The drawn dataset.
        shots, seed: What it was drawn with.
        path: The file.

    Returns:
        The hash of the draw, see `DrawRecord.hash`.

    Raises:
        UserError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> from dca.datasets.sample import load_sample
        >>> sample, file = load_sample(per_class_train=3, per_class_test=0), tempfile.mkdtemp() + "/draw.json"
        >>> drawn = draw_few_shot(sample, 2, seed=1)
        >>> export_draw(drawn, 2, 1, file) == record_draw(drawn, 2, 1).hash
        True
    """
    record = record_draw(dataset, shots, seed).to_dict()
    rows = {part: ",\n".join(f"  {json.dumps(row)}" for row in record.pop(part)) for part in PARTS}
    head = json.dumps(record, indent=1)[:-2]
    body = ",\n".join(f' "{part}": [\n{rows[part]}\n ]' for part in PARTS)
    write_bytes(Path(path), f"{head},\n{body}\n}}\n".encode())
    return str(record["hash"])


def import_draw(path: str | Path, dataset: Dataset, *, verify: bool = True) -> Dataset:
    """Take exactly the drawn images from a dataset.

    Args:
        path: A file of `export_draw`, an index file that accompanies published work
            ({"train": {"data": [{"impath", "classname"}, ...]}, ...}), plain positions
            ({"train": [8, 36, ...], ...}), or a pickle of CoOp's, of which nothing is executed.
        dataset: What was drawn from.
        verify: Compare the content of each image with its recorded hash.

    Returns:
        The dataset with the drawn training and validation images.

    Raises:
        UserError: With all images that are missing, of another class, or different.
    """
    path = Path(path)
    raw = read_pickled_draw(path) if is_pickle(path) else _read_json(path)
    images: dict[str, tuple[LabelledImage, ...]] = {}
    faults: list[str] = []
    for part in PARTS:
        rows = _read_part(path, raw, part)
        # Published ImageNet files take their validation images from the training folders.
        anywhere = raw.get("format") != FORMAT and bool(rows) and not isinstance(rows[0], int)
        pool = _ImagePool(dataset, dataset.train + dataset.val if anywhere else getattr(dataset, part))
        outcomes = [_find_image(drawn, pool, verify=verify) for drawn in rows]
        faults += [f"{part}: {outcome}" for outcome in outcomes if isinstance(outcome, str)]
        images[part] = tuple(outcome for outcome in outcomes if isinstance(outcome, LabelledImage))
    if faults:
        total = len(faults) + sum(map(len, images.values()))
        raise UserError(
            f"{path}: {pluralize(len(faults), 'drawn image', 'are', of=total)} not in {dataset.name} as recorded.",
            details=faults,
            hint="the draw belongs to another copy or version of the dataset",
        )
    return replace(dataset, train=images["train"], val=images["val"], split=f"{dataset.split}; draw {path.name}")


def draw_hash(parts: Mapping[str, Sequence[DrawnImage]]) -> str:
    """Hash over part, class and content of every drawn image, in order."""
    lines = [f"{part}\t{drawn.name}\t{drawn.sha256}" for part in PARTS for drawn in parts[part]]
    return _sha256("\n".join(lines))


class _ImagePool:
    """The images that may have been drawn, to be found by position, by path, or by the end of a path."""

    def __init__(self, dataset: Dataset, items: Sequence[LabelledImage]) -> None:
        self.items = items
        self.dataset = dataset
        self._exact = {dataset.path_of(item): item for item in items}
        self._by_name: dict[str, list[tuple[tuple[str, ...], LabelledImage]]] = {}
        for path, item in self._exact.items():
            reversed_parts = PurePosixPath(path).parts[::-1]
            self._by_name.setdefault(reversed_parts[0] if reversed_parts else "", []).append((reversed_parts, item))

    def find(self, drawn: DrawnImage) -> LabelledImage | None:
        """The image of that path, or the one of its class whose path shares the longest end with it."""
        if drawn.path in self._exact:
            return self._exact[drawn.path]
        wanted = PurePosixPath(drawn.path).parts[::-1]
        scored = [
            (sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(parts, wanted, strict=False))), item)
            for parts, item in self._by_name.get(wanted[0] if wanted else "", [])
            if self.is_called(item, drawn.name)
        ]
        best = max((score for score, _ in scored), default=0)
        candidates = [item for score, item in scored if score == best]
        return candidates[0] if len(candidates) == 1 else None

    def is_called(self, item: LabelledImage, name: str) -> bool:
        """Whether the item's class has this name or label."""
        return not name or normalize_name(name) in (
            normalize_name(self.name_of(item)),
            normalize_name(str(self.dataset.labels[item.label])),
        )

    def name_of(self, item: LabelledImage) -> str:
        """Name of the item's class."""
        return self.dataset.names[item.label]


def _find_image(drawn: DrawnImage | int, pool: _ImagePool, *, verify: bool) -> LabelledImage | str:
    """The drawn image, or why it cannot be used."""
    if isinstance(drawn, int):
        return pool.items[drawn] if 0 <= drawn < len(pool.items) else f"position {drawn} is beyond the list"
    item = pool.find(drawn)
    if item is None:
        return f"{drawn.path}: not in this dataset"
    if not pool.is_called(item, drawn.name):
        return f"{drawn.path}: drawn as '{drawn.name}', here '{pool.name_of(item)}'"
    if verify and drawn.sha256 and sha256_of(item.image) != drawn.sha256:
        return f"{drawn.path}: the content differs from that of the drawn image"
    return item


def _read_part(path: Path, raw: dict[str, Any], part: str) -> list[DrawnImage | int]:
    """Rows of one part in any of the known forms; in our own form they must match the hash."""
    try:
        if raw.get("format") == FORMAT:
            parts = {name: [DrawnImage(*map(str, row)) for row in raw[name]] for name in PARTS}
            if draw_hash(parts) != raw["hash"]:
                raise UserError(f"{path}: the rows do not match the hash; the file was changed.", hint=write_draw())
            return list(parts[part])
        rows = raw.get(part, [])
        if isinstance(rows, dict):
            return [DrawnImage(str(row["impath"]), str(row["classname"])) for row in rows["data"]]
        return [int(position) for position in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a draw ({type(error).__name__}: {error}).", hint=write_draw()) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).", hint=write_draw()) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as a draw ({error}).", hint=write_draw()) from error
    if not isinstance(raw, dict) or not any(part in raw for part in PARTS):
        raise UserError(f"{path}: not a draw.", hint=write_draw())
    return raw


def _drawn_image(dataset: Dataset, item: LabelledImage) -> DrawnImage:
    return DrawnImage(dataset.path_of(item), dataset.names[item.label], sha256_of(item.image))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
