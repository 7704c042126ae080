"""Images drawn by code with compositional captions: colour, pattern, shape, count, place.

Captions of photos rarely name attributes, and attributes occur together. Here each word of the
caption changes one attribute of the image.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

from pretrain.pack import Record

Point = tuple[float, float]
Colour = tuple[int, int, int]
SIZE, FINE = 80, 2  # drawn at twice the size, then reduced: smooth edges
COLOURS: dict[str, Colour] = {
    "red": (214, 40, 40), "green": (56, 158, 68), "blue": (40, 90, 210), "yellow": (244, 211, 40),
    "orange": (245, 140, 30), "purple": (128, 50, 160), "pink": (245, 140, 180), "brown": (125, 80, 45),
    "black": (20, 20, 20), "white": (250, 250, 250), "grey": (130, 130, 130),
}  # fmt: skip
PATTERNS = ("plain", "striped", "dotted", "checkered")
COUNTS = ("", "one", "two", "three", "four", "five")
PLACES = {(0, 0): "top left", (1, 0): "top right", (0, 1): "bottom left", (1, 1): "bottom right"}


def _regular(corners: int, inner: float = 1.0) -> Callable[[float], list[Point]]:
    """Corners on a circle; with `inner` below 1, a star."""
    points = corners * (2 if inner < 1 else 1)

    def outline(turn: float) -> list[Point]:
        radii = [1.0 if inner == 1 or i % 2 == 0 else inner for i in range(points)]
        angles = [turn - math.pi / 2 + 2 * math.pi * i / points for i in range(points)]
        return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]

    return outline


def _heart(turn: float) -> list[Point]:
    steps = [2 * math.pi * i / 40 for i in range(40)]
    return [
        (math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16)
        for t in steps
    ]


def _fixed(*points: Point) -> Callable[[float], list[Point]]:
    return lambda turn: [
        (x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)) for x, y in points
    ]


SHAPES: dict[str, Callable[[float], list[Point]]] = {
    "circle": _regular(40),
    "triangle": _regular(3),
    "square": _fixed((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    "rectangle": _fixed((-1, -0.5), (1, -0.5), (1, 0.5), (-1, 0.5)),
    "pentagon": _regular(5),
    "hexagon": _regular(6),
    "star": _regular(5, 0.45),
    "diamond": _fixed((0, -1), (0.65, 0), (0, 1), (-0.65, 0)),
    "cross": _fixed(
        (-0.3, -1),
        (0.3, -1),
        (0.3, -0.3),
        (1, -0.3),
        (1, 0.3),
        (0.3, 0.3),
        (0.3, 1),
        (-0.3, 1),
        (-0.3, 0.3),
        (-1, 0.3),
        (-1, -0.3),
        (-0.3, -0.3),
    ),
    "arrow": _fixed((-1, -0.25), (0.2, -0.25), (0.2, -0.7), (1, 0), (0.2, 0.7), (0.2, 0.25), (-1, 0.25)),
    "heart": _heart,
    "crescent": lambda turn: [
        *((math.cos(turn + a), math.sin(turn + a)) for a in (math.pi * i / 20 - math.pi / 2 for i in range(21))),
        *((0.45 * math.cos(turn + a), math.sin(turn + a)) for a in (math.pi / 2 - math.pi * i / 20 for i in range(21))),
    ],
}


def _texture(pattern: str, colour: Colour, other: Colour, size: int, rng: random.Random) -> Image.Image:
    """A square of the pattern in two colours."""
    image = Image.new("RGB", (size, size), colour)
    pen = ImageDraw.Draw(image)
    step = rng.randint(5, 9) * FINE
    for i in range(0, 2 * size, step):
        if pattern == "striped":
            pen.line([(i - size, 0), (i, size)] if step % 4 else [(i, 0), (i, size)], fill=other, width=step // 2)
        for j in range(0, size, step) if pattern in ("dotted", "checkered") else ():
            box = (i, j, i + step // 2, j + step // 2)
            if pattern == "dotted":
                pen.ellipse(box, fill=other)
            elif (i // step + j // step) % 2:
                pen.rectangle((i, j, i + step - 1, j + step - 1), fill=other)
    return image


def _place(canvas: Image.Image, shape: str, texture: Image.Image, centre: Point, radius: float, turn: float) -> None:
    """Paint one shape onto the canvas, in place."""
    mask = Image.new("L", canvas.size)
    outline = [(centre[0] + radius * x, centre[1] + radius * y) for x, y in SHAPES[shape](turn)]
    ImageDraw.Draw(mask).polygon(outline, fill=255)
    canvas.paste(texture, mask=mask)


def _phrase(count: int, colour: str, pattern: str, shape: str) -> str:
    adjectives = [w for w in (colour, "" if pattern == "plain" else pattern) if w]
    if count == 1:
        words = " ".join([*adjectives, shape])
        return ("an " if words[0] in "aeiou" else "a ") + words
    plural = shape + ("es" if shape.endswith(("s", "ss")) else "s")
    return " ".join([COUNTS[count], *adjectives, plural])


def draw_image(rng: random.Random) -> tuple[Image.Image, list[str]]:
    """One image and its captions, the most exact first."""
    size = SIZE * FINE
    background, first, second = rng.sample(sorted(COLOURS), 3)
    canvas = Image.new("RGB", (size, size), COLOURS[background])
    shape, pattern = rng.choice(sorted(SHAPES)), rng.choice(PATTERNS)
    count = rng.choice((1, 1, 1, 2, 3, 4, 5))
    cells = rng.sample([(i, j) for i in range(2) for j in range(3)] if count > 1 else list(PLACES), count)
    corner = count == 1 and rng.random() < 0.5
    texture = _texture(pattern, COLOURS[first], COLOURS[second], size, rng)
    for i, j in cells:
        radius = size * (rng.uniform(0.11, 0.15) if count > 1 else 0.2 if corner else rng.uniform(0.28, 0.42))
        x = size * ((i + 0.5) / 2 if count > 1 or corner else 0.5)
        y = size * ((j + 0.5) / 3 if count > 1 else (j + 0.5) / 2 if corner else 0.5)
        _place(canvas, shape, texture, (x, y), radius, rng.uniform(-0.4, 0.4))
    exact = _phrase(count, first, pattern, shape)
    captions = [f"{exact} on a {background} background", exact, _phrase(count, "", pattern, shape)]
    captions.append(_phrase(count, first, "plain", shape))
    captions.append(f"a drawing of {exact}")
    if corner:
        captions.append(f"{exact} in the {PLACES[cells[0]]} corner")
    return canvas.resize((SIZE, SIZE), Image.Resampling.BOX), captions


def drawn_source(count: int, seed: int) -> tuple[list[Image.Image], list[Record]]:
    """`count` drawn images and their records."""
    rng = random.Random(seed)
    drawings: Sequence[tuple[Image.Image, list[str]]] = [draw_image(rng) for _ in range(count)]
    records = [
        Record(id=f"drawn/{n}", offset=0, length=0, captions=tuple(captions))
        for n, (_, captions) in enumerate(drawings)
    ]
    return [image for image, _ in drawings], records
