"""Grids of images with their predictions or doubtful labels, and the page of the demonstration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dca.core.text import format_seconds, percent
from dca.plots import style
from dca.plots.class_bars import ClassResult, draw_bars, select_hardest, sum_classes
from dca.plots.style import GREEN, MUTED, RED, TEXT, fit_text, fit_width, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TILES = 30
_TILE, _GAP, _CAPTION = 1.02, 0.17, 0.33
# Tiles with a sentence below them, and the height of the title of a group of them.
_LARGE, _GROUP = 1.4, 0.33
# Size of such a sentence in points, and the height of its three lines.
_SMALL, _SENTENCE = 7.2, 0.47


class _Tile(NamedTuple):
    """One image with its class, the prediction and its probability."""

    image: Any
    truth: str
    predicted: str
    probability: float

    @property
    def right(self) -> bool:
        return self.truth == self.predicted


def _make_tiles(
    images: Sequence[Any], truths: Sequence[str], predictions: Sequence[str], probabilities: Sequence[float]
) -> list[_Tile]:
    """The four lists as one list of tiles."""
    if not len(images) == len(truths) == len(predictions) == len(probabilities):
        raise ValueError("images, truths, predictions and probabilities differ in length")
    return [_Tile(*four) for four in zip(images, truths, predictions, map(float, probabilities), strict=True)]


def select_informative(truths: Sequence[str], predictions: Sequence[str], probabilities: Sequence[float]) -> list[int]:
    """Select images that are worth a look: the most confident mistakes, then the least confident right answers.

    Args:
        truths: Class name of each image.
        predictions: Predicted class name of each image.
        probabilities: Probability of each predicted class.

    Returns:
        At most 30 indices; a fifth of them is kept for right answers, if there are any.
    """
    indices = range(len(truths))
    wrong = sorted((k for k in indices if truths[k] != predictions[k]), key=lambda k: -probabilities[k])
    right = sorted((k for k in indices if truths[k] == predictions[k]), key=lambda k: probabilities[k])
    kept = wrong[: MOST_TILES - min(len(right), MOST_TILES // 5)]
    return [*kept, *right[: min(MOST_TILES - len(kept), max(MOST_TILES // 5, len(kept)))]]


def plot_selected_predictions(
    images: Sequence[Any],
    truths: Sequence[str],
    predictions: Sequence[str],
    probabilities: Sequence[float],
    path: Path | str,
    *,
    columns: int = 6,
    counts: tuple[int, int] | None = None,
) -> Path:
    """Draw images with their predictions: the most confident mistakes, then the least confident right answers.

    Args:
        images: RGB images of PIL, or arrays (H, W, 3) or (H, W).
        truths: Class name of each image.
        predictions: Predicted class name of each image.
        probabilities: Probability of each predicted class.
        path: Where to write the chart, a .png or .svg file.
        columns: Images per row.
        counts: Mistakes and images in all, if these images were chosen from more.
    """
    tiles = _make_tiles(images, truths, predictions, probabilities)
    chosen = [tiles[k] for k in select_informative(truths, predictions, [tile.probability for tile in tiles])]
    groups = {"mistakes, the surest first": [tile for tile in chosen if not tile.right]}
    groups["right answers, the least sure first"] = [tile for tile in chosen if tile.right]
    wrong, total = counts or (sum(not tile.right for tile in tiles), len(tiles))
    drawn = {title: some for title, some in groups.items() if some}
    columns = max(1, min(columns, max(map(len, drawn.values()), default=1)))
    rows = [math.ceil(len(some) / columns) for some in drawn.values()]
    height = 1.0 + sum(_GROUP + each * (_LARGE + _SENTENCE + _GAP) for each in rows) + 0.1
    with new_figure(max(5.2, 0.6 + columns * (_LARGE + _GAP) - _GAP), height) as figure:
        style.add_title(figure, "Predictions", f"{wrong:,} of {total:,} wrong")
        top = 0.95
        for (title, some), each in zip(drawn.items(), rows, strict=True):
            style.add_text(figure, 0.3, top, f"{title} ({len(some)})", size=9, weight="bold")
            draw_frames(
                figure, 0.3, top + _GROUP - 0.1, list(map(_describe_prediction, some)), columns, _SENTENCE, _LARGE
            )
            top += _GROUP + each * (_LARGE + _SENTENCE + _GAP)
        return save_figure(figure, path)


def _describe_prediction(tile: _Tile) -> _Frame:
    """A tile with a sentence below it, such as "said cat (97 %), really dog", on up to three lines."""
    sure = f"({100 * tile.probability:.0f}\N{NO-BREAK SPACE}%)"
    # Names that fit on a line each: "said" and the one, the probability and "really", the other.
    if tile.right:
        words = f"{fit_width(tile.predicted, _LARGE, _SMALL)} {sure}"
    else:
        said = fit_width(tile.predicted, _LARGE, _SMALL, frame="said {}")
        words = f"{said} {sure}, really {fit_width(tile.truth, _LARGE, _SMALL)}"
    lines = style.wrap_width(words, _LARGE, _SMALL)
    colour = GREEN if tile.right else RED
    return _Frame(tile.image, colour, [(line, {"size": _SMALL, "color": TEXT}) for line in lines])


def draw_tiles(figure: Figure, left: float, top: float, tiles: Sequence[_Tile], columns: int) -> None:
    """Draw framed images in rows, from `left` and `top` in inches; the prediction below each."""
    draw_frames(figure, left, top, [_frame_tile(tile) for tile in tiles], columns)


class _Frame(NamedTuple):
    """One image as it is drawn: its frame, and the lines below it with their look."""

    image: Any
    colour: str
    lines: list[tuple[str, dict[str, Any]]]


def _frame_tile(tile: _Tile) -> _Frame:
    """A tile with its prediction below."""
    colour = GREEN if tile.right else RED
    # The tick and the cross show the same without colour.
    mark = "✓" if tile.right else "✗"
    caption = fit_width(tile.predicted, _TILE, _SMALL, bold=True, frame=f"{mark} {{}}")
    sure = f"{100 * tile.probability:.0f} %"
    below = sure if tile.right else fit_width(tile.truth, _TILE, 7, frame=f"{sure}, is {{}}")
    bold: dict[str, Any] = {"size": _SMALL, "color": colour, "weight": "bold"}
    return _Frame(tile.image, colour, [(caption, bold), (below, {"size": 7, "color": MUTED if tile.right else TEXT})])


def draw_frames(
    figure: Figure,
    left: float,
    top: float,
    frames: Sequence[_Frame],
    columns: int,
    caption: float = _CAPTION,
    side: float = _TILE,
) -> None:
    """Draw framed images in rows, from `left` and `top` in inches.

    caption: height of the lines below each. side: of an image.
    """
    for k, frame in enumerate(frames):
        x = left + (k % columns) * (side + _GAP)
        y = top + (k // columns) * (side + caption + _GAP)
        axes = style.add_axes(figure, x, y, side, side)
        axes.imshow(_crop_square(frame.image), interpolation="antialiased")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, color=frame.colour, linewidth=2.4)
        for line, (words, look) in enumerate(frame.lines):
            style.add_text(figure, x, y + side + 0.06 + 0.14 * line, words, **look)


def plot_doubtful_labels(
    images: Sequence[Any],
    files: Sequence[str],
    given: Sequence[str],
    suggested: Sequence[str],
    probabilities: Sequence[float],
    path: Path | str,
    *,
    found: int,
    of: int,
    columns: int = 8,
) -> Path:
    """Draw images whose labels look wrong, with the given and the suggested label, in the order given.

    Args:
        images: RGB images of PIL, or arrays (H, W, 3) or (H, W).
        files: File name of each image.
        given: Label of each image.
        suggested: Suggested label of each image.
        probabilities: Probability of each suggested label.
        path: Where to write the chart, a .png or .svg file.
        found: Number of doubtful images, of which these are the most doubtful.
        of: Number of images whose labels were checked.
        columns: Images per row.
    """
    frames = []
    for image, file, label, other, p in zip(images, files, given, suggested, probabilities, strict=True):
        suggestion = fit_width(other, _TILE + _GAP / 2, 7.2, bold=True, frame=f"→ {{}} ({p:.2f})")
        lines = [
            (fit_width(label, _TILE, 7), {"size": 7, "color": TEXT}),
            (suggestion, {"size": 7.2, "color": RED, "weight": "bold"}),
            (fit_width(file, _TILE, 6.4), {"size": 6.4, "color": MUTED}),
        ]
        frames.append(_Frame(image, RED, lines))
    columns = max(1, min(columns, len(frames)))
    caption = _CAPTION + 0.14
    width = max(5.4, 0.6 + columns * (_TILE + _GAP) - _GAP)
    with new_figure(width, 1.0 + math.ceil(len(frames) / columns) * (_TILE + caption + _GAP) + 0.1) as figure:
        shown = f"; the {len(frames)} most doubtful" if len(frames) < found else ""
        below = f"{found:,} of {of:,} images{shown}: given → suggested (probability)"
        style.add_title(figure, "Labels to look at", below)
        draw_frames(figure, 0.3, 0.95, frames, columns, caption)
        return save_figure(figure, path)


def _crop_square(image: Any) -> Any:
    """The middle square of an image as an array, grey ones in three channels."""
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top : top + side, left : left + side, :3]


def _interleave_classes(tiles: Sequence[_Tile]) -> list[_Tile]:
    """Tiles in rounds: the first of each class, then the second of each, and so on."""
    turns: dict[str, int] = {}
    keyed = []
    for tile in tiles:
        turn = turns.get(tile.truth, 0)
        turns[tile.truth] = turn + 1
        keyed.append((turn, list(turns).index(tile.truth), tile))
    return [tile for _, _, tile in sorted(keyed, key=lambda one: one[:2])]


def plot_demo(
    per_class: Sequence[ClassResult],
    images: Sequence[Any],
    truths: Sequence[str],
    predictions: Sequence[str],
    probabilities: Sequence[float],
    path: Path | str,
    *,
    labels: Sequence[str] = ("DCA",),
    seconds: Sequence[float] = (),
    shots: int | None = None,
) -> Path:
    """Draw one page with the gain over zero-shot CLIP and predictions of the adapted model.

    Arguments as in `plot_accuracies` and `plot_selected_predictions`. The images are taken in turn from all
    classes in the order given, right or wrong, so that the page shows no selection.

    labels: names of the models but zero-shot CLIP, in the order of their bars; the last one is the adapted one.
    seconds: how long the fit of each took.
    """
    columns, rows = 6, 4
    tiles = _interleave_classes(_make_tiles(images, truths, predictions, probabilities))[: columns * rows]
    height = 1.05 + rows * (_TILE + _CAPTION + _GAP) + 0.1
    left = 6.0
    with new_figure(left + columns * (_TILE + _GAP) - _GAP + 0.3, height) as figure:
        overall = sum_classes(per_class)
        known = [share for share in (overall.zero_shot, overall.second_model, overall.adapted) if share is not None]
        shares = [percent(share.value) for share in known]
        took = [f" in {format_seconds(each)}" for each in seconds] or [""] * len(labels)
        figures = [f"{shares[0]} zero-shot", *map("{} with {}{}".format, shares[1:], map(fit_text, labels), took)]
        seen = f" after {shots} per class" if shots else ""
        below = f"accuracy on {overall.images:,} test images{seen}; lines are 95 % intervals"
        style.add_title(figure, ", ".join(figures), below)
        draw_bars(figure, (0.3, 0.85, left - 0.75, height - 1.0), overall, select_hardest(per_class, 12), labels)
        shown = f"test images in turn: {sum(tile.right for tile in tiles)} of these {len(tiles)} right"
        style.add_text(
            figure,
            left,
            0.55,
            f"{shown}{f' with {fit_text(labels[-1])}' if len(labels) > 1 else ''}",
            size=9,
            color=MUTED,
        )
        draw_tiles(figure, left, 0.95, tiles, columns)
        return save_figure(figure, path)
