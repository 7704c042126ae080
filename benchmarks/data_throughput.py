"""Speed of image input: decoding for evaluation, and augmentation compared with a training step.

    python benchmarks/data_throughput.py [--backbone mini] [--images 400] [--json]

Each is compared with a plain reference in the same run: streamed decoding with a loop over Pillow, batched
augmentation with Pillow's crop and resize of the same boxes, one image at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from PIL import Image

from dca.backbones.clip import CLIP
from dca.backbones.preprocess import Preprocess
from dca.datasets.dataset import LabelledImage
from dca.images.crops import random_crops
from dca.images.decode import iter_decode
from dca.methods.base import Problem
from dca.methods.dca import DCA, DCAOptions
from dca.training.loop import Trainer
from dca.training.session import Session
from dca.training.support import ImageSupport

PHOTO = (500, 375)
SHOTS, CLASSES, STORED = 16, 10, 224
TRANSFORM = Preprocess(size=224, resize=224, resample=3, mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28))


def draw_photo(seed: int, size: tuple[int, int]) -> Image.Image:
    """An image with the spectrum of a photo: finer detail is fainter."""
    rng = np.random.default_rng(seed)
    levels = np.zeros((size[1], size[0], 3))
    for octave in range(9):
        cells = (min(size[1], 2 + 2**octave), min(size[0], 2 + 2**octave), 3)
        layer = [Image.fromarray(rng.normal(0, 1, cells[:2]).astype(np.float32)) for _ in range(3)]
        levels += np.stack([np.asarray(c.resize(size, Image.Resampling.BICUBIC)) for c in layer], 2) * 40 / 1.2**octave
    return Image.fromarray(np.clip(levels + 120, 0, 255).astype(np.uint8))


def measure_core_seconds(work: Callable[[], object], repeats: int) -> float:
    """Median processor time of one call, summed over all threads.

    Unlike wall-clock time, it hardly depends on what else the machine is doing.
    """
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def measure_decoding(count: int) -> dict[str, float]:
    """Images per second at 500 x 375, JPEG in, uint8 224 x 224 out."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{k}.jpg" for k in range(count)]
        for k, path in enumerate(paths):
            draw_photo(k % 20, PHOTO).save(path, quality=90)
        kilobytes = sum(path.stat().st_size for path in paths) / count / 1000

        def plain() -> None:
            for path in paths:
                TRANSFORM.crop(Image.open(path).convert("RGB"))

        def streamed() -> None:
            for _ in iter_decode(paths, TRANSFORM.crop, workers=os.cpu_count() or 1, ahead=64):
                pass

        start = time.perf_counter()
        streamed()
        wall = time.perf_counter() - start
        return {
            "kilobytes_per_image": kilobytes,
            "plain_loop_per_core_second": count / measure_core_seconds(plain, 3),
            "streamed_per_core_second": count / measure_core_seconds(streamed, 3),
            "streamed_per_second_now": count / wall,
            "cores": os.cpu_count() or 1,
        }


def measure_training(backbone: str) -> dict[str, float]:
    """A DCA step on 160 images of 224 px held in memory, and the share of the images in its time."""
    clip = CLIP.from_pretrained(backbone).freeze()
    photos = [draw_photo(k, (STORED, STORED)) for k in range(SHOTS * CLASSES)]
    items = [LabelledImage(image, n // SHOTS) for n, image in enumerate(photos)]
    images = ImageSupport(items, Session(device="cpu"), clip, seed=1)
    problem = Problem(names=tuple(f"thing {k}" for k in range(CLASSES)), shots=SHOTS, seed=1)
    options = DCAOptions(epochs=1, batch_size=32, learning_rate=0.01)
    trainer = Trainer(DCA.build(clip, problem, options), images, options, 1)
    generator = torch.Generator().manual_seed(0)
    batch = torch.arange(32) * 5
    size = clip.preprocess.size
    heights = widths = torch.full((32,), STORED)

    def one_at_a_time() -> None:
        crops = random_crops(heights, widths, generator)
        for k, i in enumerate(batch.tolist()):
            left, top = int(crops.left[k]), int(crops.top[k])
            box = (left, top, left + int(crops.width[k]), top + int(crops.height[k]))
            np.asarray(photos[i].crop(box).resize((size, size), Image.Resampling.BICUBIC))

    step = measure_core_seconds(lambda: trainer._step(next(trainer._batches([batch], generator)), 0.01), 10)
    ours = measure_core_seconds(lambda: images.pixels(batch, generator, augment=True), 20)
    held = measure_core_seconds(lambda: images.pixels(batch, generator, augment=False), 20)
    return {
        "image_size": size,
        "step_core_ms": 1000 * step,
        "augmented_batch_core_ms": 1000 * ours,
        "fixed_batch_core_ms": 1000 * held,
        "pillow_batch_core_ms": 1000 * measure_core_seconds(one_at_a_time, 20),
        "share_of_step": ours / (step - ours),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="mini", help="checkpoint for the training step")
    parser.add_argument("--images", type=int, default=400, help="JPEG files to decode")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    torch.set_num_threads(1)  # waiting threads would count as work
    result = {"decoding": measure_decoding(given.images), "training": measure_training(given.backbone)}
    if given.json:
        click.echo(json.dumps(result, indent=1))
        return
    for part, figures in result.items():
        click.echo(part)
        for name, value in figures.items():
            click.echo(f"  {name.replace('_', ' '):<24} {value:10.4g}")


if __name__ == "__main__":
    main()
