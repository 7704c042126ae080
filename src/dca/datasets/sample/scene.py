"""An image around a motif: place, light, shadow, clutter, and the faults of a camera."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from dca.datasets.sample.outline import Patch, moved, smooth
from dca.datasets.sample.palette import Palette, dark
from dca.datasets.sample.places import Place, settle

Pixels = NDArray[np.float64]
Motif = Callable[[Palette], list[Patch]]

# Edges are painted this many times larger and averaged down, which smooths them.
FINE = 4


@dataclass(frozen=True)
class Pose:
    """How and where a motif looks natural.

    lean: standard deviation of its rotation, in full turns.
    homes: places where it is usually found.
    """

    lean: float = 0.06
    homes: tuple[Place, ...] = ()


def paint(motif: Motif, pose: Pose, rng: np.random.Generator, size: int) -> Image.Image:
    """Paint one image of a motif.

    size: side of the square image in pixels.
    """
    pal = Palette(rng)
    sun = rng.uniform(-0.35, -0.1)
    place = settle(pose.homes, pal)
    canvas = _layer(place.backdrop(size), place.patches, 0.0)
    patches = _arranged(motif, pose, pal)
    relief = _relief(patches, size)
    canvas = _with_shadow(canvas, relief, sun, rng)
    canvas = _layer(canvas, patches, _line_width(rng))
    canvas = _lit(canvas, relief, sun, rng)
    canvas = _with_foreground(canvas, pal)
    return _photographed(canvas, rng)


def _arranged(motif: Motif, pose: Pose, pal: Palette) -> list[Patch]:
    """One to three of the thing, each with its own size, lean, stretch and place."""
    rng = pal.rng
    count = int(rng.choice([1, 2, 3], p=[0.87, 0.09, 0.04]))
    across = np.linspace(-0.5, 0.5, count) if count > 1 else np.zeros(1)
    patches: list[Patch] = []
    for x in rng.permutation(across):
        scale = rng.uniform(0.72, 0.95) * (1.0, 0.62, 0.48)[count - 1]
        place = x + rng.normal(0, 0.07), rng.normal(0.02, 0.07 if count == 1 else 0.2)
        stretch = np.array([[rng.choice([-1, 1]) * rng.uniform(0.88, 1.12), 0], [rng.normal(0, 0.06), 1]])
        turn = rng.normal(0, pose.lean)
        patches += [
            part._replace(points=moved(part.points @ stretch, *place, turn=turn, scale=scale)) for part in motif(pal)
        ]
    return patches


def _line_width(rng: np.random.Generator) -> float:
    """Width of the ink line around shapes as a share of the image; usually there is none."""
    return float(rng.choice([0.0, rng.uniform(0.006, 0.014)], p=[0.7, 0.3]))


# Layers, light and shadow


def _layer(below: Pixels, patches: Sequence[Patch], line: float) -> Pixels:
    """Patches painted over the pixels (H, W, 3), edges smoothed; `line` inks the raised ones."""
    size = below.shape[0]
    fine = size * FINE
    image = _to_image(below).resize((fine, fine), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image, "RGBA")
    for part in patches:
        corners = ((part.points + 1) * (fine / 2)).ravel().tolist()
        pen.polygon(corners, fill=_rgba(part.colour, part.alpha))
        if line and part.raised:
            pen.line(corners + corners[:2], fill=_rgba(dark(part.colour, 0.75), 0.9), width=max(1, round(line * fine)))
    return np.asarray(image.reduce(FINE)) / 255


def _relief(patches: Sequence[Patch], size: int) -> Image.Image:
    """Height of the paper at each place, one step per raised patch, 0 where there is none."""
    image = Image.new("L", (2 * size, 2 * size))
    pen = ImageDraw.Draw(image)
    height = 110
    for part in patches:
        if part.raised and part.alpha > 0.6:
            height = min(250, height + 12)
            pen.polygon(((part.points + 1) * size).ravel().tolist(), fill=height)
    return image.reduce(2)


def _with_shadow(below: Pixels, relief: Image.Image, sun: float, rng: np.random.Generator) -> Pixels:
    """The pixels darkened where the thing keeps the light away."""
    size = below.shape[0]
    reach = rng.uniform(0.02, 0.08) * size
    dx, dy = -reach * np.cos(2 * np.pi * sun), -reach * np.sin(2 * np.pi * sun)
    mask = relief.point([0] + [255] * 255)
    shifted = mask.transform(mask.size, Image.Transform.AFFINE, (1, 0, -dx, 0, 1, -dy), Image.Resampling.BILINEAR)
    soft = np.asarray(shifted.filter(ImageFilter.GaussianBlur(reach * 0.6))) / 255
    # Shadows keep a little blue: daylight fills them.
    return np.asarray(below * (1 - soft[..., None] * rng.uniform(0.25, 0.55) * np.array([1, 0.95, 0.8])))


def _lit(canvas: Pixels, relief: Image.Image, sun: float, rng: np.random.Generator) -> Pixels:
    """Brighter towards the sun and darker away from it: fine edges of paper, and the whole as a volume."""
    size = canvas.shape[0]
    toward = np.cos(2 * np.pi * sun), np.sin(2 * np.pi * sun)
    shade = np.zeros((size, size))
    for radius, strength in ((0.007 * size, rng.uniform(0.5, 1.1)), (0.07 * size, rng.uniform(1.5, 4.0))):
        height = np.asarray(relief.filter(ImageFilter.GaussianBlur(radius))) / 255
        slope_y, slope_x = np.gradient(height)
        shade -= strength * (slope_x * toward[0] + slope_y * toward[1])
    inside = np.asarray(relief.point([0] + [255] * 255).filter(ImageFilter.GaussianBlur(0.6))) / 255
    shade = (np.clip(shade, -0.35, 0.3) * inside)[..., None]
    return np.asarray(np.where(shade > 0, canvas + shade * (1 - canvas), canvas * (1 + shade)))


def _with_foreground(canvas: Pixels, pal: Palette) -> Pixels:
    """Now and then something close to the lens, out of focus, hides a part."""
    rng = pal.rng
    if rng.random() < 0.85:
        return canvas
    size = canvas.shape[0]
    layer = Image.new("L", (size, size))
    pen = ImageDraw.Draw(layer)
    corner = rng.uniform(0, 1)
    for _ in range(int(rng.integers(1, 4))):
        blade = smooth([(0, -0.13), (0.5, -0.16), (rng.uniform(0.7, 1.0), 0), (0.5, 0.13), (0, 0.1)])
        turn = corner + rng.normal(0, 0.06)
        root = -1.3 * np.cos(2 * np.pi * turn), -1.3 * np.sin(2 * np.pi * turn)
        pen.polygon(
            ((moved(blade, *root, turn=turn + rng.normal(0, 0.03)) + 1) * (size / 2)).ravel().tolist(), fill=255
        )
    soft = np.asarray(layer.filter(ImageFilter.GaussianBlur(size * rng.uniform(0.008, 0.03)))) / 255
    colour = np.asarray(pal("forest", "green", "charcoal", "brown", "pink", "cream", "teal"))
    share = soft[..., None] * rng.uniform(0.75, 0.97)
    return canvas * (1 - share) + colour * share


def _photographed(canvas: Pixels, rng: np.random.Generator) -> Image.Image:
    """Exposure, colour of the light, vignette, focus and grain."""
    size = canvas.shape[0]
    line = np.linspace(-1, 1, size)
    x, y = line[None, :], line[:, None]
    warm = rng.normal(0, 0.05)
    tint = np.array([1 + warm, 1 + rng.normal(0, 0.015), 1 - warm])
    level = np.exp(rng.normal(0.04, 0.1)) * (1 - rng.uniform(0, 0.1) * (x * x + y * y))
    fall = rng.normal(0, 0.1) * x + rng.normal(0, 0.06) * y
    canvas = np.clip(canvas * tint * (level + fall)[..., None], 0, 1)
    canvas = canvas ** np.exp(rng.normal(0, 0.12))
    if rng.random() < 0.03:
        canvas = np.repeat(canvas.mean(axis=2, keepdims=True), 3, axis=2) * np.array([1, 0.97, 0.92])
    image = _to_image(canvas)
    if rng.random() < 0.25:
        image = image.filter(ImageFilter.GaussianBlur(size * rng.uniform(0.002, 0.006)))
    grain = rng.normal(0, rng.uniform(0.003, 0.011), (size, size, 1))
    return _to_image(np.asarray(image) / 255 + grain)


def _to_image(pixels: NDArray[np.floating]) -> Image.Image:
    """Pixels in [0, 1] as an image."""
    return Image.fromarray((np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8))


def _rgba(colour: tuple[float, float, float], alpha: float) -> tuple[int, int, int, int]:
    """Colour for the pen, in bytes."""
    r, g, b = (round(255 * min(1.0, max(0.0, part))) for part in colour)
    return r, g, b, round(255 * alpha)
