"""An encoder that knows no texts: colours of the quarters of an image."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

from dca.backbones.encoder import Encoder
from dca.backbones.preprocess import Preprocess


class ColourEncoder(Encoder):
    """Features (B, 12): mean colour of each quarter, passed through a fixed matrix. labels: names that it can tell."""

    def __init__(self, source: str = "colours", size: int = 8, labels: Sequence[str] = ()) -> None:
        super().__init__()
        self.source, self.labels = source, tuple(labels)
        self.preprocess = Preprocess(size=size, resize=size, resample=2, mean=(0.4,) * 3, std=(0.3,) * 3)
        self.mix = nn.Parameter(torch.randn(12, 12, generator=torch.Generator().manual_seed(size)), False)

    @property
    def feature_dim(self) -> int:
        return 12

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.source} {self.preprocess.size}".encode()).hexdigest()

    @property
    def device(self) -> torch.device:
        return self.mix.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def floats_per_image(self) -> int:
        return self.preprocess.values

    def with_dtype(self, dtype: torch.dtype, *, features: torch.dtype | None = None) -> Self:
        return self

    def to_device(self, device: torch.device | str) -> Self:
        return self

    def encode_image(self, images: Sequence[Image.Image] | Tensor) -> Tensor:
        pixels = images if isinstance(images, Tensor) else self.preprocess(images)
        quarters = nn.functional.adaptive_avg_pool2d(pixels, 2)
        return quarters.flatten(1) @ self.mix

    def describe(self) -> dict[str, Any]:
        return {"kind": "colours"}

    @property
    def label_names(self) -> Sequence[str]:
        return self.labels

    def label_classifier(self) -> tuple[Tensor, Tensor]:
        weight = torch.randn(len(self.labels), 12, generator=torch.Generator().manual_seed(7))
        return 4 * weight, torch.zeros(len(self.labels))
