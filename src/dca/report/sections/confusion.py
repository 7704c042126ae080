"""What is taken for what: a matrix of the classes with the most errors, the most frequent pairs, and an overview."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dca.report.page import Section
from dca.report.reported_model import ReportedModel, UnseenPredictions
from dca.report.svg import drawing, element, rect
from dca.stats.confusion import count_confusions, order_by_error, select_classes

# Classes in the matrix: as many as fit on a phone. With more classes, the frequent pairs and an overview follow.
MOST, PAIRS = 12, 15
# Images behind the cells, and pixels of each: they bound the size of the page.
MOST_IMAGES, SIDE = 240, 72

Counts = NDArray[np.int64]


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """The matrix, its cells linked to their images."""
    predictions, labels = reported.predictions, reported.labels
    if predictions is None:
        return "No predictions for images that the model has not seen."
    if predictions.right.all():
        return "There is no mistake to show."
    counts = predictions.confusion(len(labels))
    order, pairs = order_by_error(counts), count_confusions(counts)
    many = len(order) > MOST
    shown = select_classes(order, pairs, MOST)
    behind = _collect_images(reported, predictions, [(a, b) for a, b, _ in pairs])
    linked = {(row["a"], row["b"]) for row in behind}
    return {
        "missing": [(labels[c], why) for c, why in predictions.missing.items()],
        "names": [labels[c] for c in shown],
        "rows": [_describe_row(counts, labels, c, shown, linked) for c in shown],
        "classes": len(order),
        "many": many,
        "pairs": [(labels[a], labels[b], n, a, b, (a, b) in linked) for a, b, n in pairs[:PAIRS]] if many else [],
        "overview": draw_overview(counts, cluster_classes(counts, order), labels) if many else "",
        "behind": behind,
    }


def cluster_classes(counts: Counts, order: Sequence[int]) -> list[int]:
    """The classes so that those which are confused stand together: each follows the one it is most confused with."""
    wrong = counts - np.diag(counts.diagonal())
    mutual = wrong + wrong.T
    left, chain = list(order), list[int]()
    tie = np.zeros(len(counts))
    while left:
        # Confusions with recent classes count most, so that a chain stays inside its group.
        following = max(left, key=lambda c: (tie[c], -left.index(c)))
        left.remove(following)
        chain.append(following)
        tie = 0.5 * tie + mutual[following]
    return chain


def _describe_row(
    counts: Counts, labels: Sequence[str], c: int, shown: Sequence[int], linked: set[tuple[int, int]]
) -> dict[str, Any]:
    """One row of the matrix: cells with a strength from 0 to 1."""
    total = int(counts[c].sum())
    cells = [
        {
            "n": int(counts[c, k]),
            "hit": c == k,
            # The square root keeps single images visible.
            "strength": round(0.85 * math.sqrt(counts[c, k] / total), 2) if total else 0,
            "link": f"pair-{c}-{k}" if (c, k) in linked else "",
            "said": labels[k],
        }
        for k in shown
    ]
    elsewhere = total - int(counts[c, list(shown)].sum())
    share = f"{100 * counts[c, c] / total:.0f} %" if total else "–"
    return {"name": labels[c], "cells": cells, "share": share, "elsewhere": elsewhere, "n": total}


def _collect_images(
    reported: ReportedModel, predictions: UnseenPredictions, pairs: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """The images of each pair, the surest first, as long as there is room on the page."""
    by_pair: dict[tuple[int, int], list[int]] = {pair: [] for pair in pairs}
    for n in predictions.mistakes:
        by_pair[int(predictions.truth[n]), int(predictions.predicted[n])].append(n)
    room, kept = MOST_IMAGES, dict[tuple[int, int], list[int]]()
    for pair, numbers in by_pair.items():
        if len(numbers) <= room:
            kept[pair], room = numbers, room - len(numbers)
    flat = [n for numbers in kept.values() for n in numbers]
    thumbnails = dict(zip(flat, reported.thumbnails(flat, SIDE), strict=True))
    return [
        {
            "a": a,
            "b": b,
            "really": reported.labels[a],
            "said": reported.labels[b],
            "images": [(thumbnails[n], predictions.names[n], float(predictions.confidence[n])) for n in numbers],
        }
        for (a, b), numbers in kept.items()
    ]


def draw_overview(counts: Counts, order: Sequence[int], labels: Sequence[str]) -> Markup:
    """All classes as small squares, blue on the diagonal and orange off it; a square names itself when pointed at."""
    position, size = {c: n for n, c in enumerate(order)}, float(len(order))
    total = np.maximum(counts.sum(axis=1), 1)
    parts = [rect(0, 0, size, size, "field")]
    for a, b in np.argwhere(counts):
        share = float(counts[a, b] / total[a])
        said = f"really {labels[a]}, said {labels[b]}: {counts[a, b]} of {total[a]}"
        square = {"x": float(position[int(b)]), "y": float(position[int(a)]), "width": 1, "height": 1}
        look = {"class_": "hit" if a == b else "miss", "opacity": round(0.25 + 0.75 * math.sqrt(share), 2)}
        parts.append(element("rect", element("title", said), **square, **look))
    title = f"Confusion matrix of all {len(order)} classes; confused classes stand together"
    return drawing(size, size, title, *parts, class_="chart overview")


SECTION = Section("confusion", "What is taken for what", build)
