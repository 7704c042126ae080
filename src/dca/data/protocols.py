"""The four protocols in which few-shot methods are compared.

A protocol turns datasets into a `Task`: what may be trained on, and what is tested. The training
part of a task has no test images, so a method cannot see one.

What a method may choose its settings on depends on the selection. With "strict" (the default) it is
never more than min(K, 4) validation images per class. With "paper" it is what the official code of
the method used (K per class, or the full validation split); a search on test images, which some
official code does, is not offered. `Task.selected_on` says in words which images were used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from dca.core import actions
from dca.core.errors import UserError, unknown_name
from dca.core.seeds import derive
from dca.core.wording import counted
from dca.data.dataset import Dataset, Item
from dca.data.matching import match_keys, match_labels
from dca.data.splits import MOST_VAL_SHOTS, draw, hold_out
from dca.data.splits import few_shot as draw_few_shot

Protocol = Literal["few-shot", "base-to-new", "cross-dataset", "domain-shift"]
Selection = Literal["strict", "paper"]
# What the official code of a method chooses its settings on: nothing, min(K, 4) or K validation
# images per class, or the full validation split.
ValidationUse = Literal["none", "few", "shots", "full"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
_NO_VALIDATION = "no validation images"


@dataclass(frozen=True)
class Target:
    """Images to test on, and their classes.

    Args:
        name: what the target is called in results.
        dataset: name of the public dataset that the images are from, or "".
        labels: label of each class.
        names: words for each class.
        template: zero-shot sentence with `{}` for the class name.
        test: the images.
        from_source: for each class the index of the same class in training, so that what was learned
            about it can be reused, or None if training had no such class.
    """

    name: str
    dataset: str
    labels: tuple[Any, ...]
    names: tuple[str, ...]
    template: str
    test: tuple[Item, ...]
    from_source: tuple[int | None, ...]

    @property
    def carries_over(self) -> bool:
        """Whether every class was trained."""
        return None not in self.from_source


@dataclass(frozen=True)
class Task:
    """One comparison: train on `source`, whose test part is empty, and test on `targets`.

    selected_on: which validation images settings may be chosen on, in words.
    """

    protocol: Protocol
    selection: Selection
    selected_on: str
    shots: int | None
    seed: int
    source: Dataset
    targets: tuple[Target, ...]


def make_task(
    protocol: Protocol,
    dataset: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    selection: Selection = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """The task of any protocol.

    Args:
        protocol: "few-shot", "base-to-new", "cross-dataset" or "domain-shift".
        dataset: what to train on.
        targets: what else to test on, for "cross-dataset" and "domain-shift" only.
        shots: training images per class; None for all.
        seed: seed of the draw.
        selection: which validation images may be used, "strict" or "paper".
        validation: which ones the method's official code uses.

    Raises:
        UserError: if the protocol is unknown, or targets are missing or superfluous.

    >>> from dca.data.sources.sample import load_sample
    >>> task = make_task("base-to-new", load_sample(per_class_train=2, per_class_test=1), [], 1, 1)
    >>> [(target.name, len(target.names)) for target in task.targets]
    [('sample base', 5), ('sample new', 5)]
    """
    if protocol not in get_args(Protocol):
        raise unknown_name("protocol", protocol, get_args(Protocol))
    if protocol in ("few-shot", "base-to-new"):
        if targets:
            raise UserError(
                f"{protocol} tests on {dataset.name} itself, but {counted(len(targets), 'target', 'are')} given.",
                details=[target.name for target in targets],
                hint="leave out the targets, or use cross-dataset or domain-shift",
            )
        alone = few_shot if protocol == "few-shot" else base_to_new
        return alone(dataset, shots, seed, selection=selection, validation=validation)
    if not targets:
        raise UserError(
            f"{protocol} needs at least one other dataset to test on.", hint="name one or more target datasets"
        )
    onto = cross_dataset if protocol == "cross-dataset" else domain_shift
    return onto(dataset, targets, shots, seed, selection=selection, validation=validation)


def few_shot(
    dataset: Dataset,
    shots: int | None,
    seed: int,
    *,
    selection: Selection = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on K images per class, test on the whole test part.

    Without a test part a fifth of each class is held out first, the same for every seed.
    """
    dataset = hold_out(dataset)
    source, words = training_part(dataset, shots, seed, selection=selection, validation=validation)
    return Task("few-shot", selection, words, shots, seed, source, (_target(dataset, dataset),))


def base_to_new(
    dataset: Dataset,
    shots: int | None,
    seed: int,
    *,
    selection: Selection = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on the first half of the classes, test on each half among its own classes.

    Images are drawn for all classes first, as published, so the base images are the same as in the
    all-class comparison. With an odd number of classes the base half has one more. Without a test
    part a fifth of each class is held out first.
    """
    dataset = hold_out(dataset)
    drawn, words = training_part(dataset, shots, seed, selection=selection, validation=validation)
    trained = sorted({item.label for item in dataset.train})
    middle = (len(trained) + 1) // 2
    base, new = trained[:middle], trained[middle:]
    if not new:
        raise UserError(
            f"{dataset.name} has {counted(len(trained), 'class')} with training images; base-to-new needs 2."
        )
    source = subset(drawn, base)
    halves = {"base": subset(dataset, base), "new": subset(dataset, new)}
    targets = tuple(_target(source, half, f"{dataset.name} {which}") for which, half in halves.items())
    return Task("base-to-new", selection, words, shots, seed, source, targets)


def cross_dataset(
    source: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    selection: Selection = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on one dataset, test on others with their own class names; nothing is refitted."""
    trained, words = training_part(source, shots, seed, selection=selection, validation=validation)
    found = tuple(_target(source, target, by_key=False) for target in targets)
    return Task("cross-dataset", selection, words, shots, seed, trained, found)


def domain_shift(
    source: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    selection: Selection = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on one dataset, test on it and on shifted versions of it.

    A target is classified among its own classes only. Raises UserError if a target has a class that
    the source lacks.
    """
    trained, words = training_part(source, shots, seed, selection=selection, validation=validation)
    found = [_target(source, source)] if source.test else []
    found += [_target(source, target) for target in targets]
    unknown = [
        f"{target.name}: {label}"
        for target in found
        for label, index in zip(target.labels, target.from_source, strict=True)
        if index is None
    ]
    if unknown:
        raise UserError(
            f"{counted(len(unknown), 'target class', 'are')} not among the classes of {source.name}.",
            details=unknown,
            hint="domain shift needs the same classes; for other classes use cross-dataset",
        )
    return Task("domain-shift", selection, words, shots, seed, trained, tuple(found))


def harmonic_mean(base: float, new: float) -> float:
    """Harmonic mean of base and new accuracy; 0 if either is.

    >>> round(harmonic_mean(0.8, 0.6), 4)
    0.6857
    """
    return 2 * base * new / (base + new) if base and new else 0.0


def subset(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """The dataset with only the classes at these indices, renumbered from 0 in the given order.

    It stays the same public dataset: half of EuroSAT is learned with the settings for EuroSAT.
    """
    number = {label: y for y, label in enumerate(classes)}

    def keep(items: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(Item(item.image, number[item.label]) for item in items if item.label in number)

    return replace(
        dataset,
        labels=tuple(dataset.labels[y] for y in classes),
        names=tuple(dataset.names[y] for y in classes),
        keys=tuple(dataset.keys[y] for y in classes) if dataset.keys else (),
        train=keep(dataset.train),
        val=keep(dataset.val),
        test=keep(dataset.test),
    )


def training_part(
    dataset: Dataset,
    shots: int | None,
    seed: int,
    *,
    selection: Selection = "strict",
    validation: ValidationUse = "few",
) -> tuple[Dataset, str]:
    """The drawn training and validation images without any test image, and the latter in words.

    A dataset without a validation part uses min(K, 4), or K, training images per class that were not drawn.

    Args:
        dataset: what to draw from.
        shots: training images per class; None for all.
        seed: seed of the draw.
        selection: with "strict", `validation` "shots" and "full" count as "few".
        validation: what the official code of the method chooses its settings on.
    """
    if selection not in get_args(Selection):
        raise unknown_name("selection", selection, get_args(Selection))
    if validation not in get_args(ValidationUse):
        raise unknown_name("use of validation images", validation, get_args(ValidationUse))
    if selection == "strict" and validation in ("shots", "full"):
        validation = "few"
    drawn = draw_few_shot(dataset, shots, seed)
    val, words = _validation(dataset, drawn, shots, seed, validation)
    return replace(drawn, val=val, test=()), f"{selection}: {words}"


def _validation(
    dataset: Dataset, drawn: Dataset, shots: int | None, seed: int, validation: ValidationUse
) -> tuple[tuple[Item, ...], str]:
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
    rng = random.Random(derive(seed, "validation", dataset.public, "all" if shots is None else shots))
    chosen = draw([item.label for item in pool], per_class, rng)
    return tuple(pool[i] for i in chosen), f"{per_class} {origin} per class" if chosen else _NO_VALIDATION


def _target(source: Dataset, target: Dataset, name: str = "", *, by_key: bool = True) -> Target:
    """The test part of a target, its classes matched to the source's by key if both have keys, else by label.

    name: what it is called in results, if not by the name of its dataset. by_key: False for unrelated
    datasets, whose keys (numbers, say) may be equal by chance.
    """
    if not target.test:
        raise UserError(f"{target.name} has no test images.", hint=["add a test/ folder", actions.hold_out(0.2)])
    if by_key and source.keys and target.keys:
        matched = match_keys(target.keys, source.keys)
    else:
        matched = match_labels(target.labels, target.names, source.labels, source.names)
    return Target(
        name or target.name, target.public, target.labels, target.names, target.template, target.test, matched
    )
