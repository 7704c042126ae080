"""The GPU kernel that crops and resizes, in Triton's interpreter, equals the plain implementation."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported, which happens when they are first used
pytest.importorskip("triton", reason="Triton is not available for this system")

from dca.images.crops import crop_resize, crop_resize_triton, random_crops


def noise(count: int, generator: torch.Generator) -> list[Tensor]:
    """Images of different sizes in one piece of memory."""
    shapes = [(3, 30 + 7 * k, 50 - 3 * k) for k in range(count)]
    drawn = [torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator) for shape in shapes]
    parts = torch.split(torch.cat([image.flatten() for image in drawn]), [image.numel() for image in drawn])
    return [part.view(image.shape) for part, image in zip(parts, drawn, strict=True)]


@pytest.mark.parametrize("size", [24, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 64))])
def test_the_kernel_equals_the_plain_implementation(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    images = noise(5, generator)
    sizes = torch.tensor([image.shape[1:] for image in images])
    crops = replace(random_crops(sizes[:, 0], sizes[:, 1], generator), flip=torch.tensor([True, False] * 2 + [True]))
    want = crop_resize(images, crops, size, "cpu")
    places = torch.tensor([(image.storage_offset(), *image.shape[1:]) for image in images])
    got = crop_resize_triton(torch.cat([image.flatten() for image in images]), places, crops, size)
    # Values half-way between two levels may be rounded either way.
    assert float((got - want).abs().max()) <= 1
    assert float((got != want).float().mean()) < 1e-3
