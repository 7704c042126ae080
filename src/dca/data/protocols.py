"""The four ways in which few-shot methods are compared.

A protocol turns datasets into a `Task`: what may be trained on, and what is tested. The training
side of a task carries no test image, so a method cannot see one.

`strict` (the default) never tunes on more than min(K, 4) validation images per class. `paper`
allows what a method's official code searched on (`full` validation split, or K per class); a
search on test images, which some official code does, is not offered. `Task.selection` says which
was used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dca.core.errors import UserError, unknown_name
from dca.core.seeds import derive
from dca.data.dataset import Dataset, Item
from dca.data.splits import MOST_VAL_SHOTS, draw, hold_out
from dca.data.splits import few_shot as draw_few_shot

Mode = Literal["strict", "paper"]
Habit = Literal["none", "few", "shots", "full"]
_HABITS = ("none", "few", "shots", "full")


@dataclass(frozen=True)
class Target:
    """Images to test on, with the words their classes are called by.

    dataset: the dataset they are of, by whose name recipes and sentences are looked up.
    from_source: for each class of the target, the training class it is (so that prompts and
    covariances can be carried over), or None where training had no such class.
    """

    name: str
    dataset: str
    classes: tuple[str, ...]
    template: str
    test: tuple[Item, ...]
    from_source: tuple[int | None, ...]

    @property
    def carries_over(self) -> bool:
        """Whether every class was trained, so that class covariances exist for all."""
        return None not in self.from_source


@dataclass(frozen=True)
class Task:
    """One comparison: train on `source` (its test part is empty), test on `targets`."""

    protocol: str
    mode: Mode
    selection: str
    shots: int | None
    seed: int
    source: Dataset
    targets: tuple[Target, ...]


def few_shot(dataset: Dataset, shots: int | None, seed: int, *, mode: Mode = "strict", habit: Habit = "few") -> Task:
    """Train on K images per class, test on the whole test part.

    Without a test part a fifth of each class is held out first, the same for every seed.
    """
    dataset = hold_out(dataset)
    source, selection = training_part(dataset, shots, seed, mode=mode, habit=habit)
    return Task("few-shot", mode, selection, shots, seed, source, (_target(dataset, dataset),))


def domain_generalisation(
    source: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    mode: Mode = "strict",
    habit: Habit = "few",
) -> Task:
    """Train on one dataset, test on shifted versions of it.

    A target's classes are found among the source's by key (WordNet id); it is classified among its
    own classes only. Raises UserError if a target has a class that the source lacks.
    """
    trained, selection = training_part(source, shots, seed, mode=mode, habit=habit)
    found = [_target(source, source)] if source.test else []
    found += [_target(source, target) for target in targets]
    strangers = [
        f"{t.name}: {words}"
        for t in found
        for words, label in zip(t.classes, t.from_source, strict=True)
        if label is None
    ]
    if strangers:
        raise UserError(
            f"{len(strangers)} target classes are not classes of {source.name}.",
            details=strangers,
            hint="domain generalisation needs the same classes; for other classes use cross-dataset",
        )
    return Task("domain-generalisation", mode, selection, shots, seed, trained, tuple(found))


def cross_dataset(
    source: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    mode: Mode = "strict",
    habit: Habit = "few",
) -> Task:
    """Train on one dataset, test on others with their own class names; nothing is refitted."""
    trained, selection = training_part(source, shots, seed, mode=mode, habit=habit)
    found = tuple(_target(source, target, by_key=False) for target in targets)
    return Task("cross-dataset", mode, selection, shots, seed, trained, found)


def base_to_new(dataset: Dataset, shots: int | None, seed: int, *, mode: Mode = "strict", habit: Habit = "few") -> Task:
    """Train on the first half of the classes, test on each half among its own classes.

    The draw is made over all classes first, as published, so the base images are the same as in
    the all-class comparison. With an odd number the base half has one more. Without a test part a
    fifth of each class is held out first.
    """
    dataset = hold_out(dataset)
    drawn, selection = training_part(dataset, shots, seed, mode=mode, habit=habit)
    trained = sorted({item.label for item in dataset.train})
    middle = (len(trained) + 1) // 2
    base, new = trained[:middle], trained[middle:]
    if not new:
        raise UserError(f"{dataset.name} has {len(trained)} class with training images; base-to-new needs 2.")
    source = subset(drawn, base)
    halves = {"base": subset(dataset, base), "new": subset(dataset, new)}
    targets = tuple(_target(source, half, f"{dataset.name} {which}") for which, half in halves.items())
    return Task("base-to-new", mode, selection, shots, seed, source, targets)


def harmonic_mean(base: float, new: float) -> float:
    """Harmonic mean of base and new accuracy; 0 if either is."""
    return 2 * base * new / (base + new) if base and new else 0.0


def subset(dataset: Dataset, labels: Sequence[int]) -> Dataset:
    """The dataset with only these classes, relabelled from 0 in the given order.

    It keeps its name: half of EuroSAT is learned with EuroSAT's recipe.
    """
    number = {label: y for y, label in enumerate(labels)}

    def keep(items: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(Item(item.picture, number[item.label]) for item in items if item.label in number)

    return replace(
        dataset,
        classes=tuple(dataset.classes[y] for y in labels),
        keys=tuple(dataset.keys[y] for y in labels) if dataset.keys else (),
        labels=tuple(dataset.labels[y] for y in labels) if dataset.labels else (),
        train=keep(dataset.train),
        val=keep(dataset.val),
        test=keep(dataset.test),
    )


def training_part(
    dataset: Dataset, shots: int | None, seed: int, *, mode: Mode = "strict", habit: Habit = "few"
) -> tuple[Dataset, str]:
    """The drawn training and validation images, without any test image, and what they are called.

    habit: what a method's official code selects on; only `paper` goes beyond `few`. A dataset
    without a validation part lends min(K, 4) (or K) training images per class that were not drawn.
    """
    if mode not in ("strict", "paper"):
        raise unknown_name("protocol mode", mode, ("strict", "paper"))
    if habit not in _HABITS:
        raise unknown_name("validation habit", habit, _HABITS)
    if mode == "strict" and habit in ("shots", "full"):
        habit = "few"
    drawn = draw_few_shot(dataset, shots, seed)
    val, what = _validation(dataset, drawn, shots, seed, habit)
    return replace(drawn, val=val, test=()), f"{mode}: {what}"


def _validation(
    dataset: Dataset, drawn: Dataset, shots: int | None, seed: int, habit: Habit
) -> tuple[tuple[Item, ...], str]:
    if habit == "none":
        return (), "no validation images"
    if habit == "full" and dataset.val:
        return dataset.val, "the full validation split"
    if shots is None:
        return drawn.val, "the full validation split" if drawn.val else "no validation images"
    per_class = shots if habit == "shots" else min(shots, MOST_VAL_SHOTS)
    if habit == "few" and dataset.val:
        return drawn.val, f"{per_class} validation images per class"
    pool, origin = dataset.val, "validation images"
    if not pool:
        used = {id(item) for item in drawn.train}
        pool, origin = tuple(i for i in dataset.train if id(i) not in used), "undrawn training images"
    rng = random.Random(derive(seed, "validation", dataset.name, shots))
    chosen = draw([item.label for item in pool], per_class, rng)
    return tuple(pool[i] for i in chosen), f"{per_class} {origin} per class" if chosen else "no validation images"


def _target(source: Dataset, target: Dataset, name: str = "", *, by_key: bool = True) -> Target:
    """The target's test part, its classes matched to the source's by key (or by words).

    name: what it is called in results, where not by its dataset's name.
    """
    if not target.test:
        raise UserError(f"{target.name} has no test images.", hint="add a test/ folder, or hold some images out")
    by_key = by_key and bool(source.keys) and bool(target.keys)
    known, wanted = (source.keys, target.keys) if by_key else (source.classes, target.classes)
    number = {name: y for y, name in enumerate(known)}
    from_source = tuple(number.get(name) for name in wanted)
    return Target(name or target.name, target.name, target.classes, target.template, target.test, from_source)
