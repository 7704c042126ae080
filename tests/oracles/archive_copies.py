"""Groups of copies, literally: every pair in float64, and images that are reached from each other."""

from __future__ import annotations

from collections.abc import Sequence


def group_copies(features: Sequence[Sequence[float]], threshold: float) -> list[list[int]]:
    """Groups of two images and more, each in ascending order, in the order of their first images."""
    alike = [
        [sum(x * y for x, y in zip(one, other, strict=True)) >= threshold for other in features] for one in features
    ]
    seen, groups = set[int](), list[list[int]]()
    for start in range(len(features)):
        if start in seen:
            continue
        group, waiting = {start}, [start]
        while waiting:
            image = waiting.pop()
            new = {other for other, close in enumerate(alike[image]) if close} - group
            group |= new
            waiting += new
        seen |= group
        if len(group) > 1:
            groups.append(sorted(group))
    return groups
