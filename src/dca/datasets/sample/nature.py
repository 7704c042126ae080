"""Motifs from nature, one function each: a palette -> patches from back to front."""

from __future__ import annotations

import numpy as np

from dca.datasets.sample.outline import (
    Colour,
    Patch,
    Points,
    both_sides,
    ellipse,
    flipped,
    mark,
    moved,
    polygon,
    ribbon,
    smooth,
    stroke,
)
from dca.datasets.sample.palette import Palette, dark, light


def _leaf(x: float, y: float, length: float, turn: float, colour: Colour) -> list[Patch]:
    """A pointed leaf with a midrib, growing from (x, y)."""
    blade = smooth([(0, 0), (0.3, -0.2), (0.7, -0.17), (1, 0), (0.7, 0.15), (0.3, 0.2)])
    rib = polygon((0, -0.02), (0.9, 0), (0, 0.02))
    return [
        Patch(moved(blade, x, y, turn=turn, scale=length), colour),
        mark(moved(rib, x, y, turn=turn, scale=length), light(colour), 0.7),
    ]


def butterfly(pal: Palette) -> list[Patch]:
    """Two pairs of banded wings seen from above, more or less folded."""
    rng = pal.rng
    wing, spot = pal("orange", "coral", "blue", "violet", "yellow", "sky", "pink"), pal("cream", "yellow", "white")
    rim = dark(wing, rng.uniform(0.55, 0.85))
    tip, tail, fold = rng.uniform(0.75, 0.98), rng.uniform(0.6, 0.95), rng.uniform(0.55, 1.0)
    upper = smooth([(0.03, -0.15), (0.3, -0.62), (0.8, -0.86), (tip, -0.6), (0.85, -0.2), (0.45, 0.06), (0.05, 0.08)])
    lower = smooth([(0.04, 0.0), (0.5, 0.02), (0.76, 0.3), (0.6, 0.6), (0.42, tail), (0.24, 0.55), (0.05, 0.2)])
    patches: list[Patch] = []
    for shape, x, y in ((lower, 0.36, 0.3), (upper, 0.5, -0.4)):
        inner = moved(shape - (x, y), x, y, scale=0.76)
        dots = [ellipse(x + 0.31 * np.cos(a), y + 0.3 * np.sin(a), 0.05, 0.05) for a in (-1.2, -0.4, 0.4, 1.2)]
        parts = [
            Patch(shape, rim),
            Patch(inner, wing),
            mark(moved(inner, 0.12, 0.02, scale=0.6), light(wing), 0.5),
        ]
        parts += [mark(dot, spot) for dot in dots]
        for part in parts:
            right = part.points * (fold, 1)
            patches += [part._replace(points=right), part._replace(points=flipped(right))]
    feeler = stroke((0.02, -0.25), (0.1, -0.5), (0.28, -0.72), width=0.03)
    patches += [Patch(feeler, rim), Patch(flipped(feeler), rim)]
    return [*patches, Patch(ellipse(0, 0.08, 0.075, 0.42), dark(rim, 0.5)), Patch(ellipse(0, -0.3, 0.08, 0.09), rim)]


def _column(x: float, top: float, bottom: float, half: float, colour: Colour) -> list[Patch]:
    """An upright stem with a round top and ribs."""
    dome = ellipse(x, top + half, half, half, arc=(0.5, 1.0))
    outline = np.concatenate([dome, polygon((x + half, bottom), (x - half, bottom))])
    ribs = [
        polygon((at, top + 0.5 * half), (at + 0.025, bottom), (at - 0.025, bottom))
        for at in (x - 0.5 * half, x, x + 0.5 * half)
    ]
    return [
        Patch(outline, colour),
        *(mark(rib, dark(colour), 0.55) for rib in ribs),
        mark(ellipse(x - half * 0.6, (top + bottom) / 2, 0.03, (bottom - top) * 0.35), light(colour), 0.5),
    ]


def cactus(pal: Palette) -> list[Patch]:
    """A ribbed column with arms, in a pot or in sand, sometimes in flower."""
    rng = pal.rng
    skin, half, top = pal("green", "forest", "lime", "teal"), rng.uniform(0.18, 0.3), rng.uniform(-0.95, -0.6)
    patches: list[Patch] = []
    for side in (-1, 1) if rng.random() < 0.65 else (int(rng.choice([-1, 1])),):
        elbow, reach, up = rng.uniform(-0.1, 0.3), half + rng.uniform(0.22, 0.36), rng.uniform(0.35, 0.65)
        width = half * rng.uniform(0.75, 1.0)
        arm = smooth(
            [(0, elbow), (side * reach * 0.8, elbow), (side * reach, elbow - 0.16), (side * reach, elbow - up)],
            closed=False,
        )
        patches += [
            Patch(ribbon(arm, width), skin),
            mark(ellipse(side * reach, elbow - up, width / 2, width / 2), skin),
            mark(ribbon(arm[4:], 0.03), dark(skin), 0.5),
        ]
    patches += _column(0, top, 0.75, half, skin)
    spines = rng.uniform((-half * 0.9, top + 0.15), (half * 0.9, 0.5), (16, 2))
    patches += [
        mark(polygon((x - 0.035, y - 0.02), (x, y + 0.01), (x + 0.035, y - 0.02), (x, y + 0.03)), pal("cream"), 0.9)
        for x, y in spines
    ]
    if rng.random() < 0.5:
        bloom = pal("pink", "coral", "yellow", "red")
        patches += [
            Patch(ellipse(0.11 * np.cos(a), top - 0.02 + 0.07 * np.sin(a), 0.1, 0.07, turn=a / 6.28), bloom)
            for a in (3.5, 4.7, 5.9)
        ]
    if rng.random() < 0.6:
        pot = pal("coral", "brown", "tan", "blue", "white")
        return [
            *patches,
            Patch(polygon((-0.46, 0.45), (0.46, 0.45), (0.34, 0.98), (-0.34, 0.98)), pot),
            Patch(polygon((-0.52, 0.36), (0.52, 0.36), (0.5, 0.54), (-0.5, 0.54)), light(pot, 0.15)),
        ]
    return [
        *patches,
        Patch(smooth([(-0.9, 0.95), (-0.4, 0.7), (0.1, 0.64), (0.6, 0.74), (0.95, 0.95)]), pal("tan", "yellow")),
    ]


def _bands(pal: Palette, high: float) -> list[Patch]:
    """Three upright stripes across a fish of half-height `high`."""
    colour = pal("white", "cream", "navy")
    return [
        mark(ribbon([(x, -h), (x + 0.06, 0), (x, h)], 0.1), colour, 0.9)
        for x, h in ((-0.42, high * 0.78), (-0.05, high * 0.92), (0.3, high * 0.5))
    ]


def _scales(skin: Colour, high: float) -> list[Patch]:
    """Half-moons in rows, where the body is wide enough for them."""
    places = [(x, y * high) for x in np.arange(-0.3, 0.45, 0.15) for y in (-0.5, -0.1, 0.3)]
    return [
        mark(ellipse(x, y, 0.09, 0.1, arc=(-0.25, 0.25)), dark(skin, 0.35), 0.5)
        for x, y in places
        if abs(y) < high - abs(x) * 0.8
    ]


def fish(pal: Palette) -> list[Patch]:
    """A side view: body, fins, scales or bands, a round eye, perhaps bubbles."""
    rng = pal.rng
    skin = pal("orange", "orange", "coral", "coral", "yellow", "blue", "teal", "violet")
    fin = pal("orange", "yellow", "coral", "navy")
    high, fork = rng.uniform(0.46, 0.72), rng.uniform(0.4, 0.65)
    spine = [(-0.82, 0.04), (-0.55, -high * 0.75), (-0.1, -high), (0.35, -high * 0.55), (0.62, -0.05)]
    body = smooth([*spine, (0.35, high * 0.55), (-0.1, high), (-0.55, high * 0.78)])
    tail = smooth([(0.5, 0), (0.78, -fork * 0.7), (1, -fork), (0.88, 0), (1, fork), (0.78, fork * 0.7)])
    back = smooth(
        [(-0.4, -high * 0.8), (-0.1, -high - 0.3), (0.3, -high - 0.12), (0.35, -high * 0.5), (0, -high * 0.8)]
    )
    patches = [Patch(tail, fin), Patch(back, fin), Patch(moved(back * (0.7, -0.7), 0.1, 0.02), fin), Patch(body, skin)]
    patches.append(mark(moved(body * (0.86, 0.55), -0.05, high * 0.3), light(skin, 0.55), 0.6))
    patches += _bands(pal, high) if rng.random() < 0.5 else _scales(skin, high)
    patches += [
        Patch(smooth([(-0.15, 0.05), (0.12, 0.1), (0.22, 0.3), (-0.05, 0.28)]), fin),
        mark(stroke((-0.45, -high * 0.6), (-0.38, 0), (-0.46, high * 0.6), width=0.035), dark(skin, 0.4), 0.7),
        Patch(ellipse(-0.58, -0.08, 0.1, 0.1), pal("white")),
        mark(ellipse(-0.6, -0.08, 0.055, 0.06), pal("charcoal")),
        mark(stroke((-0.8, 0.1), (-0.72, 0.14), (-0.64, 0.12), width=0.03), dark(skin, 0.6)),
    ]
    bubbles = [
        Patch(ellipse(-0.95 + 0.08 * k, -0.35 - 0.22 * k, 0.05 + 0.015 * k, 0.05 + 0.015 * k), pal("white"), 0.6)
        for k in range(int(rng.integers(0, 4)))
    ]
    return patches + bubbles


def mushroom(pal: Palette) -> list[Patch]:
    """A cap, often spotted, on a stout stem."""
    rng = pal.rng
    cap, flesh = pal("red", "red", "coral", "brown", "tan", "orange", "violet"), pal("cream", "white", "tan")
    rise, brim, thick = rng.uniform(-0.92, -0.6), rng.uniform(0.0, 0.15), rng.uniform(0.15, 0.3)
    stem = smooth(both_sides([(0, -0.1), (thick * 0.8, 0), (thick, 0.45), (thick * 1.5, 0.82), (0.1, 0.95), (0, 0.95)]))
    dome = smooth(
        both_sides([(0, rise), (0.4, rise + 0.1), (0.76, -0.35), (0.92, brim), (0.5, brim + 0.1), (0, brim + 0.14)])
    )
    gills = ellipse(0, brim + 0.06, 0.78, 0.16)
    patches = [
        Patch(stem, flesh),
        mark(moved(stem * (0.35, 0.9), thick * 0.5, 0.05), dark(flesh), 0.45),
        Patch(dome, cap),
        Patch(gills, dark(flesh, 0.12)),
    ]
    for k in range(-4, 5):
        gill = polygon((0.05 * k, brim), (0.13 * k - 0.012, brim + 0.17), (0.13 * k + 0.012, brim + 0.17))
        patches.append(mark(gill, dark(flesh, 0.45), 0.6))
    gleam = smooth([(-0.72, -0.2), (-0.4, rise + 0.22), (0.1, rise + 0.08), (-0.25, rise + 0.35), (-0.5, -0.15)])
    patches.append(mark(ellipse(0, brim + 0.02, thick * 0.85, 0.12, arc=(0, 0.5)), flesh))
    patches.append(mark(gleam, light(cap), 0.4))
    if rng.random() < 0.7:
        spot = pal("white", "cream")
        for _ in range(int(rng.integers(5, 10))):
            a, r, size = rng.uniform((-2.9, 0.1, 0.05), (-0.25, 0.85, 0.13))
            x, y = 0.72 * r * np.cos(a), brim - 0.1 - (rise - brim + 0.18) * r * np.sin(a)
            patches.append(Patch(ellipse(x, y, size, size * 0.75), spot))
    if rng.random() < 0.5:
        grass = pal("green", "lime", "forest")
        patches += [
            Patch(polygon((x, 0.98), (x + 0.1, 0.98), (x + 0.05 + rng.normal(0, 0.1), rng.uniform(0.55, 0.8))), grass)
            for x in np.arange(-0.6, 0.55, 0.13)
        ]
    return patches


def sunflower(pal: Palette) -> list[Patch]:
    """A disc of seeds in a ring of pointed petals, on a leafy stalk or cut close."""
    rng = pal.rng
    petal, disc = pal("yellow", "yellow", "orange"), pal("brown", "charcoal", "brown")
    count, core = int(rng.integers(14, 22)), rng.uniform(0.24, 0.38)
    tall = rng.random() < 0.5
    y, size = (-0.26, 0.74) if tall else (0.0, 0.98)
    ring: list[Patch] = []
    blade: Points = smooth([(core * 0.8, 0), (0.6, -0.17), (1.0, 0), (0.6, 0.17)])
    for layer, colour in ((0.5, dark(petal, 0.18)), (0.0, petal)):
        for k in range(count):
            turn = (k + layer) / count + rng.normal(0, 0.006)
            ring.append(
                Patch(moved(blade, turn=turn, scale=rng.uniform(0.88, 1.0)), light(colour, rng.uniform(0, 0.2)))
            )
    ring.append(Patch(ellipse(0, 0, core * 1.15, core * 1.15), disc))
    ring.append(mark(ellipse(0, 0, core * 0.6, core * 0.6), dark(disc, 0.4), 0.8))
    # Seeds follow the golden angle, as in the real flower.
    for k in range(8, 40):
        r, a = core * np.sqrt(k / 36), k * 2.39996
        ring.append(mark(ellipse(r * np.cos(a), r * np.sin(a), 0.03, 0.03), light(disc, 0.4), 0.7))
    squash = rng.uniform(0.75, 1.0)
    head = [part._replace(points=part.points * (1, squash) * size + (0, y)) for part in ring]
    if not tall:
        return head
    green, bend = pal("green", "forest", "lime"), rng.uniform(-0.2, 0.2)
    stalk = stroke((0, y), (bend, 0.4), (bend * 0.6, 1.0), width=0.09)
    leaves = _leaf(bend, 0.62, 0.5, -0.06, green) + _leaf(bend, 0.72, 0.5, 0.56, dark(green, 0.1))
    return [Patch(stalk, green), *leaves, *head]
