"""One image explained: what was seen, where the evidence is, what it could be, and the nearest training images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dca.core.text import percent
from dca.plots import style
from dca.plots.style import BLUE, MUTED, PALE, RULE, fit_text, fit_width, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE, _SMALL, _GAP = 2.2, 0.98, 0.25
# Distance from one small image to the next.
_STEP = _SMALL + 0.55


def plot_explanation(
    image: Any,
    heat: Any,
    top: Sequence[tuple[str, float]],
    nearest: Sequence[tuple[Any, str, float]],
    path: Path | str,
    *,
    target: str,
) -> Path:
    """Draw an image with its heat map, the most probable classes and the nearest training images.

    Args:
        image: The part of the image that the model sees; PIL, or an array (H, W, 3).
        heat: The heat map of the same part.
        top: Names and probabilities of the most probable classes.
        nearest: Image, name and similarity of the nearest training images; may be empty.
        path: Where to write the plot, a .png or .svg file.
        target: Class that the heat map belongs to.
    """
    height = 1.35 + _SIDE + 0.25 + (0.25 + _SMALL + 0.5 if nearest else 0)
    width = 0.6 + 2 * (_SIDE + _GAP) + 2.6
    with new_figure(width, height) as figure:
        name, probability = top[0]
        title = fit_width(name, width - 0.6, style.TITLE, bold=True, frame=f"{{}} ({percent(probability)})")
        below = f"orange parts speak for {fit_text(target, 26)}, blue ones against it"
        style.add_title(figure, title, below)
        for n, (shown, words) in enumerate(
            ((image, "what the model sees"), (heat, f"for {fit_width(target, _SIDE - 0.3, 8)}"))
        ):
            _draw_image(figure, shown, 0.3 + n * (_SIDE + _GAP), 1.2, _SIDE, words)
        _draw_bars(figure, top, 0.3 + 2 * (_SIDE + _GAP), 1.2)
        if nearest:
            _draw_nearest(figure, nearest, 1.2 + _SIDE + 0.5)
        return save_figure(figure, path)


def _draw_image(figure: Figure, image: Any, left: float, top: float, side: float, words: str, below: str = "") -> None:
    """An image in a square, with a line above it and one below."""
    axes = style.add_axes(figure, left, top, side, side)
    axes.imshow(image, interpolation="bicubic")
    axes.set_axis_off()
    style.add_text(figure, left, top - 0.2, words, size=8, color=MUTED)
    if below:
        style.add_text(figure, left, top + side + 0.05, below, size=8)


def _draw_bars(figure: Figure, top: Sequence[tuple[str, float]], left: float, high: float) -> None:
    """The most probable classes, one bar each with its name above it."""
    axes = style.add_axes(figure, left, high, 2.4, _SIDE)
    for n, (name, probability) in enumerate(top):
        axes.barh(n + 0.22, 100, height=0.34, color=RULE)
        axes.barh(n + 0.22, 100 * probability, height=0.34, color=PALE if n else BLUE)
        axes.text(0, n - 0.08, fit_width(name, 2.4 - 0.6, 8.5), va="bottom", size=8.5)
        axes.text(100, n - 0.08, percent(probability), va="bottom", ha="right", size=8.5, color=MUTED)
    axes.set(xlim=(0, 100), ylim=(max(len(top), 4) - 0.4, -0.5), xticks=[], yticks=[])


def _draw_nearest(figure: Figure, nearest: Sequence[tuple[Any, str, float]], top: float) -> None:
    """The nearest training images side by side."""
    style.add_text(figure, 0.3, top - 0.3, "nearest training images, with the cosine of their features", size=8.5)
    for n, (image, name, similarity) in enumerate(nearest):
        left = 0.3 + n * _STEP
        _draw_image(figure, image, left, top, _SMALL, "", f"{fit_width(name, _STEP - 0.1, 8)}\n{similarity:.2f}")
