"""Charts of how good a model is: accuracy, training, confusion, calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca.plots import style
from dca.plots.stats import Bins, binned, wilson
from dca.plots.style import BLUE, MUTED, PALE, RED, RULE, SERIES, TEXT, drawing, percent, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 30
MOST_ROWS = 30
# Bars of fewer images are drawn pale.
FEW = 5
_ROW = 0.36


class ClassResult(NamedTuple):
    """Test images of one class: how many there were and how many each model got right."""

    name: str
    images: int
    zero_shot: int
    adapted: int


def class_results(
    labels: ArrayLike, zero_shot: ArrayLike, adapted: ArrayLike, classes: Sequence[str]
) -> list[ClassResult]:
    """Count per class what two models got right.

    labels, zero_shot, adapted: (N,) label of each test image and what each model said.
    """
    truth, before, after = (np.asarray(one) for one in (labels, zero_shot, adapted))
    results = []
    for label, name in enumerate(classes):
        own = truth == label
        results.append(
            ClassResult(name, int(own.sum()), int((before[own] == label).sum()), int((after[own] == label).sum()))
        )
    return results


def everything(zero_shot: float, adapted: float, per_class: Sequence[ClassResult]) -> ClassResult:
    """All classes together."""
    total = sum(row.images for row in per_class)
    return ClassResult(f"all {len(per_class)} classes", total, round(zero_shot * total), round(adapted * total))


def hardest(per_class: Sequence[ClassResult], most: int) -> list[ClassResult]:
    """At most `most` classes, those with the lowest adapted accuracy; best of them first."""
    tested = [row for row in per_class if row.images]
    return sorted(tested, key=lambda row: (row.adapted / row.images, row.name))[:most][::-1]


def accuracy_bars(
    zero_shot: float, adapted: float, per_class: Sequence[ClassResult], path: Path | str, *, label: str = "DCA"
) -> Path:
    """Draw zero-shot against adapted accuracy, overall and per class, with 95 % intervals.

    zero_shot, adapted: accuracies over all test images, as fractions.
    label: name of the adapted model.
    """
    overall, shown = everything(zero_shot, adapted, per_class), hardest(per_class, MOST_BARS)
    height = 1.45 + _ROW * (len(shown) + 1.4)
    below = f"{100 * (adapted - zero_shot):+.1f} points on {overall.images:,} test images"
    if len(shown) < len(per_class):
        below += f"; the {len(shown)} hardest of {len(per_class)} classes"
    with drawing(7.4, height) as figure:
        title = f"{percent(zero_shot)} zero-shot, {percent(adapted)} with {plain(label)}"
        style.headline(figure, title, below + "; lines are 95 % intervals")
        bars_panel(figure, (0.3, 0.82, 6.8, height - 0.95), overall, shown, label)
        return save(figure, path)


def bars_panel(
    figure: Figure,
    place: tuple[float, float, float, float],
    overall: ClassResult,
    rows: Sequence[ClassResult],
    label: str,
) -> None:
    """Pairs of bars inside `place` (left, top, width, height in inches): all classes first, then each."""
    left, top, width, height = place
    names = style.room((plain(row.name, 24) for row in (overall, *rows)), 1.9)
    inner = width - names - 0.75
    axes = style.box(figure, left + names, top + 0.3, inner, height - 0.55)
    beside = axes.get_yaxis_transform()
    # The overall pair stands apart from the classes by a gap.
    for y, row in [(-0.4, overall), *((k + 1.0, row) for k, row in enumerate(rows))]:
        whole = row is overall
        _bar(axes, y - 0.2, row.zero_shot, row.images, PALE, fine=whole)
        _bar(axes, y + 0.2, row.adapted, row.images, BLUE, fine=whole)
        axes.text(-2, y, plain(row.name, 24), ha="right", va="center", weight="bold" if whole else "normal")
        at = 1 + 0.75 / inner
        axes.text(at, y, f"{row.images:,}", transform=beside, ha="right", va="center", size=8, color=MUTED)
    axes.axhline(0.3, color=RULE, lw=1)
    axes.set(xlim=(0, 104), ylim=(len(rows) + 0.6, -0.95), yticks=[], xticks=[0, 25, 50, 75, 100])
    axes.set_xticklabels(["0", "25", "50", "75", "100 %"])
    axes.grid(axis="x", color=RULE, lw=0.8)
    style.note(figure, left + width, top + 0.085, "images", size=8, color=MUTED, ha="right")
    for shift, words, colour in ((0.0, "zero-shot", PALE), (0.95, plain(label, 18), BLUE)):
        style.note(figure, left + names + shift, top + 0.06, "■", color=colour, size=10)
        style.note(figure, left + names + shift + 0.15, top + 0.075, words)


def _bar(axes: Axes, y: float, right: int, count: int, colour: str, *, fine: bool) -> None:
    """One bar with its interval and its value, with a decimal when `fine`."""
    share = right / max(1, count)
    low, high = wilson(right, count)
    axes.barh(y, 100 * share, height=0.36, color=colour)
    axes.plot([100 * low, 100 * high], [y, y], color=TEXT, lw=0.9, alpha=0.75, solid_capstyle="butt")
    look: Any = {"color": BLUE, "weight": "bold"} if colour == BLUE else {"color": MUTED}
    value = f"{100 * share:.1f}" if fine else f"{100 * share:.0f}"
    axes.text(100 * high + 1.2, y, value, va="center", size=7.5, **look)


# Training

_NOT_LOSSES = {"epoch", "step", "steps", "accuracy", "lr", "learning_rate", "seconds", "time", "left", "eta"}


def training_curves(metrics: Sequence[Mapping[str, Any]], path: Path | str) -> Path:
    """Draw the loss terms and the training accuracy by epoch.

    metrics: rows with `epoch`, `accuracy` (a fraction), `loss` and any further named terms, either
    beside them or in a mapping. Several rows of one epoch are averaged.
    """
    epochs, curves = _by_epoch(metrics)
    accuracy = curves.pop("accuracy", None)
    if len(curves) == 2:
        # A single term is the total: one line says it.
        curves.pop("loss", None)
    with drawing(8.6, 3.6) as figure:
        last = ""
        if accuracy is not None and math.isfinite(accuracy[-1]):
            last = f", training accuracy {percent(float(accuracy[-1]))} at the end"
        style.headline(figure, "Training", f"{len(epochs)} {'epoch' if len(epochs) == 1 else 'epochs'}{last}")
        wide = 2.95 if accuracy is not None else 7.2
        losses = style.box(figure, 0.65, 1.15, wide, 1.95)
        _lines(losses, epochs, curves)
        losses.set_title("loss", loc="left", size=9, color=MUTED)
        if accuracy is not None:
            axes = style.box(figure, 5.15, 1.15, 2.95, 1.95)
            _lines(axes, epochs, {"": 100 * accuracy})
            axes.set_title("training accuracy, %", loc="left", size=9, color=MUTED)
            axes.set_ylim(0, 102)
        return save(figure, path)


def _by_epoch(metrics: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """Epochs in order and, for each named number, its mean in every epoch (nan where missing)."""
    table: dict[str, dict[int, list[float]]] = {}
    for position, row in enumerate(metrics, start=1):
        epoch = int(row.get("epoch", position))
        for name, value in _flat(row):
            table.setdefault(name, {}).setdefault(epoch, []).append(value)
    epochs = sorted({epoch for series in table.values() for epoch in series})
    return epochs, {
        name: np.array([np.mean(series.get(epoch, [math.nan])) for epoch in epochs]) for name, series in table.items()
    }


def _flat(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The accuracy and the losses of a row, those inside mappings included."""
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, Mapping):
            found += _flat(value)
        elif name == "accuracy" or (name not in _NOT_LOSSES and isinstance(value, int | float)):
            found.append((name, math.nan if value is None else float(value)))
    return found


def _lines(axes: Axes, epochs: Sequence[int], curves: Mapping[str, NDArray[np.float64]]) -> None:
    """One line per curve, named at its end; the total loss stands out."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    known = {name: y for name, y in curves.items() if np.isfinite(y).any()}
    values = np.concatenate(list(known.values()) or [np.zeros(1)])
    values = values[np.isfinite(values)]
    if len(known) > 1 and values.min() > 0 and values.max() > 30 * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3) if values.max() < 1000 * values.min() else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    ends: list[tuple[float, str, str]] = []
    for k, (name, y) in enumerate(known.items()):
        total = name in ("loss", "total")
        colour = TEXT if total else SERIES[k % len(SERIES)]
        axes.plot(
            epochs, y, color=colour, lw=2.2 if total else 1.7, marker="o" if len(epochs) < 3 else None, clip_on=False
        )
        if name:
            ends.append((float(y[np.isfinite(y)][-1]), name, colour))
    axes.grid(axis="y", color=RULE, lw=0.8)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if len(epochs) > 1:
        axes.set_xlim(epochs[0] - 0.02 * len(epochs), epochs[-1])
    elif epochs:
        axes.set(xlim=(epochs[0] - 1, epochs[0]), xticks=epochs)
    _name_ends(axes, ends)


def _name_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right ends of the lines, pushed apart where they would overlap."""
    axes.get_ylim()  # settles the limits, which the transform below reads but does not bring up to date
    to_height = axes.transData + axes.transAxes.inverted()
    heights = [to_height.transform((0, y))[1] for y, _, _ in ends]
    floor = -math.inf
    for k in sorted(range(len(ends)), key=heights.__getitem__):
        floor = max(heights[k], floor + 0.085)
        words = plain(ends[k][1].removeprefix("loss_").replace("_", " "), 18)
        axes.text(1.02, floor, words, transform=axes.transAxes, va="center", size=8.5, color=ends[k][2])


# Confusion


def confusion(matrix: ArrayLike, classes: Sequence[str], path: Path | str) -> Path:
    """Draw who is taken for whom, the classes with most errors first.

    matrix: (C, C) counts, row = truth, column = prediction.
    """
    counts = np.asarray(matrix, dtype=int)
    if counts.shape != (len(classes), len(classes)):
        raise ValueError(f"matrix of shape {counts.shape} for {len(classes)} classes")
    total = np.maximum(1, counts.sum(axis=1))
    # A class without images has no errors to show and comes last.
    error = np.where(counts.sum(axis=1) > 0, 1 - counts.diagonal() / total, -np.inf)
    order = np.lexsort((np.arange(len(classes)), -error))[:MOST_ROWS]
    shown = counts[np.ix_(order, order)]
    rest = counts[order].sum(axis=1) - shown.sum(axis=1)
    cell = min(0.42, max(0.26, 7.5 / len(order)))
    side, words = cell * len(order), style.room((plain(classes[k], 20) for k in order), 1.7)
    names = 0.3 + words
    with drawing(max(5.0, names + side + 1.4), 1.2 + side + words + 0.2) as figure:
        right, n = int(counts.diagonal().sum()), int(counts.sum())
        below = f"{n - right:,} of {n:,} wrong; row: what it is, column: what was said"
        if len(order) < len(classes):
            below += f"\nthe {len(order)} classes with most errors, of {len(classes)}"
        style.headline(figure, "Confusion", below)
        axes = style.box(figure, names, 1.2, side, side)
        _cells(axes, shown, total[order], annotate=cell > 0.27)
        _rows(axes, [classes[k] for k in order], 1 - error[order], rest if len(order) < len(classes) else None, cell)
        return save(figure, path)


def _cells(axes: Axes, shown: NDArray[np.int64], total: NDArray[np.int64], *, annotate: bool) -> None:
    """Squares coloured by share of the row: blue on the diagonal, orange off it, so that errors stand out."""
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
    if annotate:
        for row, column in np.argwhere(shown):
            colour = "white" if share[row, column] > 0.35 else TEXT
            axes.text(column, row, f"{shown[row, column]}", ha="center", va="center", size=7.5, color=colour)


def _rows(
    axes: Axes, names: Sequence[str], accuracy: NDArray[np.float64], rest: NDArray[np.int64] | None, cell: float
) -> None:
    """Names on two sides, and at the right each row's accuracy and how many went outside the picture.

    cell: side of a square in inches.
    """
    labels = [plain(name, 20) for name in names]
    axes.set_yticks(range(len(labels)), labels, color=TEXT)
    axes.set_xticks(range(len(labels)), labels, rotation=90, color=TEXT)
    columns = [("right", 0.52, [f"{100 * share:.0f} %" if share <= 1 else "–" for share in accuracy])]
    if rest is not None:
        columns.append(("elsewhere", 1.2, [str(n) if n else "" for n in rest]))
    for title, at, values in columns:
        for row, value in enumerate([title, *values], start=-1):
            axes.text(len(labels) - 0.5 + at / cell, row, value, ha="right", va="center", size=8, color=MUTED)


# Calibration


def reliability(probabilities: ArrayLike, correct: ArrayLike, path: Path | str, *, bins: int = 15) -> Path:
    """Draw accuracy against confidence, with the calibration error.

    probabilities: (N,) probability of the class that was said. correct: (N,) whether it was right.
    """
    style.need_matplotlib()
    from matplotlib.ticker import MaxNLocator

    table = binned(probabilities, correct, bins)
    n = int(table.count.sum())
    with drawing(5.2, 5.7) as figure:
        mean, share = (float(np.dot(table.count, table.confidence)) / max(1, n), float(table.right.sum()) / max(1, n))
        below = f"{n:,} images in {bins} bins, pale under {FEW}; says {percent(mean)}, is right {percent(share)}"
        style.headline(figure, f"Calibration error (ECE) {table.ece:.3f}", below)
        axes = style.box(figure, 0.75, 1.0, 4.1, 3.0)
        _reliability_bars(axes, table)
        axes.set_ylabel("accuracy, %")
        counts = style.box(figure, 0.75, 4.2, 4.1, 0.8)
        counts.bar(_middles(table), table.count, width=88 / bins, color=PALE)
        counts.set(xlim=(0, 100), xticks=[0, 25, 50, 75, 100], ylabel="images", xlabel="confidence, %")
        counts.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        counts.grid(axis="y", color=RULE, lw=0.8)
        return save(figure, path)


def _middles(table: Bins) -> NDArray[np.float64]:
    """Centre of each bin in percent."""
    return 100 * (np.arange(len(table.count)) + 0.5) / len(table.count)


def _reliability_bars(axes: Axes, table: Bins) -> None:
    """Accuracy of each bin with its interval, against the diagonal of honest confidence."""
    axes.plot([0, 100], [0, 100], color=MUTED, lw=1, ls=(0, (4, 3)), zorder=3)
    axes.text(1.5, 5, "as sure as right", rotation=35.5, rotation_mode="anchor", size=7.5, color=MUTED)
    for middle, count, right in zip(_middles(table), table.count, table.right, strict=True):
        if count == 0:
            continue
        low, high = wilson(right, count)
        share = 100 * right / count
        axes.bar(middle, share, width=88 / len(table.count), color=BLUE, alpha=1 if count >= FEW else 0.4)
        axes.plot([middle, middle], [100 * low, 100 * high], color=TEXT, lw=0.9, alpha=0.75)
    axes.set(xlim=(0, 100), ylim=(0, 102), xticks=[0, 25, 50, 75, 100], yticks=[0, 25, 50, 75, 100])
    axes.set_xticklabels([])
    axes.grid(axis="y", color=RULE, lw=0.8)
