"""The five protocols in which few-shot methods are compared, and the part of a dataset that is measured on.

A protocol turns datasets into a `Task`: what may be trained on, and what is tested. The training part of a task has no
test images, so a method cannot see one. In all but "transductive" a test image is classified by itself, whatever the
others are.

What a method may choose its options on depends on the rules of the comparison. With "strict" (the default) it is never
more than min(K, 4) validation images per class. With "paper" it is what the official code of the method used (K per
class, or the full validation split); a search on test images, which some official code does, is not offered.
`Task.selected_on` says in words which images were used.

To choose options between methods (`dca study select`), validation images take the place of the test images. Methods
that select something, such as the α of Tip-Adapter, do it on min(K, 4) validation images per class. These stay theirs:
what is measured on is the rest of the validation part, the same images for every method. So a fit is exactly that of
an experiment on the test part, and no image is both selected on and measured on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from dca.core import hints
from dca.core.choices import PROTOCOLS, ProtocolName, Rules, ValidationUse
from dca.core.errors import UserError, unknown_name
from dca.core.hints import omit
from dca.core.text import pluralize
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_training_part, hold_out
from dca.datasets.task import Task, make_target

__all__ = [
    "base_to_new",
    "cross_dataset",
    "domain_shift",
    "few_shot",
    "harmonic_mean",
    "make_task",
    "subset",
    "transductive",
    "use_validation_as_test",
]


def make_task(
    protocol: ProtocolName,
    dataset: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    rules: Rules = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """The task of any protocol.

    Args:
        protocol: "few-shot", "base-to-new", "cross-dataset", "domain-shift" or "transductive".
        dataset: What to train on.
        targets: What else to test on, for "cross-dataset" and "domain-shift" only.
        shots, seed, rules, validation: As for `few_shot`.

    Returns:
        The task.

    Raises:
        UserError: If the protocol is unknown, or targets are missing or superfluous.

    Example:
        >>> from dca.datasets.sample import load_sample
        >>> task = make_task("base-to-new", load_sample(per_class_train=2, per_class_test=1, size=32), [], 1, 1)
        >>> [target.name for target in task.targets]
        ['sample base', 'sample new']
    """
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if make_alone := _WITHOUT_TARGETS.get(protocol):
        if targets:
            raise UserError(
                f"{protocol} tests on {dataset.name} itself, but {pluralize(len(targets), 'target', 'are')} given.",
                details=[target.name for target in targets],
                hint=["leave out the targets", hints.choose_protocol("cross-dataset", "domain-shift")],
            )
        return make_alone(dataset, shots, seed, rules=rules, validation=validation)
    if not targets:
        raise UserError(f"{protocol} needs at least one other dataset to test on.", hint=hints.choose_targets())
    make_onto = cross_dataset if protocol == "cross-dataset" else domain_shift
    return make_onto(dataset, targets, shots, seed, rules=rules, validation=validation)


def few_shot(
    dataset: Dataset,
    shots: int | None,
    seed: int,
    *,
    rules: Rules = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on K images per class, test on the whole test part.

    Without a test part a fifth of each class is held out first, the same for every seed.

    Args:
        dataset: What to train and test on.
        shots: Training images per class, K; None for all. A class with fewer images gives all it has.
        seed: Seed of the draw.
        rules: Which validation images may be used: "strict" or "paper"; see `dca.datasets.draws.draw_training_part`.
        validation: Which ones the official code of the method uses: "none", "few", "shots" or "full".

    Returns:
        The task, with one target.

    Raises:
        UserError: If `shots` is below 1, a word is unknown, or there are no test images.

    Example:
        >>> from dca.study import protocols
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=1, size=32)
        >>> task = protocols.few_shot(sample, shots=2, seed=1)
        >>> len(task.source.train), task.selected_on
        (20, 'strict: 2 undrawn training images per class')
    """
    dataset = hold_out(dataset)
    source, words = draw_training_part(dataset, shots, seed, rules=rules, validation=validation)
    return Task(rules, words, shots, seed, source, (make_target(dataset, dataset),))


def transductive(
    dataset: Dataset,
    shots: int | None,
    seed: int,
    *,
    rules: Rules = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train as for `few_shot`, and classify all images of the test part together, without their labels.

    The predictions of the model, one for each image, are where it starts (`dca.methods.shared.transduction`).

    Args:
        dataset, shots, seed, rules, validation: As for `few_shot`.

    Returns:
        The task of `few_shot`, with the target "NAME together".

    Raises:
        UserError: As for `few_shot`.

    Example:
        >>> from dca.study import protocols
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=1, size=32)
        >>> [(target.name, target.together) for target in protocols.transductive(sample, shots=2, seed=1).targets]
        [('sample together', True)]
    """
    task = few_shot(dataset, shots, seed, rules=rules, validation=validation)
    (target,) = task.targets
    return replace(task, targets=(replace(target, name=f"{target.name} together", together=True),))


def base_to_new(
    dataset: Dataset,
    shots: int | None,
    seed: int,
    *,
    rules: Rules = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on the first half of the classes, test on each half among its own classes.

    Images are drawn for all classes first, as published, so the base images are the same as in the
    all-class comparison. With an odd number of classes the base half has one more. Without a test
    part a fifth of each class is held out first.

    Args:
        dataset: What to train and test on; at least 2 classes.
        shots, seed, rules, validation: As for `few_shot`.

    Returns:
        The task, with the targets "NAME base" and "NAME new".

    Raises:
        UserError: If `shots` is below 1, a word is unknown, or there are no test images.

    Example:
        >>> from dca.study import protocols
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=1, size=32)
        >>> protocols.base_to_new(sample, shots=2, seed=1).source.labels
        ('butterfly', 'cactus', 'fish', 'guitar', 'hot air balloon')
    """
    dataset = hold_out(dataset)
    drawn, words = draw_training_part(dataset, shots, seed, rules=rules, validation=validation)
    trained = sorted({item.label for item in dataset.train})
    middle = (len(trained) + 1) // 2
    base, new = trained[:middle], trained[middle:]
    if not new:
        raise UserError(
            f"{dataset.name} has {pluralize(len(trained), 'class')} with training images; base-to-new needs 2."
        )
    source = subset(drawn, base)
    halves = {"base": subset(dataset, base), "new": subset(dataset, new)}
    targets = tuple(make_target(source, half, f"{dataset.name} {which}") for which, half in halves.items())
    return Task(rules, words, shots, seed, source, targets)


def cross_dataset(
    source: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    rules: Rules = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on one dataset, test on others with their own class names; nothing is refitted.

    Args:
        source: What to train on.
        targets: What to test on.
        shots, seed, rules, validation: As for `few_shot`.

    Returns:
        The task, with one target for each dataset of `targets`.

    Raises:
        UserError: If `shots` is below 1, a word is unknown, or there are no test images.

    Example:
        >>> from dca.study import protocols
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=1, size=32)
        >>> task = protocols.cross_dataset(sample, [protocols.subset(sample, [3, 1])], shots=2, seed=1)
        >>> task.targets[0].labels, task.targets[0].from_source
        (('guitar', 'cactus'), (3, 1))
    """
    trained, words = draw_training_part(source, shots, seed, rules=rules, validation=validation)
    matched = tuple(make_target(source, target, by_key=False) for target in targets)
    return Task(rules, words, shots, seed, trained, matched)


def domain_shift(
    source: Dataset,
    targets: Sequence[Dataset],
    shots: int | None,
    seed: int,
    *,
    rules: Rules = "strict",
    validation: ValidationUse = "few",
) -> Task:
    """Train on one dataset, test on it and on shifted versions of it.

    A target is classified among its own classes only.

    Args:
        source: What to train on.
        targets: What else to test on; their classes must be classes of `source`.
        shots, seed, rules, validation: As for `few_shot`.

    Returns:
        The task; the first target is the test part of `source`, if it has one.

    Raises:
        UserError: If a target has a class that the source lacks, and as for `few_shot`.

    Example:
        >>> from dca.study import protocols
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=1, size=32)
        >>> task = protocols.domain_shift(sample, [protocols.subset(sample, [3, 1])], shots=2, seed=1)
        >>> [len(target.labels) for target in task.targets]
        [10, 2]
    """
    trained, words = draw_training_part(source, shots, seed, rules=rules, validation=validation)
    tested = [make_target(source, source)] if source.test else []
    tested += [make_target(source, target) for target in targets]
    unknown = [
        f"{target.name}: {label}"
        for target in tested
        for label, index in zip(target.labels, target.from_source, strict=True)
        if index is None
    ]
    if unknown:
        raise UserError(
            f"{pluralize(len(unknown), 'target class', 'are')} not among the classes of {source.name}.",
            details=unknown,
            hint=["give a target with the same classes", hints.choose_protocol("cross-dataset")],
        )
    return Task(rules, words, shots, seed, trained, tuple(tested))


# The protocols that test on the dataset itself.
_WITHOUT_TARGETS = MappingProxyType({"few-shot": few_shot, "base-to-new": base_to_new, "transductive": transductive})


def harmonic_mean(base: float, new: float) -> float:
    """Harmonic mean of two accuracies.

    Args:
        base: Accuracy on the base classes.
        new: Accuracy on the new classes.

    Returns:
        2 base new / (base + new); 0 if one of them is 0.

    Example:
        >>> round(harmonic_mean(0.8, 0.6), 4)
        0.6857
    """
    return 2 * base * new / (base + new) if base and new else 0.0


def subset(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """The dataset with only the classes at these indices, renumbered from 0 in the given order.

    It stays the same public dataset: half of EuroSAT is learned with the options for EuroSAT.

    Args:
        dataset: What to take classes from.
        classes: Indices of the classes, in the new order.

    Returns:
        The dataset with all images of these classes.

    Example:
        >>> from dca.study import protocols
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=1, size=32)
        >>> protocols.subset(sample, [3, 1]).labels
        ('guitar', 'cactus')
    """
    number = {label: y for y, label in enumerate(classes)}

    def keep(items: Sequence[LabelledImage]) -> tuple[LabelledImage, ...]:
        return tuple(LabelledImage(item.image, number[item.label]) for item in items if item.label in number)

    return replace(
        dataset,
        labels=tuple(dataset.labels[y] for y in classes),
        names=tuple(dataset.names[y] for y in classes),
        keys=tuple(dataset.keys[y] for y in classes) if dataset.keys else (),
        train=keep(dataset.train),
        val=keep(dataset.val),
        test=keep(dataset.test),
    )


def use_validation_as_test(dataset: Dataset, shots: int | None, seed: int) -> Dataset:
    """The dataset with validation images in place of its test images, none of which is left.

    Args:
        dataset: The dataset; its validation part stays whole, because draws are made from it.
        shots: Training images per class, K; None for all.
        seed: Seed of the draw.

    Returns:
        The dataset whose test part are the validation images without the min(K, 4) per class of this draw. Files that
        are not there are left out, and `split` says how many: copies of public datasets often lack some.

    Raises:
        UserError: If no image is left to measure on.

    Example:
        >>> from dataclasses import replace
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=3, per_class_test=2, size=32)
        >>> len(use_validation_as_test(replace(sample, val=sample.test), shots=1, seed=1).test)
        10
    """
    drawn, _ = draw_training_part(dataset, shots, seed, validation="few")
    used = {_identity_of(item) for item in (*drawn.train, *drawn.val)}
    rest = [item for item in dataset.val if _identity_of(item) not in used]
    there = tuple(item for item in rest if not isinstance(item.image, Path) or item.image.is_file())
    if not there:
        what = "has no validation part" if not dataset.val else "has no validation image that no method selects on"
        problem = f"{dataset.name} {what}, so nothing can be measured on it."
        raise UserError(problem, hint=omit("measured_on"))
    absent = f", {len(rest) - len(there):,} are not there" if len(there) < len(rest) else ""
    words = f"measured on {pluralize(len(there), 'validation image')} that no method selects on{absent}"
    return replace(dataset, test=there, split=f"{dataset.split}; {words}" if dataset.split else words)


def _identity_of(item: LabelledImage) -> Hashable:
    """The file of an image; an image in memory is itself."""
    return item.image if isinstance(item.image, Path) else id(item.image)
