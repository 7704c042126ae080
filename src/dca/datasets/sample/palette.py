"""Colours that go together, and small shifts of them that differ from image to image."""

from __future__ import annotations

import numpy as np

from dca.datasets.sample.outline import Colour

# Muted, warm-leaning pigments: any two of them sit well side by side.
PIGMENTS = {
    "red": "c8404f",
    "coral": "e8704e",
    "orange": "f09a38",
    "yellow": "f5c84f",
    "lime": "a9b94a",
    "green": "5f9453",
    "forest": "33604f",
    "teal": "3b938b",
    "sky": "8dc3d8",
    "blue": "3f72aa",
    "navy": "263f63",
    "violet": "7b5d9c",
    "pink": "e695a6",
    "brown": "855637",
    "tan": "d3a877",
    "cream": "f6e9d3",
    "white": "fbf7ef",
    "grey": "8a8f99",
    "charcoal": "34363f",
}
_SHADE = np.array([0.13, 0.15, 0.27])
_LIGHT = np.array([1.0, 0.97, 0.90])


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """Colour `share` of the way from a to b."""
    r, g, b_ = (1 - share) * np.asarray(a) + share * np.asarray(b)
    return float(r), float(g), float(b_)


def dark(colour: Colour, share: float = 0.25) -> Colour:
    """Colour in the shade: towards deep blue, not black, which keeps it alive."""
    return mix(colour, (_SHADE[0], _SHADE[1], _SHADE[2]), share)


def light(colour: Colour, share: float = 0.3) -> Colour:
    """Colour in the sun: towards warm white."""
    return mix(colour, (_LIGHT[0], _LIGHT[1], _LIGHT[2]), share)


class Palette:
    """The pigments of one image: all shifted together a little, and chosen from at random.

    rng: random stream of the image, shared with its motif.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._shift = rng.normal(0, 0.025, 3)
        self._grey = rng.uniform(0, 0.12)

    def __call__(self, *names: str) -> Colour:
        """One of the named pigments, picked at random, with its own small shift."""
        code = PIGMENTS[names[int(self.rng.integers(len(names)))]]
        rgb = np.array([int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)])
        rgb += self._shift + self.rng.normal(0, 0.02, 3)
        rgb += self._grey * (rgb.mean() - rgb)
        r, g, b = np.clip(rgb, 0, 1)
        return float(r), float(g), float(b)
