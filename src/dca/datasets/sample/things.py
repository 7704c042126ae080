"""Motifs of made things, one function each: a palette -> patches from back to front."""

from __future__ import annotations

import numpy as np

from dca.datasets.sample.outline import (
    Colour,
    Patch,
    Points,
    both_sides,
    box,
    ellipse,
    mark,
    moved,
    polygon,
    ribbon,
    smooth,
)
from dca.datasets.sample.palette import Palette, dark, light


def guitar(pal: Palette) -> list[Patch]:
    """A waisted body with a sound hole, a long neck, pegs and strings."""
    rng = pal.rng
    wood, neck = pal("tan", "orange", "orange", "brown", "red", "navy", "teal"), pal("brown", "charcoal")
    waist, hips = rng.uniform(0.24, 0.32), rng.uniform(0.44, 0.56)
    body = smooth(
        both_sides([(0, -0.08), (0.22, -0.08), (0.38, 0.06), (waist, 0.32), (hips, 0.62), (0.36, 0.93), (0, 0.99)])
    )
    gleam = smooth([(-0.33, 0.05), (-0.2, 0.4), (-0.42, 0.66), (-0.3, 0.85), (-0.12, 0.5), (-0.15, 0.05)])
    patches = [
        Patch(body, dark(wood, 0.35)),
        Patch(body * (0.9, 0.93) + (0, 0.03), wood),
        mark(gleam, light(wood), 0.45),
        Patch(ellipse(0, 0.3, 0.15, 0.15), pal("cream", "tan")),
        mark(ellipse(0, 0.3, 0.115, 0.115), pal("charcoal")),
        Patch(box(-0.2, 0.66, 0.2, 0.74), dark(neck, 0.3)),
        Patch(polygon((-0.065, 0.2), (-0.05, -0.76), (0.05, -0.76), (0.065, 0.2)), neck),
        Patch(smooth([(-0.06, -0.72), (-0.1, -0.96), (0, -1), (0.1, -0.96), (0.06, -0.72)]), dark(neck, 0.3)),
    ]
    patches += [mark(box(-0.06, y, 0.06, y + 0.012), pal("cream"), 0.7) for y in np.linspace(-0.65, 0.05, 7)]
    patches += [
        Patch(ellipse(s * 0.125, y, 0.035, 0.025), pal("cream", "grey")) for s in (-1, 1) for y in (-0.8, -0.86, -0.92)
    ]
    strings = [ribbon([(x, -0.76), (x * 1.3, 0.7)], 0.012) for x in (-0.035, -0.012, 0.012, 0.035)]
    patches += [mark(string, pal("white"), 0.8) for string in strings]
    return [part._replace(points=part.points * (1.25, 1)) for part in patches]


def _gore(left: float, right: float, rows: slice = slice(None)) -> Points:
    """Strip of a balloon between two seams, given by where they cross its widest place."""
    t = np.linspace(0, 1, 24)
    y = -0.98 + 1.28 * t
    # Above, half a circle; below, a taper to the mouth.
    half = np.where(t < 0.5, np.sqrt(np.clip(1 - ((1.28 * t - 0.62) / 0.62) ** 2, 0, 1)), 0)
    half = np.where(t < 0.5, half, np.cos((t - 0.5) * np.pi) * 0.84 + 0.16)
    sides = [np.stack([seam * half, y], axis=1)[rows] for seam in (left, right)]
    return np.concatenate([sides[0], sides[1][::-1]])


def hot_air_balloon(pal: Palette) -> list[Patch]:
    """A striped envelope over a small basket."""
    rng = pal.rng
    gores, waist = int(rng.choice([5, 7, 9])), rng.uniform(0.62, 0.8)
    colours = [
        pal("red", "coral", "blue", "violet", "teal"),
        pal("yellow", "cream", "orange", "white"),
        pal("sky", "pink", "lime", "red"),
    ]
    # Seams of a slowly turning sphere; the outermost stay where they are, or it would have gaps.
    seams = waist * np.sin(np.pi * (np.linspace(-0.5, 0.5, gores + 1) + rng.uniform(-0.5, 0.5) / gores))
    seams[0], seams[-1] = -waist, waist
    patches = []
    for k in range(gores):
        colour = colours[k % (2 + gores % 3 // 2)]
        patches.append(Patch(_gore(seams[k], seams[k + 1]), dark(colour, 0.32 * abs(k - gores // 2) / gores)))
    if rng.random() < 0.4:
        patches.append(mark(_gore(-waist, waist, slice(9, 13)), colours[2]))
    rope, basket = pal("charcoal", "brown"), pal("brown", "tan")
    patches.append(mark(ellipse(-waist * 0.45, -0.55, 0.1, 0.24, turn=0.08), (1.0, 0.98, 0.92), 0.3))
    patches += [Patch(ribbon([(s * 0.12, 0.29), (s * 0.1, 0.7)], 0.02), rope) for s in (-1, -0.3, 0.3, 1)]
    patches += [
        Patch(polygon((-0.15, 0.68), (0.15, 0.68), (0.12, 0.95), (-0.12, 0.95)), basket),
        Patch(box(-0.17, 0.65, 0.17, 0.72), dark(basket, 0.3)),
    ]
    return patches


def _window(x: float, top: float, glass: Colour, frame: Colour) -> list[Patch]:
    """Two panes in a frame."""
    return [
        Patch(box(x - 0.11, top, x + 0.11, top + 0.26), frame),
        mark(box(x - 0.085, top + 0.025, x + 0.085, top + 0.235), glass),
        mark(box(x - 0.012, top, x + 0.012, top + 0.26), frame),
    ]


def house(pal: Palette) -> list[Patch]:
    """A gabled front and a receding side, with door, windows and chimney."""
    rng = pal.rng
    wall = pal("cream", "white", "tan", "sky", "pink", "yellow", "lime")
    roof, wood = pal("red", "brown", "navy", "teal", "charcoal"), pal("brown", "red", "blue", "forest")
    eave, ridge, side = rng.uniform(-0.3, -0.05), rng.uniform(-0.95, -0.65), rng.uniform(0.05, 0.3)
    glass, frame, peak = pal("sky", "yellow", "navy"), pal("white"), (side - 0.85) / 2
    patches = [
        Patch(box(0.3, ridge - 0.1, 0.48, eave), dark(roof, 0.2)),
        Patch(box(0.27, ridge - 0.16, 0.51, ridge - 0.06), roof),
    ]
    front = polygon((-0.85, eave), (peak, ridge + 0.08), (side, eave), (side, 0.85), (-0.85, 0.85))
    slope = polygon((peak, ridge), (0.75, ridge), (0.97, eave + 0.06), (side + 0.06, eave + 0.06))
    gable = ribbon([(-0.97, eave + 0.09), (peak, ridge), (side + 0.08, eave + 0.09)], 0.1)
    patches += [Patch(box(side, eave, 0.85, 0.85), dark(wall, 0.22)), Patch(front, wall)]
    patches += [Patch(slope, roof), Patch(gable, dark(roof, 0.25))]
    for share in (0.3, 0.65):
        y = ridge + share * (eave + 0.06 - ridge)
        course = ribbon([(peak + share * (side + 0.06 - peak), y), (0.75 + share * 0.22, y)], 0.02)
        patches.append(mark(course, dark(roof, 0.4), 0.5))
    door = peak + rng.uniform(-0.12, 0.12)
    patches += [
        Patch(box(door - 0.14, 0.3, door + 0.14, 0.85), wood),
        mark(ellipse(door + 0.08, 0.6, 0.025, 0.025), pal("yellow")),
    ]
    for x, top in ((door - 0.02, eave - 0.02), (0.42, 0.15), (0.68, 0.15)):
        patches += _window(x, top, glass, frame)
    bush = pal("green", "forest", "lime")
    patches += [
        Patch(ellipse(x, 0.85, rng.uniform(0.1, 0.22), rng.uniform(0.1, 0.2)), bush)
        for x in rng.choice([-0.85, -0.7, 0.5, 0.75, 0.9], int(rng.integers(0, 4)), replace=False)
    ]
    return patches


def lighthouse(pal: Palette) -> list[Patch]:
    """A tapering banded tower with a lit lantern, on rocks."""
    rng = pal.rng
    base, top, bands = rng.uniform(0.26, 0.38), rng.uniform(0.14, 0.2), int(rng.integers(3, 7))
    paint, plain = pal("red", "navy", "coral", "charcoal", "teal"), pal("white", "cream")
    roof = pal("red", "charcoal", "navy")
    edge = np.linspace(-0.45, 0.85, bands + 1)
    half = np.linspace(top, base, bands + 1)
    patches: list[Patch] = []
    if rng.random() < 0.5:
        s = int(rng.choice([-1, 1]))
        patches.append(mark(polygon((0, -0.62), (s * 1.6, -1.0), (s * 1.6, -0.35)), (1.0, 0.93, 0.62), 0.5))
    for k in range(bands):
        quad = polygon((-half[k], edge[k]), (half[k], edge[k]), (half[k + 1], edge[k + 1]), (-half[k + 1], edge[k + 1]))
        patches.append(Patch(quad, paint if k % 2 else plain))
    patches += [
        mark(polygon((0.35 * top, -0.45), (top, -0.45), (base, 0.85), (0.35 * base, 0.85)), (0.13, 0.15, 0.27), 0.25),
        Patch(box(-top * 1.4, -0.5, top * 1.4, -0.42), dark(roof, 0.2)),
        Patch(box(-top * 0.75, -0.76, top * 0.75, -0.5), pal("yellow", "sky", "orange")),
        mark(box(-0.012, -0.76, 0.012, -0.5), roof),
        Patch(smooth(both_sides([(0, -0.97), (top * 0.6, -0.86), (top * 1.05, -0.73), (0, -0.74)])), roof),
        Patch(ellipse(0, -0.97, 0.03, 0.03), roof),
        Patch(polygon((-0.07, 0.85), (-0.07, 0.66), (0, 0.6), (0.07, 0.66), (0.07, 0.85)), pal("brown", "charcoal")),
    ]
    patches += [mark(box(-0.035, y, 0.035, y + 0.1), pal("navy")) for y in (-0.25, 0.2)]
    rock = pal("grey", "brown", "charcoal", "green")
    boulder = smooth([(-1, 0), (-0.6, -0.6), (0.2, -0.75), (1, 0)])
    patches += [
        Patch(moved(boulder, x, 0.98, scale=r), dark(rock, d))
        for x, r, d in ((-0.4, 0.32, 0.1), (0.38, 0.36, 0.0), (0, 0.3, 0.25))
    ]
    return patches


def _bellied(first: tuple[float, float], *others: tuple[float, float]) -> Points:
    """Outline with one straight edge, from the first corner to the second, and a curve back."""
    return np.concatenate([polygon(first, others[0]), smooth([*others[1:], first], closed=False)])


def sailboat(pal: Palette) -> list[Patch]:
    """A hull with one or two full sails, on a line of waves."""
    rng = pal.rng
    hull = pal("red", "navy", "brown", "white", "teal", "charcoal")
    main, jib = pal("white", "cream", "white", "coral", "sky"), pal("white", "cream", "red", "yellow", "orange")
    belly, lee = rng.uniform(0.08, 0.3), rng.uniform(0.35, 0.6)
    mast = pal("brown", "charcoal")
    patches = [Patch(polygon((-0.02, -0.98), (0.02, -0.98), (0.025, 0.5), (-0.025, 0.5)), mast)]
    sail = _bellied((0.04, -0.92), (0.04, 0.36), (lee + 0.2, 0.34), (0.3 + belly, -0.2))
    patches += [Patch(sail, main), mark(sail * (0.55, 0.9) + (0.02, 0.0), dark(main), 0.2)]
    if rng.random() < 0.8:
        fore = _bellied((-0.05, -0.78), (-0.05, 0.32), (-0.62, 0.36), (-0.28 - belly * 0.4, -0.15))
        patches.append(Patch(fore, jib))
    if rng.random() < 0.5:
        patches += [
            mark(ribbon([(0.04, y), (0.6 * lee * (y + 1.05), y)], 0.05), pal("red", "blue"), 0.8) for y in (-0.15, 0.0)
        ]
    if rng.random() < 0.5:
        patches.append(Patch(polygon((0.02, -1.0), (0.26, -0.93), (0.02, -0.86)), pal("red", "blue", "yellow")))
    deck = _bellied((-0.8, 0.44), (0.82, 0.44), (0.62, 0.76), (0.2, 0.84), (-0.4, 0.82))
    patches += [
        Patch(deck, hull),
        Patch(polygon((-0.8, 0.44), (0.82, 0.44), (0.78, 0.54), (-0.74, 0.54)), pal("white", "yellow", "tan")),
    ]
    if rng.random() < 0.75:
        sea = pal("blue", "teal", "sky", "navy")
        for k, share in enumerate((0.35, 0.1)):
            x = np.linspace(-1.1, 1.1, 40)
            crest = 0.74 + 0.1 * k + 0.05 * np.sin(8 * x + rng.uniform(0, 6))
            wave = np.concatenate([np.stack([x, crest], 1), np.stack([0.85 * x, crest + 0.22 - 0.1 * k], 1)[::-1]])
            patches.append(Patch(wave, light(sea, share), 0.9))
    return patches
