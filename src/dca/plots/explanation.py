"""One image explained: what was seen, where the evidence is, what it could be, and the nearest training images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dca.core.text import percent
from dca.plots import style
from dca.plots.style import BLUE, MUTED, PALE, RULE, drawing, plain, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE, _SMALL, _GAP = 2.2, 0.98, 0.25


def explanation(
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
        path: Where to write the picture, a .png or .svg file.
        target: Class that the heat map belongs to.
    """
    height = 1.35 + _SIDE + 0.25 + (0.25 + _SMALL + 0.5 if nearest else 0)
    with drawing(0.6 + 2 * (_SIDE + _GAP) + 2.6, height) as figure:
        name, probability = top[0]
        below = f"orange parts speak for {plain(target, 26)}, blue ones against it"
        style.headline(figure, f"{plain(name, 40)} ({percent(probability)})", below)
        for place, (picture, words) in enumerate(((image, "what the model sees"), (heat, f"for {plain(target, 26)}"))):
            _picture(figure, picture, 0.3 + place * (_SIDE + _GAP), 1.2, _SIDE, words)
        _bars(figure, top, 0.3 + 2 * (_SIDE + _GAP), 1.2)
        style.note(figure, 0.3, 1.2 + _SIDE + 0.08, "orange speaks for the class, blue against it", size=8, color=MUTED)
        if nearest:
            _row(figure, nearest, 1.2 + _SIDE + 0.5)
        return save(figure, path)


def _picture(figure: Figure, picture: Any, left: float, top: float, side: float, words: str, below: str = "") -> None:
    """An image in a square, with a line above it and one below."""
    axes = style.box(figure, left, top, side, side)
    axes.imshow(picture, interpolation="bicubic")
    axes.set_axis_off()
    style.note(figure, left, top - 0.2, words, size=8, color=MUTED)
    if below:
        style.note(figure, left, top + side + 0.05, below, size=8)


def _bars(figure: Figure, top: Sequence[tuple[str, float]], left: float, high: float) -> None:
    """The most probable classes, one bar each with its name above it."""
    axes = style.box(figure, left, high, 2.4, _SIDE)
    for place, (name, probability) in enumerate(top):
        axes.barh(place + 0.22, 100, height=0.34, color=RULE)
        axes.barh(place + 0.22, 100 * probability, height=0.34, color=PALE if place else BLUE)
        axes.text(0, place - 0.08, plain(name, 30), va="bottom", size=8.5)
        axes.text(100, place - 0.08, percent(probability), va="bottom", ha="right", size=8.5, color=MUTED)
    axes.set(xlim=(0, 100), ylim=(max(len(top), 4) - 0.4, -0.5), xticks=[], yticks=[])


def _row(figure: Figure, nearest: Sequence[tuple[Any, str, float]], top: float) -> None:
    """The nearest training images side by side."""
    style.note(figure, 0.3, top - 0.3, "nearest training images, with the cosine of their features", size=8.5)
    for place, (picture, name, similarity) in enumerate(nearest):
        left = 0.3 + place * (_SMALL + 0.55)
        _picture(figure, picture, left, top, _SMALL, "", f"{plain(name, 18)}\n{similarity:.2f}")
