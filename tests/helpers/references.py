"""What comparisons with reference libraries share: real photos, texts, and weights that show every lost tensor."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import torch
from PIL import Image
from torch import nn

from conftest import SHARED
from dca.datasets.sample import load_sample

Model = TypeVar("Model", bound=nn.Module)
# Real photos of several shapes; drawn images where they are not beside the clone.
PHOTOS = (
    "caltech-101/101_ObjectCategories/accordion/image_0001.jpg",
    "caltech-101/101_ObjectCategories/ant/image_0002.jpg",
    "oxford_flowers/jpg/image_00001.jpg",
    "oxford_flowers/jpg/image_00100.jpg",
)


@cache
def photos() -> list[Image.Image]:
    """Four images, not square."""
    paths = [SHARED / "data" / "images" / name for name in PHOTOS]
    if all(path.is_file() for path in paths):
        return [Image.open(path).convert("RGB") for path in paths]
    sample = load_sample(per_class_train=1, per_class_test=1, size=48)
    return [item.image.convert("RGB").resize((70 + 20 * n, 60)) for n, item in enumerate(sample.train[:4])]


def texts() -> list[str]:
    """Six texts of different lengths, one of them longer than any context."""
    return [
        "a photo of a cat.",
        "dog",
        "A painting, of the Straße  in 1999 & more!",
        "an accordion on a table",
        "",
        "flower " * 90,
    ]


@torch.no_grad()
def shake(model: Model, seed: int = 0) -> Model:
    """Random values in every parameter and buffer, so that none can be lost, exchanged or zero; in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point() or name.endswith(("attn_mask", "logit_scale", "logit_bias")):
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("running_var"):
            tensor.copy_(1 + 0.2 * noise.abs())
        elif tensor.dim() < 2:
            tensor.add_(0.1 * noise)
        else:
            tensor.add_(0.3 * tensor.std() * noise if tensor.std() > 0 else 0.02 * noise)
    return model.eval()
