"""Which class of one dataset or model is which class of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dca.core.wording import fold


def match_labels(
    labels: Sequence[Any], names: Sequence[str], known_labels: Sequence[Any], known_names: Sequence[str]
) -> tuple[int | None, ...]:
    """For each class its index among the known ones, or None.

    Classes are matched by label (as it is, as text, then folded), and those left over by folded name.
    What two known classes share identifies neither, and a class already matched is not matched again.

    >>> match_labels(("dog", "bkr"), ("dog", "bike rack"), (0, 1, 2), ("Bike_rack", "cat", "Dog"))
    (2, 0)
    """
    folded = [fold(name) for name in names]
    found: list[int | None] = [None] * len(labels)
    rounds: tuple[tuple[Sequence[Any], Sequence[Any]], ...] = (
        (labels, known_labels),
        _each(str, labels, known_labels),
        _each(lambda label: fold(str(label)), labels, known_labels),
        (folded, [fold(name) for name in known_names]),
    )
    for wanted, known in rounds:
        taken = set(found)
        index = {value: place for value, place in _index(known).items() if place not in taken}
        found = [index.get(key) if place is None else place for key, place in zip(wanted, found, strict=True)]
    return tuple(found)


def match_keys(keys: Sequence[str], known: Sequence[str]) -> tuple[int | None, ...]:
    """For each key its index among the known ones, or None.

    >>> match_keys(("n2", "n9"), ("n1", "n2"))
    (1, None)
    """
    index = _index(known)
    return tuple(index.get(key) for key in keys)


def _each(
    function: Callable[[Any], str], wanted: Sequence[Any], known: Sequence[Any]
) -> tuple[Sequence[str], Sequence[str]]:
    return [function(label) for label in wanted], [function(label) for label in known]


def _index(known: Sequence[Any]) -> dict[Any, int]:
    """Place of every value that occurs once."""
    count = Counter(known)
    return {value: place for place, value in enumerate(known) if count[value] == 1}
