"""Accuracy per class as bars, of one model or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dca.core.text import percent
from dca.plots import style
from dca.plots.style import BLUE, MUTED, ORANGE, PALE, RULE, TEXT, fit_text, new_figure, save_figure
from dca.stats.intervals import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 30
_ROW = 0.36
# Thickness and distance of the bars of a row, by their number; rows are one apart.
_BARS = {1: (0.6, 0.0), 2: (0.36, 0.4), 3: (0.25, 0.28)}


class ClassResult(NamedTuple):
    """Test images of one class: how many there are and how many each model got right.

    zero_shot: None where zero-shot CLIP was not measured. second_model: None if there is none; it is drawn between
    zero-shot CLIP and the adapted model.
    """

    name: str
    images: int
    zero_shot: int | None
    adapted: int
    second_model: int | None = None


def count_correct_by_class(
    labels: ArrayLike,
    zero_shot: ArrayLike | None,
    adapted: ArrayLike,
    classes: Sequence[str],
    second_model: ArrayLike | None = None,
) -> list[ClassResult]:
    """Count the correct predictions per class.

    Args:
        labels: (N,) class of each test image.
        zero_shot: (N,) predictions of zero-shot CLIP; None if it was not measured.
        adapted: (N,) predictions of the adapted model.
        classes: Names of the classes.
        second_model: (N,) predictions of a second model, if there is one.
    """
    truth = np.asarray(labels)

    def right(predicted: ArrayLike, label: int) -> int:
        return int((np.asarray(predicted)[truth == label] == label).sum())

    results = []
    for label, name in enumerate(classes):
        before = None if zero_shot is None else right(zero_shot, label)
        second = None if second_model is None else right(second_model, label)
        results.append(ClassResult(name, int((truth == label).sum()), before, right(adapted, label), second))
    return results


def sum_classes(per_class: Sequence[ClassResult]) -> ClassResult:
    """The sum over all classes that have images."""
    tested = [row for row in per_class if row.images]
    plain_right = [row.zero_shot for row in tested if row.zero_shot is not None]
    second_model = [row.second_model for row in tested if row.second_model is not None]
    return ClassResult(
        f"all {len(tested)} classes",
        sum(row.images for row in tested),
        sum(plain_right) if plain_right else None,
        sum(row.adapted for row in tested),
        sum(second_model) if second_model else None,
    )


def select_hardest(per_class: Sequence[ClassResult], most: int) -> list[ClassResult]:
    """At most `most` classes, those with the lowest adapted accuracy; the best of these first."""
    tested = [row for row in per_class if row.images]
    return sorted(tested, key=lambda row: (row.adapted / row.images, row.name))[:most][::-1]


def plot_accuracies(
    per_class: Sequence[ClassResult], path: Path | str, *, label: str = "DCA", what: str = "test images"
) -> Path:
    """Draw the accuracy of a model, overall and per class, with 95 % intervals.

    Zero-shot CLIP is drawn beside it where the rows have its counts.

    Args:
        per_class: Counts per class, as `count_correct_by_class` gives them.
        path: Where to write the chart, a .png or .svg file.
        label: Name of the model.
        what: What the images are.
    """
    overall, shown = sum_classes(per_class), select_hardest(per_class, MOST_BARS)
    share = overall.adapted / max(1, overall.images)
    tested = sum(row.images > 0 for row in per_class)
    title, below = f"Accuracy {percent(share)}", f"{fit_text(label)} on {overall.images:,} {what}"
    if overall.zero_shot is not None:
        before = overall.zero_shot / max(1, overall.images)
        title = f"{percent(before)} zero-shot, {percent(share)} with {fit_text(label)}"
        below = f"{100 * (share - before):+.1f} points on {overall.images:,} {what}"
    if len(shown) < tested:
        below += f"; the {len(shown)} hardest of {tested} classes"
    height = 1.45 + (_ROW if overall.zero_shot is not None else 0.75 * _ROW) * (len(shown) + 1.4)
    with new_figure(7.4, height) as figure:
        style.add_title(figure, title, below + "; lines are 95 % intervals")
        draw_bars(figure, (0.3, 0.82, 6.8, height - 0.95), overall, shown, [label])
        return save_figure(figure, path)


def draw_bars(
    figure: Figure,
    area: tuple[float, float, float, float],
    overall: ClassResult,
    rows: Sequence[ClassResult],
    labels: Sequence[str],
) -> None:
    """Draw bars inside `area` (left, top, width, height in inches): all classes first, then each class.

    labels: names of the models but zero-shot CLIP, in the order of their bars.
    """
    left, top, width, height = area
    names = style.text_width((fit_text(row.name, 24) for row in (overall, *rows)), 1.9)
    inner = width - names - 0.75
    axes = style.add_axes(figure, left + names, top + 0.3, inner, height - 0.55)
    beside = axes.get_yaxis_transform()
    # The overall bars stand apart from the classes by a gap.
    for y, row in [(-0.4, overall), *((k + 1.0, row) for k, row in enumerate(rows))]:
        whole = row is overall
        models = ((row.zero_shot, PALE), (row.second_model, ORANGE), (row.adapted, BLUE))
        bars = [(right, colour) for right, colour in models if right is not None]
        thick, apart = _BARS[len(bars)]
        for n, (right, colour) in enumerate(bars):
            at = y + apart * (n - (len(bars) - 1) / 2)
            _draw_bar(axes, at, right, row.images, colour, thick=thick, fine=whole)
        axes.text(-2, y, fit_text(row.name, 24), ha="right", va="center", weight="bold" if whole else "normal")
        at = 1 + 0.75 / inner
        axes.text(at, y, f"{row.images:,}", transform=beside, ha="right", va="center", size=8, color=MUTED)
    axes.axhline(0.3, color=RULE, lw=1)
    axes.set(xlim=(0, 104), ylim=(len(rows) + 0.6, -0.95), yticks=[], xticks=[0, 25, 50, 75, 100])
    axes.set_xticklabels(["0", "25", "50", "75", "100 %"])
    axes.grid(axis="x", color=RULE, lw=0.8)
    style.add_text(figure, left + width, top + 0.085, "images", size=8, color=MUTED, ha="right")
    if overall.zero_shot is not None:
        _draw_legend(figure, left + names, top, labels)


def _draw_legend(figure: Figure, left: float, top: float, labels: Sequence[str]) -> None:
    """The colours of zero-shot CLIP and of the models, placed in inches."""
    for words, colour in (("zero-shot", PALE), *zip(labels, (ORANGE, BLUE)[-len(labels) :], strict=True)):
        style.add_text(figure, left, top + 0.06, "■", color=colour, size=10)
        style.add_text(figure, left + 0.15, top + 0.075, fit_text(words, 22))
        left += 0.32 + 0.07 * len(fit_text(words, 22))


def _draw_bar(axes: Axes, y: float, right: int, count: int, colour: str, *, thick: float, fine: bool) -> None:
    """One bar with its interval and its value, with one decimal if `fine`."""
    share = right / max(1, count)
    low, high = wilson_interval(share, count)
    axes.barh(y, 100 * share, height=thick, color=colour)
    axes.plot([100 * low, 100 * high], [y, y], color=TEXT, lw=0.9, alpha=0.75, solid_capstyle="butt")
    look: Any = {"color": BLUE, "weight": "bold"} if colour == BLUE else {"color": MUTED}
    value = f"{100 * share:.1f}" if fine else f"{100 * share:.0f}"
    axes.text(100 * high + 1.2, y, value, va="center", size=7.5, **look)
