"""Charts about a model: training curves, confusion matrix, calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca.core.text import percent
from dca.plots import style
from dca.plots.style import BLUE, MUTED, PALE, RED, RULE, SERIES, TEXT, fit_text, fit_width, new_figure, save_figure
from dca.stats.calibration import Bins, measure_reliability
from dca.stats.confusion import count_confusions, order_by_error, select_classes
from dca.stats.intervals import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 30
# Bars that stand for fewer images are drawn pale.
FEW = 5


# Training

# Distance in inches from panel to panel, and the part of it that the tick labels take.
_PANEL, _TICKS = 2.75, 0.85
_NOT_LOSSES = {"epoch", "step", "steps", "accuracy", "lr", "learning_rate", "seconds", "time", "left", "eta"}


def plot_training(
    metrics: Sequence[Mapping[str, Any]], path: Path | str, *, term_titles: Mapping[str, str] | None = None
) -> Path:
    """Draw the training accuracy and each loss term by epoch, each on its own scale.

    Args:
        metrics: Rows with `epoch`, `accuracy` (a fraction), `loss` and any further loss terms, beside
            these or in a mapping. Several rows of one epoch are averaged.
        path: Where to write the chart, a .png or .svg file.
        term_titles: Readable names of the loss terms, without their prefix `loss_`.
    """
    epochs, curves = _collect_by_epoch(metrics)
    accuracy = curves.pop("accuracy", None)
    # A single term equals the total: one line is enough.
    if len(curves) == 2:
        curves.pop("loss", None)
    panels = [(name, y) for name, y in curves.items() if np.isfinite(y).any()]
    words = {name: _term_title(name, term_titles or {}) for name, _ in panels}
    below = f"{len(epochs)} {'epoch' if len(epochs) == 1 else 'epochs'} over the training images"
    if terms := [word for name, word in words.items() if name != "loss"]:
        below += f"; loss = {' + '.join(terms)}"
    if accuracy is not None and np.isfinite(accuracy).any():
        panels.insert(0, ("accuracy", accuracy))
    columns = max(2, len(panels) if len(panels) <= 5 else 4)
    rows = max(1, math.ceil(len(panels) / columns))
    with new_figure(0.4 + columns * _PANEL, 0.9 + rows * 2.35) as figure:
        style.add_title(figure, "Training", below)
        for k, (name, y) in enumerate(panels):
            axes = style.add_axes(figure, 0.85 + k % columns * _PANEL, 1.25 + k // columns * 2.35, _PANEL - _TICKS, 1.4)
            colour = {"loss": TEXT, "accuracy": BLUE}.get(name, SERIES[1 + k % (len(SERIES) - 1)])
            _draw_curve(axes, epochs, y, "training accuracy, %" if name == "accuracy" else words[name], colour)
        return save_figure(figure, path)


def _term_title(name: str, term_titles: Mapping[str, str]) -> str:
    """A loss term in words that fit above its curve."""
    bare = name.removeprefix("loss_")
    return fit_text(term_titles.get(bare, bare.replace("_", " ")), 18)


def _draw_curve(axes: Axes, epochs: Sequence[int], y: NDArray[np.float64], words: str, colour: str) -> None:
    """One curve with its title and its last value, in per cent if the title ends with %."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    last = float(y[np.isfinite(y)][-1])
    share = words.endswith("%")
    look: Any = {"marker": "o", "ms": 4} if len(epochs) < 3 else {}
    axes.plot(epochs, 100 * y if share else y, color=colour, lw=1.9, clip_on=False, **look)
    axes.set_title(words, loc="left", size=9, color=colour, weight="bold", pad=8)
    axes.set_title(f"{100 * last:.1f}" if share else f"{last:.3g}", loc="right", size=8.5, color=MUTED, pad=8)
    axes.set_xlabel("epoch")
    axes.grid(axis="y", color=RULE, lw=0.8)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    # A single point would make an empty range.
    axes.set_xlim(epochs[0] - (len(epochs) == 1), epochs[-1])
    if share:
        axes.set(ylim=(0, 100), yticks=[0, 25, 50, 75, 100])


def _collect_by_epoch(metrics: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """Epochs in order and, for each named number, its mean in every epoch (nan where missing)."""
    table: dict[str, dict[int, list[float]]] = {}
    for position, row in enumerate(metrics, start=1):
        epoch = int(row.get("epoch", position))
        for name, value in _flatten(row):
            table.setdefault(name, {}).setdefault(epoch, []).append(value)
    epochs = sorted({epoch for series in table.values() for epoch in series})
    return epochs, {
        name: np.array([np.mean(series.get(epoch, [math.nan])) for epoch in epochs]) for name, series in table.items()
    }


def _flatten(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The accuracy and the losses of a row, those inside mappings included."""
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, Mapping):
            found += _flatten(value)
        elif name == "accuracy" or (name not in _NOT_LOSSES and isinstance(value, int | float)):
            found.append((name, math.nan if value is None else float(value)))
    return found


# Confusion


def plot_confusion(
    matrix: ArrayLike, classes: Sequence[str], path: Path | str, *, missing: Mapping[int, str] | None = None
) -> Path:
    """Draw the confusion matrix, the classes with the highest error rate first.

    Classes that are neither tested nor predicted are left out, but for those of `missing`, which come last.

    Args:
        matrix: (C, C) counts; row = true class, column = predicted class.
        classes: Names of the C classes.
        path: Where to write the chart, a .png or .svg file.
        missing: Class -> why it could not be measured.
    """
    counts = np.asarray(matrix, dtype=int)
    if counts.shape != (len(classes), len(classes)):
        raise ValueError(f"matrix of shape {counts.shape} for {len(classes)} classes")
    ranked, missing = order_by_error(counts), missing or {}
    ranked = [*ranked, *(c for c in missing if c not in ranked)] or list(range(len(counts)))
    order, present = select_classes(ranked, count_confusions(counts), MOST_ROWS), len(ranked)
    images = counts.sum(axis=1)[order]
    shown = counts[np.ix_(order, order)]
    cell = min(0.42, max(0.26, 7.5 / len(order)))
    labels = [fit_width(classes[k], style.LONGEST_NAME, style.TICK) for k in order]
    side, words = cell * len(order), style.column_width(labels, style.TICK)
    names = 0.3 + words
    with new_figure(max(5.0, names + side + 1.4), 1.2 + side + words + 0.1) as figure:
        right, n = int(counts.diagonal().sum()), int(counts.sum())
        below = f"{n - right:,} of {n:,} images wrong; rows: true class, columns: predicted class"
        if len(order) < present:
            below += f"\nthe {len(order)} classes of the most frequent confusions, of {present}"
        for c in list(missing)[:1]:
            rest = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            below += f"\n{fit_text(classes[c], 20)}: {missing[c]}{rest}"
        style.add_title(figure, "Confusion matrix", below)
        axes = style.add_axes(figure, names, 1.2, side, side)
        _draw_cells(axes, shown, np.maximum(1, images), size=7.5 if cell > 0.3 else 6)
        elsewhere = images - shown.sum(axis=1) if len(order) < present else None
        _draw_row_labels(axes, labels, shown.diagonal(), images, elsewhere, cell)
        return save_figure(figure, path)


def _draw_cells(axes: Axes, shown: NDArray[np.int64], total: NDArray[np.int64], *, size: float) -> None:
    """Squares coloured by their share of the row's images: blue on the diagonal, orange off it.

    size: font size of the counts.
    """
    from matplotlib.colors import to_rgb

    share = shown / total[:, None]
    hue = np.where(np.eye(len(shown))[..., None] > 0, to_rgb(BLUE), to_rgb(RED))
    # The square root keeps single mistakes visible beside full cells.
    strength = np.sqrt(share)[..., None] * 0.92
    axes.imshow((1 - strength) * np.array([0.968, 0.972, 0.978]) + strength * hue, interpolation="nearest")
    axes.set_xticks(np.arange(len(shown) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(shown) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="minor", length=0)
    for row, column in np.argwhere(shown):
        colour = "white" if share[row, column] > 0.35 else TEXT
        axes.text(column, row, f"{shown[row, column]}", ha="center", va="center", size=size, color=colour)


def _draw_row_labels(
    axes: Axes,
    labels: Sequence[str],
    right: NDArray[np.int64],
    images: NDArray[np.int64],
    elsewhere: NDArray[np.int64] | None,
    cell: float,
) -> None:
    """Labels on two sides; at the right the accuracy of each row and its predictions outside the chart.

    cell: side of a square in inches.
    """
    axes.set_yticks(range(len(labels)), labels, color=TEXT)
    axes.set_xticks(range(len(labels)), labels, rotation=90, color=TEXT)
    shares = [f"{100 * hit / n:.0f} %" if n else "–" for hit, n in zip(right, images, strict=True)]
    columns = [("correct", 0.55, shares)]
    if elsewhere is not None:
        columns.append(("elsewhere", 1.2, [str(n) if n else "" for n in elsewhere]))
    for title, at, values in columns:
        for row, value in enumerate([title, *values], start=-1):
            axes.text(len(labels) - 0.5 + at / cell, row, value, ha="right", va="center", size=8, color=MUTED)


# Calibration


def plot_reliability(
    confidence: ArrayLike, right: ArrayLike, path: Path | str, *, bins: int | None = None, accuracy: float | None = None
) -> Path:
    """Draw the share of right answers against confidence, with the expected calibration error over 15 bins.

    Args:
        confidence: (N,) probability of the predicted class.
        right: (N,) whether the prediction is correct.
        path: Where to write the chart, a .png or .svg file.
        bins: Number of bars; by default as many as suit the number of images.
        accuracy: The mean over classes, if that is what the model's accuracy is said to be.
    """
    style.require_matplotlib()

    found = measure_reliability(confidence, right, bins)
    table, n = found.bins, int(found.bins.count.sum())
    with new_figure(5.2, 5.75) as figure:
        below = f"mean confidence {percent(found.confidence)}, {percent(found.accuracy)} of {n:,} images right"
        if accuracy is not None and percent(accuracy) != percent(found.accuracy):
            below += f";\nestimated accuracy, mean over classes: {percent(accuracy)}"
        below += f"\nbars: share right, pale below {FEW} images; lines: 95 % intervals; dashed: ideal"
        style.add_title(figure, f"Calibration error (ECE) {found.ece:.3f}", below)
        axes = style.add_axes(figure, 0.75, 1.15, 4.1, 3.0)
        _draw_reliability(axes, table)
        axes.set_ylabel("right, %")
        counts = style.add_axes(figure, 0.75, 4.35, 4.1, 0.8)
        counts.bar(_bin_centers(table), table.count, width=88 / len(table.count), color=PALE)
        counts.set(xlim=(0, 100), xticks=[0, 25, 50, 75, 100], ylabel="images", xlabel="confidence, %")
        counts.set(ylim=(0, 1.25 * max(1, table.count.max())), yticks=[])
        for middle, count in zip(_bin_centers(table), table.count, strict=True):
            if count:
                counts.text(middle, count, f"{count:,}", ha="center", va="bottom", size=7, color=MUTED)
        return save_figure(figure, path)


def _bin_centers(table: Bins) -> NDArray[np.float64]:
    """Centre of each bin in percent."""
    return 100 * (np.arange(len(table.count)) + 0.5) / len(table.count)


def _draw_reliability(axes: Axes, table: Bins) -> None:
    """Accuracy of each bin with its interval, and the diagonal of perfect calibration."""
    axes.plot([0, 100], [0, 100], color=MUTED, lw=1, ls=(0, (4, 3)), zorder=3)
    for middle, count, right in zip(_bin_centers(table), table.count, table.right, strict=True):
        if count == 0:
            continue
        low, high = wilson_interval(right / count, count)
        few = count < FEW
        # A bin in which nothing is right still shows a thin bar.
        height = max(0.8, 100 * right / count)
        axes.bar(middle, height, width=88 / len(table.count), color=BLUE, alpha=0.4 if few else 1)
        axes.plot([middle, middle], [100 * low, 100 * high], color=TEXT, lw=0.9, alpha=0.25 if few else 0.75)
        ink = TEXT if few or height < 9 else "white"
        axes.text(middle, 1.5, f"{100 * right / count:.0f}", ha="center", va="bottom", size=7, color=ink)
    axes.set(xlim=(0, 100), ylim=(0, 102), xticks=[0, 25, 50, 75, 100], yticks=[0, 25, 50, 75, 100])
    axes.set_xticklabels([])
    axes.grid(axis="y", color=RULE, lw=0.8)
