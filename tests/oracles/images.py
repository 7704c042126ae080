"""Random pixels as training images of a method."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.methods.base import Batch, Fitter


@cache
def tiny_clip() -> CLIP:
    """A backbone with the weights that every test has by default."""
    return make_clip()


class Images:
    """Images of random pixels, the given number of each class; augmented views are shifted copies.

    Frozen features are those of the tiny backbone.
    """

    def __init__(self, counts: tuple[int, ...], seed: int = 0, validation: Images | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.pixels = torch.randn(len(self.labels), 3, 32, 32, generator=generator)
        self.groups = torch.arange(len(self.labels))
        self.validation = validation
        self.fitter: Fitter | None = None

    def view(self, v: int, crop_low: float = 0.08) -> Tensor:
        return self.pixels + 0.1 * (v + 1) * (crop_low / 0.08)

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0, crop_low: float = 0.08) -> Tensor:
        with torch.no_grad():
            if views == 0:
                return encode(self.pixels)
            return torch.cat([encode(self.view(v, crop_low)) for v in range(views)])

    def frozen_features(self, *, views: int = 0, mirrored: bool = False, crop_low: float = 0.08) -> Tensor:
        def encode(pixels: Tensor) -> Tensor:
            return tiny_clip().encode_image(pixels.flip(-1) if mirrored else pixels)

        return self.map(encode, views=views, crop_low=crop_low)

    def batch(self, seed: int = 0) -> Batch:
        return Batch(self.pixels, self.labels, seeds.generator(seed, "test"))
