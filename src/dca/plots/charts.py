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

# Inches from panel to panel, and how many of them belong to the numbers at the left of one.
_PANEL, _TICKS = 2.75, 0.85
_NOT_LOSSES = {"epoch", "step", "steps", "accuracy", "lr", "learning_rate", "seconds", "time", "left", "eta"}


def training_curves(
    metrics: Sequence[Mapping[str, Any]], path: Path | str, *, term_words: Mapping[str, str] | None = None
) -> Path:
    """Draw the training accuracy and each loss term by epoch, each on its own scale.

    metrics: rows with `epoch`, `accuracy` (a fraction), `loss` and any further named terms, either
    beside them or in a mapping. Several rows of one epoch are averaged.
    term_words: what the names of terms mean, without their prefix `loss_`.
    """
    epochs, curves = _by_epoch(metrics)
    accuracy = curves.pop("accuracy", None)
    # A single term is the total: one line says it.
    if len(curves) == 2:
        curves.pop("loss", None)
    panels = [(name, y) for name, y in curves.items() if np.isfinite(y).any()]
    words = {name: _term(name, term_words or {}) for name, _ in panels}
    below = f"{len(epochs)} {'epoch' if len(epochs) == 1 else 'epochs'} over the training images"
    if terms := [word for name, word in words.items() if name != "loss"]:
        below += f"; loss = {' + '.join(terms)}"
    if accuracy is not None and np.isfinite(accuracy).any():
        panels.insert(0, ("accuracy", accuracy))
    columns = max(2, len(panels) if len(panels) <= 5 else 4)
    rows = max(1, math.ceil(len(panels) / columns))
    with drawing(0.4 + columns * _PANEL, 0.9 + rows * 2.35) as figure:
        style.headline(figure, "Training", below)
        for k, (name, y) in enumerate(panels):
            axes = style.box(figure, 0.85 + k % columns * _PANEL, 1.25 + k // columns * 2.35, _PANEL - _TICKS, 1.4)
            colour = {"loss": TEXT, "accuracy": BLUE}.get(name, SERIES[1 + k % (len(SERIES) - 1)])
            _curve(axes, epochs, y, "training accuracy, %" if name == "accuracy" else words[name], colour)
        return save(figure, path)


def _term(name: str, term_words: Mapping[str, str]) -> str:
    """A loss term in words that fit above its curve."""
    bare = name.removeprefix("loss_")
    return plain(term_words.get(bare, bare.replace("_", " ")), 18)


def _curve(axes: Axes, epochs: Sequence[int], y: NDArray[np.float64], words: str, colour: str) -> None:
    """One line with what it shows, in per cent where the words say so, and where it ended."""
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
    # One point has no width of its own.
    axes.set_xlim(epochs[0] - (len(epochs) == 1), epochs[-1])
    if share:
        axes.set(ylim=(0, 100), yticks=[0, 25, 50, 75, 100])


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
