"""Accuracy per class as bars, of one model or of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dca.core.text import percent
from dca.plots import style
from dca.plots.style import BLUE, MUTED, ORANGE, PALE, RULE, TEXT, fit_text, fit_width, new_figure, save_figure
from dca.stats.intervals import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS, MOST_MISSING = 30, 5
_ROW = 0.36
# Thickness and distance of the bars of a row, by their number; rows are one apart.
_BARS = {1: (0.6, 0.0), 2: (0.36, 0.4), 3: (0.25, 0.28)}


class ClassResult(NamedTuple):
    """Test images of one class: how many there are and how many each model got right.

    zero_shot: None where zero-shot CLIP was not measured. second_model: None if there is none; it is drawn between
    zero-shot CLIP and the adapted model. missing: why a class without images is shown all the same; "" leaves it out.
    """

    name: str
    images: int
    zero_shot: int | None
    adapted: int
    second_model: int | None = None
    missing: str = ""


class Share(NamedTuple):
    """An accuracy, a fraction, and its 95 % interval."""

    value: float
    low: float
    high: float


class BarGroup(NamedTuple):
    """The bars of one row: accuracies on the same images, None for a model that is not there."""

    name: str
    images: int
    zero_shot: Share | None
    adapted: Share | None
    second_model: Share | None = None
    missing: str = ""


def count_correct_by_class(
    labels: ArrayLike,
    zero_shot: ArrayLike | None,
    adapted: ArrayLike,
    classes: Sequence[str],
    second_model: ArrayLike | None = None,
    missing: Mapping[int, str] | None = None,
) -> list[ClassResult]:
    """Count the correct predictions per class.

    Args:
        labels: (N,) class of each test image.
        zero_shot: (N,) predictions of zero-shot CLIP; None if it was not measured.
        adapted: (N,) predictions of the adapted model.
        classes: Names of the classes.
        second_model: (N,) predictions of a second model, if there is one.
        missing: Class -> why it has no image here, for classes that are to be shown all the same.
    """
    truth = np.asarray(labels)

    def right(predicted: ArrayLike, label: int) -> int:
        return int((np.asarray(predicted)[truth == label] == label).sum())

    results = []
    for label, name in enumerate(classes):
        before = None if zero_shot is None else right(zero_shot, label)
        second = None if second_model is None else right(second_model, label)
        images, why = int((truth == label).sum()), (missing or {}).get(label, "")
        results.append(ClassResult(name, images, before, right(adapted, label), second, "" if images else why))
    return results


def sum_classes(per_class: Sequence[ClassResult]) -> BarGroup:
    """Share of the images of all classes that each model got right."""
    tested = [row for row in per_class if row.images]
    images = sum(row.images for row in tested)
    plain_right = [row.zero_shot for row in tested if row.zero_shot is not None]
    second_model = [row.second_model for row in tested if row.second_model is not None]
    return BarGroup(
        f"all {len(tested)} classes",
        images,
        _share(sum(plain_right), images) if plain_right else None,
        _share(sum(row.adapted for row in tested), images),
        _share(sum(second_model), images) if second_model else None,
    )


def mean_over_classes(per_class: Sequence[ClassResult]) -> float:
    """Mean of the accuracies of the adapted model on the classes that have images; 0 for none."""
    shares = [row.adapted / row.images for row in per_class if row.images]
    return sum(shares) / max(1, len(shares))


def _share(right: int, images: int) -> Share:
    value = right / max(1, images)
    return Share(value, *wilson_interval(value, images))


def _to_bars(row: ClassResult) -> BarGroup:
    """The bars of one class."""
    zero_shot, adapted, second = (
        None if right is None or row.missing else _share(right, row.images)
        for right in (row.zero_shot, row.adapted, row.second_model)
    )
    return BarGroup(row.name, row.images, zero_shot, adapted, second, row.missing)


def select_hardest(per_class: Sequence[ClassResult], most: int) -> list[ClassResult]:
    """At most `most` classes, those with the lowest adapted accuracy; the best of these first.

    Classes that could not be measured come last; with many of them only the first `MOST_MISSING`.
    """
    tested = [row for row in per_class if row.images]
    missing = [row for row in per_class if row.missing][:MOST_MISSING]
    hardest = sorted(tested, key=lambda row: (row.adapted / row.images, row.name))[: most - len(missing)]
    return [*hardest[::-1], *missing]


def plot_accuracies(
    per_class: Sequence[ClassResult],
    path: Path | str,
    *,
    label: str = "DCA",
    what: str = "test images",
    estimate: Share | None = None,
) -> Path:
    """Draw the accuracy of a model, overall and per class, with 95 % intervals.

    Zero-shot CLIP is drawn beside it where the rows have its counts. The accuracy is the share of all images, beside
    the mean over classes where that differs; `estimate` replaces both.

    Args:
        per_class: Counts per class, as `count_correct_by_class` gives them.
        path: Where to write the chart, a .png or .svg file.
        label: Name of the model.
        what: What the images are.
        estimate: The estimated accuracy on new images, a mean over classes, if that is to be shown.
    """
    overall, shown = sum_classes(per_class), select_hardest(per_class, MOST_BARS)
    assert overall.adapted is not None
    share, tested = overall.adapted.value, sum(row.images > 0 for row in per_class)
    title, below = f"Accuracy {percent(share)}", f"{fit_text(label)} on {overall.images:,} {what}"
    if overall.zero_shot is not None:
        before = overall.zero_shot.value
        title = f"{percent(before)} zero-shot, {percent(share)} with {fit_text(label)}"
        below = f"{100 * (share - before):+.1f} points on {overall.images:,} {what}"
    if estimate is not None:
        title = f"Estimated accuracy {percent(estimate.value)}"
        overall = BarGroup("mean over classes", overall.images, None, estimate)
        below += "; mean over classes"
    elif percent(mean := mean_over_classes(per_class)) != percent(share):
        below += f"; mean over classes {percent(mean)}"
    measured = sum(row.images > 0 for row in shown)
    if measured < tested:
        below += f"; the {measured} hardest of {tested} classes"
    height = 1.45 + (_ROW if overall.zero_shot is not None else 0.75 * _ROW) * (len(shown) + 1.4)
    with new_figure(7.4, height) as figure:
        style.add_title(figure, title, below + "; lines are 95 % intervals")
        draw_bars(figure, (0.3, 0.82, 6.8, height - 0.95), overall, shown, [label])
        return save_figure(figure, path)


def draw_bars(
    figure: Figure,
    area: tuple[float, float, float, float],
    overall: BarGroup,
    classes: Sequence[ClassResult],
    labels: Sequence[str],
) -> None:
    """Draw bars inside `area` (left, top, width, height in inches): all classes first, then each class.

    labels: names of the models but zero-shot CLIP, in the order of their bars.
    """
    rows = [_to_bars(row) for row in classes]
    left, top, width, height = area
    whole_label = fit_width(overall.name, style.LONGEST_NAME, style.BODY, bold=True)
    labels_of_rows = [fit_width(row.name, style.LONGEST_NAME, style.BODY) for row in rows]
    names = max(
        style.column_width([whole_label], style.BODY, bold=True), style.column_width(labels_of_rows, style.BODY)
    )
    inner = width - names - 0.75
    axes = style.add_axes(figure, left + names, top + 0.3, inner, height - 0.55)
    beside = axes.get_yaxis_transform()
    # The overall bars stand apart from the classes by a gap.
    numbered = [(k + 1.0, row, name) for k, (row, name) in enumerate(zip(rows, labels_of_rows, strict=True))]
    for y, row, name in [(-0.4, overall, whole_label), *numbered]:
        whole = row is overall
        models = ((row.zero_shot, PALE), (row.second_model, ORANGE), (row.adapted, BLUE))
        bars = [(share, colour) for share, colour in models if share is not None]
        thick, apart = _BARS.get(len(bars), (0.0, 0.0))
        for n, (share, colour) in enumerate(bars):
            at = y + apart * (n - (len(bars) - 1) / 2)
            _draw_bar(axes, at, share, colour, thick=thick, fine=whole)
        axes.text(1, y, row.missing, va="center", size=8, color=MUTED)
        axes.text(-2, y, name, ha="right", va="center", weight="bold" if whole else "normal")
        at = 1 + 0.75 / inner
        axes.text(
            at,
            y,
            "" if row.missing else f"{row.images:,}",
            transform=beside,
            ha="right",
            va="center",
            size=8,
            color=MUTED,
        )
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


def _draw_bar(axes: Axes, y: float, share: Share, colour: str, *, thick: float, fine: bool) -> None:
    """One bar with its interval and its value, with one decimal if `fine`."""
    axes.barh(y, 100 * share.value, height=thick, color=colour)
    axes.plot([100 * share.low, 100 * share.high], [y, y], color=TEXT, lw=0.9, alpha=0.75, solid_capstyle="butt")
    look: Any = {"color": BLUE, "weight": "bold"} if colour == BLUE else {"color": MUTED}
    value = f"{100 * share.value:.1f}" if fine else f"{100 * share.value:.0f}"
    axes.text(100 * share.high + 1.2, y, value, va="center", size=7.5, **look)
