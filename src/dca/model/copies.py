"""The same image twice where it must not be: in two classes of a fit, or in the training and the test images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dca.core.text import pluralize
from dca.model.records import TrainingImage

# Pairs of images that are given as examples for each pair of classes, and pairs of classes that a warning names.
MOST_EXAMPLES, MOST_DESCRIBED = 3, 3


@dataclass(frozen=True)
class SharedImages:
    """Two classes that hold copies or near-copies of the same images: one of the two labels is wrong.

    Attributes:
        labels: The two classes.
        images: Number of training images of the two that have a copy in the other.
        examples: Short names of the first pairs; the first of each pair has the first label.
    """

    labels: tuple[str, str]
    images: int
    examples: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"labels": list(self.labels), "images": self.images, "examples": [list(pair) for pair in self.examples]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The record of `to_dict`."""
        return cls(tuple(values["labels"]), values["images"], tuple(tuple(pair) for pair in values["examples"]))

    def __str__(self) -> str:
        return f"{' and '.join(self.labels)} ({pluralize(self.images, 'image')}, e.g. {' ~ '.join(self.examples[0])})"


def find_shared_images(
    images: Sequence[TrainingImage], groups: ArrayLike, labels: Sequence[Any]
) -> tuple[SharedImages, ...]:
    """The pairs of classes that hold copies of the same images, those with the most images first.

    Args:
        images: N training images.
        groups: (N,) a number that copies share.
        labels: Label of each class.

    Returns:
        One record per pair of classes.
    """
    members: dict[int, dict[int, list[int]]] = {}  # group -> class -> images
    for index, group in enumerate(np.asarray(groups).tolist()):
        members.setdefault(group, {}).setdefault(images[index].label, []).append(index)
    shared: dict[tuple[int, int], list[tuple[list[int], list[int]]]] = {}
    for by_class in members.values():
        for a, b in combinations(sorted(by_class), 2):
            shared.setdefault((a, b), []).append((by_class[a], by_class[b]))
    found = [
        SharedImages(
            (str(labels[a]), str(labels[b])),
            sum(len(first) + len(second) for first, second in pairs),
            tuple((images[first[0]].name, images[second[0]].name) for first, second in pairs[:MOST_EXAMPLES]),
        )
        for (a, b), pairs in sorted(shared.items())
    ]
    return tuple(sorted(found, key=lambda one: -one.images))


def describe_shared_images(found: Sequence[SharedImages]) -> str:
    """The warning about classes that share images, in one sentence without its end."""
    more = len(found) - MOST_DESCRIBED
    rest = f"; and {pluralize(more, 'more pair')} of classes" if more > 0 else ""
    return (
        "copies or near-copies of the same images are in two classes, so one of their labels is wrong: "
        f"{'; '.join(map(str, found[:MOST_DESCRIBED]))}{rest}; keep each image in one class only and fit again"
    )


def count_seen(training: Iterable[str], contents: Iterable[str]) -> int:
    """How many images are among the training images; both are given by the hashes of their contents."""
    known = set(training)
    return sum(sha256 in known for sha256 in contents)


def describe_seen(seen: int, images: str) -> str:
    """The warning about measured images that the model was trained on. images: all of them, in words."""
    return f"the model was trained on {seen:,} of these {images}; its accuracy on new images may be lower"
