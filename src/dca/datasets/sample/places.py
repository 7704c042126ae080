"""Where things are found: skies, seas, meadows, tables, studios.

Several classes share each place, and any class may turn up anywhere, so a place hints at a class
as it does in photographs, and never gives it away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dca.datasets.sample.outline import Colour, Patch, Points, box, ellipse, mark, moved, polygon, smooth
from dca.datasets.sample.palette import Palette, dark, light, mix

_EDGE = 1.3
_AT_HOME = 0.75


@dataclass(frozen=True)
class Setting:
    """A backdrop that runs from one colour to another, and what stands before it.

    angle: direction of the run in radians; None for a glow around a point near the middle.
    """

    start: Colour
    end: Colour
    angle: float | None
    patches: tuple[Patch, ...] = ()

    def backdrop(self, size: int) -> NDArray[np.float64]:
        """The smooth colours alone, (size, size, 3)."""
        line = np.linspace(-1, 1, size)
        x, y = line[None, :], line[:, None]
        if self.angle is None:
            share = np.sqrt(x * x + (y + 0.2) ** 2) / 1.6
        else:
            share = 0.5 + 0.42 * (x * np.cos(self.angle) + y * np.sin(self.angle))
        share = np.clip(share, 0, 1)[..., None]
        return np.asarray((1 - share) * np.asarray(self.start) + share * np.asarray(self.end))


Place = Callable[[Palette], Setting]


def _below(top: Points) -> Points:
    """Everything under a line that runs from left to right."""
    return np.concatenate([top, polygon((_EDGE, _EDGE), (-_EDGE, _EDGE))])


def _ridge(rng: np.random.Generator, height: float, swell: float) -> Points:
    """A rolling horizon."""
    x = np.linspace(-_EDGE, _EDGE, 40)
    a, b = rng.uniform(1, 3), rng.uniform(0, 6)
    return np.stack([x, height + swell * (np.sin(a * x + b) + 0.4 * np.sin(3.1 * a * x + b))], axis=1)


def _clouds(pal: Palette, lowest: float, count: int) -> list[Patch]:
    """Small heaps of cloud above `lowest`."""
    rng, patches = pal.rng, []
    for _ in range(count):
        x, y, r = rng.uniform((-1, -0.95, 0.08), (1, lowest, 0.2))
        white, alpha = pal("white"), rng.uniform(0.5, 0.9)
        patches += [
            Patch(ellipse(x + dx * r, y + dy * r, r * s, r * s * 0.8), white, alpha)
            for dx, dy, s in ((-1.1, 0.3, 0.7), (0, 0, 1), (1.1, 0.25, 0.75))
        ]
    return patches


def _air(pal: Palette) -> tuple[Colour, Colour]:
    """Colours of the sky from top to horizon: day, evening or haze."""
    high, low = pal("blue", "sky", "sky", "violet"), pal("sky", "cream", "pink", "orange", "white")
    return light(high, pal.rng.uniform(0.0, 0.4)), light(low, pal.rng.uniform(0.3, 0.8))


def sky(pal: Palette) -> Setting:
    """Open sky, clouds, perhaps the sun."""
    rng = pal.rng
    high, low = _air(pal)
    patches = _clouds(pal, 0.9, int(rng.integers(0, 4)))
    if rng.random() < 0.35:
        x, y, r = rng.uniform((-0.9, -0.9, 0.1), (0.9, -0.4, 0.22))
        patches.insert(0, Patch(ellipse(x, y, r, r), light(pal("yellow", "white")), 0.9))
    if rng.random() < 0.4:
        patches.append(Patch(_below(_ridge(rng, 0.85, 0.06)), light(pal("green", "teal", "violet"), 0.35)))
    return Setting(high, low, np.pi / 2, tuple(patches))


def sea(pal: Palette) -> Setting:
    """Sky over water, with lines of waves."""
    rng = pal.rng
    high, low = _air(pal)
    water, level = pal("blue", "teal", "sky", "navy"), rng.uniform(0.1, 0.5)
    patches = _clouds(pal, level - 0.4, int(rng.integers(0, 3)))
    for k in range(4):
        top = _ridge(rng, level + 0.2 * k, 0.01 + 0.008 * k)
        patches.append(Patch(_below(top), mix(light(water, 0.4), dark(water, 0.15), k / 3)))
    return Setting(high, low, np.pi / 2, tuple(patches))


def deep(pal: Palette) -> Setting:
    """Under water: light from above, weed, bubbles."""
    rng = pal.rng
    water = pal("teal", "blue", "sky")
    patches = []
    for x in rng.uniform(-0.9, 0.9, 3):
        ray = polygon((x - 0.08, -_EDGE), (x + 0.08, -_EDGE), (x + 0.4, _EDGE), (x + 0.05, _EDGE))
        patches.append(mark(ray, (1.0, 1.0, 0.95), 0.1))
    weed = pal("forest", "green", "teal")
    for x, top, bend in rng.uniform((-1, 0.0, -0.2), (1, 0.8, 0.2), (int(rng.integers(0, 6)), 3)):
        patches.append(
            Patch(
                smooth([(x - 0.06, 1.2), (x + bend - 0.04, 0.9), (x, top), (x + bend + 0.05, 0.9), (x + 0.06, 1.2)]),
                weed,
                0.8,
            )
        )
    if rng.random() < 0.5:
        patches.append(Patch(_below(_ridge(rng, 0.85, 0.05)), pal("tan", "cream")))
    patches += [
        Patch(ellipse(x, y, r, r), pal("white"), 0.4) for x, y, r in rng.uniform((-1, -1, 0.02), (1, 0.8, 0.05), (6, 3))
    ]
    return Setting(light(water, 0.5), dark(water, 0.2), np.pi / 2, tuple(patches))


def meadow(pal: Palette) -> Setting:
    """Hills, grass and a few flowers under the sky."""
    rng = pal.rng
    high, low = _air(pal)
    grass, level = pal("green", "lime", "forest"), rng.uniform(-0.1, 0.4)
    patches = _clouds(pal, level - 0.4, int(rng.integers(0, 3)))
    for k in range(3):
        patches.append(Patch(_below(_ridge(rng, level + 0.25 * k, 0.07)), light(grass, 0.5 - 0.22 * k)))
    for x, y in rng.uniform((-1, level + 0.4), (1, 1), (int(rng.integers(0, 14)), 2)):
        patches.append(Patch(ellipse(x, y, 0.03, 0.025), pal("white", "yellow", "pink", "red"), 0.9))
    return Setting(high, low, np.pi / 2, tuple(patches))


def forest(pal: Palette) -> Setting:
    """Deep green, out of focus, with spots of light and a mossy floor."""
    rng = pal.rng
    green = pal("forest", "green", "brown")
    patches = [
        mark(ellipse(x, y, r, r), light(pal("lime", "green", "yellow"), 0.2), rng.uniform(0.1, 0.35))
        for x, y, r in rng.uniform((-1.1, -1.1, 0.08), (1.1, 0.6, 0.32), (int(rng.integers(5, 12)), 3))
    ]
    patches.append(Patch(_below(_ridge(rng, rng.uniform(0.55, 0.8), 0.04)), dark(pal("green", "brown", "lime"), 0.15)))
    return Setting(light(green, 0.25), dark(green, 0.35), None, tuple(patches))


def desert(pal: Palette) -> Setting:
    """Dunes under a wide sky."""
    rng = pal.rng
    high, low = _air(pal)
    sand, level = pal("tan", "yellow", "orange", "coral"), rng.uniform(0.2, 0.55)
    patches = [
        Patch(_below(_ridge(rng, level + 0.22 * k, 0.06)), mix(light(sand, 0.45), sand, k / 2)) for k in range(3)
    ]
    return Setting(high, low, np.pi / 2, tuple(patches))


def studio(pal: Palette) -> Setting:
    """Pale seamless paper."""
    rng = pal.rng
    tone = pal("white", "white", "cream", "sky", "pink", "grey", "tan", "yellow")
    return Setting(light(tone, rng.uniform(0.5, 1.0)), light(tone, rng.uniform(0.1, 0.7)), None)


def table(pal: Palette) -> Setting:
    """A wall and the top of a table."""
    rng = pal.rng
    wall, top, tilt = pal("cream", "sky", "grey", "teal", "white", "pink"), rng.uniform(0.2, 0.7), rng.normal(0, 0.03)
    board = polygon((-_EDGE, top - tilt), (_EDGE, top + tilt), (_EDGE, _EDGE), (-_EDGE, _EDGE))
    wood = pal("tan", "brown", "cream", "white")
    grain = [
        mark(moved(polygon((-_EDGE, 0), (_EDGE, 0.01), (_EDGE, 0.03)), 0, y), dark(wood), 0.3)
        for y in rng.uniform(top + 0.06, 1, 4)
    ]
    return Setting(light(wall, 0.6), light(wall, 0.15), 2.2, (Patch(board, wood), *grain))


def wall(pal: Palette) -> Setting:
    """Wallpaper in stripes or dots."""
    rng = pal.rng
    paper, ink, step = (
        pal("cream", "sky", "pink", "lime", "tan", "teal"),
        pal("white", "cream", "white", "navy"),
        rng.uniform(0.22, 0.45),
    )
    alpha = rng.uniform(0.2, 0.55)
    if rng.random() < 0.5:
        turn = rng.uniform(0, 0.5)
        bar = box(-2, -step / 4, 2, step / 4)
        marks = [mark(moved(moved(bar, 0, k * step), turn=turn), ink, alpha) for k in range(-8, 9)]
    else:
        cells = np.arange(-1.2, 1.3, step)
        spots = [(x + (row % 2) * step / 2, y) for row, y in enumerate(cells) for x in cells]
        marks = [mark(ellipse(x, y, step / 6, step / 6), ink, alpha) for x, y in spots]
    return Setting(light(paper, 0.5), light(paper, 0.1), rng.uniform(0, 6.3), tuple(marks))


def party(pal: Palette) -> Setting:
    """Coloured scraps strewn over paper."""
    rng = pal.rng
    shapes = (
        box(-1, -0.6, 1, 0.6),
        smooth([(-1, 0), (0, -0.5), (1, 0), (0, 0.5)]),
        polygon((-0.9, 0.7), (0, -0.9), (0.9, 0.7)),
    )
    scraps = [
        Patch(
            moved(shapes[int(rng.integers(3))], x, y, turn=turn, scale=r),
            pal("red", "yellow", "teal", "violet", "green", "orange", "pink"),
            rng.uniform(0.5, 0.9),
        )
        for x, y, r, turn in rng.uniform((-1.1, -1.1, 0.04, 0), (1.1, 1.1, 0.12, 1), (int(rng.integers(5, 14)), 4))
    ]
    return Setting(
        light(pal("cream", "white", "sky"), 0.5),
        light(pal("pink", "sky", "tan", "cream"), 0.3),
        rng.uniform(0, 6.3),
        tuple(scraps),
    )


PLACES: tuple[Place, ...] = (sky, sea, deep, meadow, forest, desert, studio, table, wall, party)


def settle(homes: tuple[Place, ...], pal: Palette) -> Setting:
    """A place for an image: usually one of the homes, else any."""
    choices = homes if homes and pal.rng.random() < _AT_HOME else PLACES
    return choices[int(pal.rng.integers(len(choices)))](pal)
