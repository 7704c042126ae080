"""Outlines: closed curves as arrays of points, of which every motif is made.

A motif is defined in a box of [-1, 1] x [-1, 1] with y pointing down. Outlines are (n, 2) arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Points = NDArray[np.float64]
Colour = tuple[float, float, float]


class Patch(NamedTuple):
    """One filled outline of a motif.

    alpha: 1 is opaque.
    raised: whether it is on top like a sheet of paper, so that the light catches its edge.
    """

    points: Points
    colour: Colour
    alpha: float = 1.0
    raised: bool = True


def mark(points: Points, colour: Colour, alpha: float = 1.0) -> Patch:
    """A patch that is painted on: flat, without an edge of its own."""
    return Patch(points, colour, alpha, raised=False)


def polygon(*corners: tuple[float, float]) -> Points:
    """Straight-edged outline through the corners."""
    return np.array(corners, dtype=float)


def box(left: float, top: float, right: float, bottom: float) -> Points:
    """Upright rectangle."""
    return polygon((left, top), (right, top), (right, bottom), (left, bottom))


def ellipse(
    x: float, y: float, rx: float, ry: float, *, turn: float = 0.0, arc: tuple[float, float] = (0.0, 1.0)
) -> Points:
    """Ellipse, or the part of it between two fractions of a full turn (0 is right, 0.25 is down)."""
    angle = 2 * np.pi * np.linspace(arc[0], arc[1], 36)
    return moved(np.stack([rx * np.cos(angle), ry * np.sin(angle)], axis=1), x, y, turn=turn)


def smooth(corners: ArrayLike, *, closed: bool = True, steps: int = 6) -> Points:
    """Curve through all corners (Catmull-Rom).

    corners: (n, 2). Returns (n * steps, 2) when closed, else ((n - 1) * steps + 1, 2).
    """
    p = np.asarray(corners, dtype=float)
    # An open curve is continued straight beyond its ends, a closed one by its other end.
    ends = (p[-1:], p[:2]) if closed else (2 * p[:1] - p[1:2], 2 * p[-1:] - p[-2:-1])
    p = np.concatenate([ends[0], p, ends[1]])
    before, start, end, after = p[:-3, None], p[1:-2, None], p[2:-1, None], p[3:, None]
    t = np.linspace(0, 1, steps, endpoint=False)[None, :, None]
    curve = start + 0.5 * t * (
        end - before + t * (2 * before - 5 * start + 4 * end - after + t * (3 * (start - end) + after - before))
    )
    curve = curve.reshape(-1, 2)
    return np.asarray(curve if closed else np.concatenate([curve, p[-2:-1]]))


def both_sides(right: Sequence[tuple[float, float]]) -> Points:
    """Corners of a shape that is symmetric about x = 0, from those with x >= 0, top to bottom."""
    p = np.asarray(right, dtype=float)
    inner = p[(p[:, 0] > 0)][::-1]
    return np.concatenate([p, inner * (-1, 1)])


def ribbon(path: ArrayLike, width: float | tuple[float, float]) -> Points:
    """Outline of a stroke along an open path; its width may change from start to end."""
    p = np.asarray(path, dtype=float)
    along = np.gradient(p, axis=0)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    first, last = (width, width) if isinstance(width, float | int) else width
    side = along[:, ::-1] * (-1, 1) * np.linspace(first, last, len(p))[:, None] / 2
    return np.concatenate([p + side, (p - side)[::-1]])


def stroke(*corners: tuple[float, float], width: float | tuple[float, float]) -> Points:
    """Smooth stroke through the corners."""
    return ribbon(smooth(corners, closed=False), width)


def moved(points: Points, x: float = 0.0, y: float = 0.0, *, turn: float = 0.0, scale: float = 1.0) -> Points:
    """Outline scaled, turned about the origin (in full turns, clockwise) and shifted."""
    c, s = np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)
    return np.asarray(points @ (scale * np.array([[c, s], [-s, c]])) + (x, y))


def flipped(points: Points) -> Points:
    """Mirror image about x = 0."""
    return np.asarray(points * (-1, 1))
