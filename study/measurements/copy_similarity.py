"""How similar copies of photos are, and different photos: what the default of `dca similar --threshold` is based on.

    python study/measurements/copy_similarity.py FOLDER [--images 120] [--backbone auto]

Takes photos of a folder at random, and makes copies of each in four ways. The default was chosen on photos of
Caltech-101; docs/your-own-images.md has the figures of others, of Flowers102.
"""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Callable
from pathlib import Path

import click
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Encoder
from dca.model.archive_copies import THRESHOLD
from dca.training.session import Session

BATCH = 16


def compress(image: Image.Image) -> Image.Image:
    """A JPEG of quality 60."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(file).convert("RGB")


def crop(image: Image.Image) -> Image.Image:
    """Without a margin of 5 %."""
    w, h = image.size
    return image.crop((w // 20, h // 20, w - w // 20, h - h // 20))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG of quality 60": compress,
    "a tenth brighter": lambda image: image.point(lambda value: min(255, int(value * 1.1))),
    "without a margin of 5 %": crop,
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.BILINEAR),
}


def encode(encoder: Encoder, images: list[Image.Image]) -> Tensor:
    """Unit features, (N, D)."""
    with torch.no_grad():
        parts = [encoder.encode_image(images[n : n + BATCH]) for n in range(0, len(images), BATCH)]
    return F.normalize(torch.cat(parts).float(), dim=-1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="photos, also in folders below it")
    parser.add_argument("--images", type=int, default=120, help="how many of them")
    parser.add_argument("--backbone", default="auto", help="as for dca fit")
    given = parser.parse_args()
    files = sorted(path for path in given.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    random.Random(0).shuffle(files)
    images = [Image.open(path).convert("RGB") for path in files[: given.images]]
    encoder = Session(device="cpu").load_backbone(given.backbone)
    features = encode(encoder, images)
    for name, make in COPIES.items():
        cosines = (features * encode(encoder, list(map(make, images)))).sum(1)
        reach = int((cosines >= THRESHOLD).sum())
        click.echo(f"{name}: least {cosines.min():.3f}; {reach} of {len(images)} reach {THRESHOLD}")
    others = (features @ features.T).fill_diagonal_(-1)
    click.echo(f"different photos: most {others.max():.3f}; {torch.triu(others >= THRESHOLD).sum()} pairs reach it")


if __name__ == "__main__":
    main()
