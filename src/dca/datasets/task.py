"""What a fit is given: images to train on, and targets to test on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dca.core.choices import Rules
from dca.core.errors import UserError
from dca.core.hints import hold_out
from dca.datasets.classes import find_key_positions, match_labels
from dca.datasets.dataset import Dataset, LabelledImage


@dataclass(frozen=True)
class Target:
    """Images to test on, and their classes.

    Attributes:
        name: What the target is called in results.
        dataset: Name of the public dataset that the images are from, or "".
        labels: Label of each class.
        names: Words for each class.
        template: Zero-shot sentence with `{}` for the class name.
        test: The images.
        from_source: For each class the index of the same class in training, so that what was learned
            about it can be reused, or None if training had no such class.
        together: Whether the images are classified together, without their labels, instead of each by itself.
    """

    name: str
    dataset: str
    labels: tuple[Any, ...]
    names: tuple[str, ...]
    template: str
    test: tuple[LabelledImage, ...]
    from_source: tuple[int | None, ...]
    together: bool = False

    @property
    def carries_over(self) -> bool:
        """Whether every class was trained."""
        return None not in self.from_source


@dataclass(frozen=True)
class Task:
    """Train on `source` and test on `targets`.

    Attributes:
        rules: "strict" or "paper".
        selected_on: Which validation images a method may choose its options on, in words.
        shots: Training images per class; None for all.
        seed: Seed of the draw.
        source: The drawn training and validation images; its test part is empty, so that no method can see one.
        targets: What to test on; may be empty.
    """

    rules: Rules
    selected_on: str
    shots: int | None
    seed: int
    source: Dataset
    targets: tuple[Target, ...]


def make_target(source: Dataset, target: Dataset, name: str = "", *, by_key: bool = True) -> Target:
    """The test part of a dataset as a target, its classes matched to those of the source.

    Args:
        source: What is trained on.
        target: What is tested on.
        name: What the target is called in results; by default the name of its dataset.
        by_key: Match classes by key where both datasets have keys. False for unrelated datasets, whose keys (numbers,
            for example) may be equal by chance: classes are then matched by label.

    Returns:
        The target.

    Raises:
        UserError: If there are no test images.
    """
    if not target.test:
        raise UserError(f"{target.name} has no test images.", hint=["add a test/ folder", hold_out(0.2)])
    if by_key and source.keys and target.keys:
        matched = find_key_positions(target.keys, source.keys)
    else:
        matched = match_labels(target.labels, target.names, source.labels, source.names)
    return Target(
        name or target.name, target.public, target.labels, target.names, target.template, target.test, matched
    )
