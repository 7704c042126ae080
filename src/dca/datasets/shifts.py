"""Shifted versions of a dataset: "eurosat@noise" is EuroSAT's test part with noise in every image.

A shift changes an image but not its class: a corruption or another style, computed here. It is a function of the image
alone: the random numbers of `noise` come from a stream that the pixels decide. Lengths are shares of the short side, so
that a shift is as strong in small images as in large ones.

Changed images are files in the cache folder, created when they are asked for the first time and named by the hash of
their originals. Existing files are not created again, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from dca.core.errors import UserError, unknown_name
from dca.core.files import atomic_write, cache_folder, explain_write_errors
from dca.core.locks import hold_lock
from dca.datasets.dataset import Dataset, LabelledImage
from dca.images.decode import ImageLike, decode_all, open_bytes
from dca.images.hashing import sha256_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Folder below the cache folder. The number changes with what a function below does.
FOLDER = "shifts-1"
# Standard deviation of the noise, in levels of 0 to 255.
NOISE = 30.0
# Standard deviation of the blur, and side of a block, as shares of the short side.
BLUR, BLOCK = 0.02, 0.04
BRIGHTNESS, CONTRAST = 0.5, 0.6
JPEG_QUALITY = 8
# Of 256 hues: a third of the circle, red becomes green.
HUE = 85
POSTERISE_BITS = 2
# Gradient in levels at which a line of the sketch is black.
SKETCH_BLACK = 64.0
# Weights of red, green and blue in the grey of the sketch (ITU-R BT.601, as Pillow's).
GREY = (0.299, 0.587, 0.114)


# Names and datasets


@dataclass(frozen=True)
class Shift:
    """One way to change an image.

    Attributes:
        apply: RGB image -> RGB image of the same size.
        about: What it does, in words.
    """

    apply: Callable[[Image.Image], Image.Image]
    about: str


def split_shift_name(name: str) -> tuple[str, str]:
    """The dataset and the kind of a name such as "eurosat@noise"; the kind is empty where there is none.

    >>> split_shift_name("eurosat@noise"), split_shift_name("eurosat")
    (('eurosat', 'noise'), ('eurosat', ''))
    """
    base, at, kind = name.rpartition("@")
    return (base, kind) if at and base else (name, "")


def shift_dataset(dataset: Dataset, kind: str) -> Dataset:
    """The test part of a dataset with every image changed; the classes stay.

    Args:
        dataset: The dataset; only its test images are used.
        kind: One of `SHIFTS`.

    Returns:
        A dataset with test images only, called "NAME@KIND".

    Raises:
        UserError: If there is no such kind, there are no test images, or some cannot be read.
    """
    if kind not in SHIFTS:
        raise unknown_name("kind of shift", kind, SHIFTS, hint=f"one of: {', '.join(SHIFTS)}")
    if not dataset.test:
        raise UserError(f"{dataset.name} has no test images to change.", hint="give a dataset that has")
    folder = cache_folder() / FOLDER / kind
    files = _create_files([item.image for item in dataset.test], kind, folder)
    test = tuple(LabelledImage(file, item.label) for file, item in zip(files, dataset.test, strict=True))
    words = "; ".join(filter(None, [dataset.split, f"{kind}: {SHIFTS[kind].about}"]))
    return replace(dataset, name=f"{dataset.name}@{kind}", train=(), val=(), test=test, root=folder, split=words)


def _create_files(images: Sequence[ImageLike], kind: str, folder: Path) -> list[Path]:
    """The files of the changed images; missing ones are created, by one process at a time."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / ".lock", wait=math.inf):
            files = [folder / f"{sha256_of(image)}.png" for image in images]
            missing = {file: image for file, image in zip(files, images, strict=True) if not file.is_file()}
            decode_all(list(missing.values()), [partial(_write, file, kind) for file in missing])
    return files


def _write(file: Path, kind: str, image: Image.Image) -> None:
    with atomic_write(file) as unfinished:
        SHIFTS[kind].apply(image).save(unfinished, "PNG", compress_level=1)


# The changes


def noise(image: Image.Image) -> Image.Image:
    """Independent Gaussian noise on every value, clipped."""
    pixels = np.asarray(image)
    digest = hashlib.sha256(f"{image.width}x{image.height}\n".encode() + pixels.tobytes()).digest()
    values = np.random.default_rng(int.from_bytes(digest[:8], "big")).standard_normal(pixels.shape, dtype=np.float32)
    return _to_image(pixels + NOISE * values)


def blur(image: Image.Image) -> Image.Image:
    """Gaussian blur."""
    return image.filter(ImageFilter.GaussianBlur(BLUR * min(image.size)))


def dark(image: Image.Image) -> Image.Image:
    """Half as bright, with less contrast."""
    return ImageEnhance.Contrast(ImageEnhance.Brightness(image).enhance(BRIGHTNESS)).enhance(CONTRAST)


def jpeg(image: Image.Image) -> Image.Image:
    """Strong JPEG compression."""
    stored = io.BytesIO()
    image.save(stored, "JPEG", quality=JPEG_QUALITY)
    return open_bytes(stored.getvalue())


def pixelate(image: Image.Image) -> Image.Image:
    """Square blocks of one colour each."""
    block = max(2.0, BLOCK * min(image.size))
    small = max(1, round(image.width / block)), max(1, round(image.height / block))
    return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.NEAREST)


def grey(image: Image.Image) -> Image.Image:
    """Without colours."""
    return ImageOps.grayscale(image).convert("RGB")


def hue(image: Image.Image) -> Image.Image:
    """All hues turned by a third of the circle; brightness and saturation stay."""
    values = np.array(image.convert("HSV"))
    values[..., 0] += HUE  # uint8 wraps around as hues do
    return Image.fromarray(values, "HSV").convert("RGB")


def posterise(image: Image.Image) -> Image.Image:
    """Four levels per channel."""
    return ImageOps.posterize(image, POSTERISE_BITS)


def sketch(image: Image.Image) -> Image.Image:
    """Dark lines on white where the grey level changes: the length of its gradient by central differences."""
    levels = np.asarray(image).astype(np.float32) @ np.array(GREY, dtype=np.float32)
    padded = np.pad(levels, 1, mode="edge")
    across, down = padded[1:-1, 2:] - padded[1:-1, :-2], padded[2:, 1:-1] - padded[:-2, 1:-1]
    lines = np.hypot(across, down) / SKETCH_BLACK
    return _to_image(np.repeat(255.0 * (1.0 - lines)[..., None], 3, axis=2))


def _to_image(values: NDArray[np.float32]) -> Image.Image:
    """Values (H, W, 3) in levels as an image: rounded and clipped."""
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8), "RGB")


SHIFTS: Mapping[str, Shift] = {
    "noise": Shift(noise, "Gaussian noise, standard deviation 30 of 255 levels"),
    "blur": Shift(blur, "Gaussian blur, standard deviation 2 % of the short side"),
    "dark": Shift(dark, "brightness × 0.5, then contrast × 0.6 about the mean"),
    "jpeg": Shift(jpeg, "JPEG of quality 8"),
    "pixelate": Shift(pixelate, "blocks of 4 % of the short side, at least 2 pixels"),
    "grey": Shift(grey, "no colours"),
    "hue": Shift(hue, "hues turned by a third of the circle"),
    "posterise": Shift(posterise, "4 levels per channel"),
    "sketch": Shift(sketch, "dark lines on white where the grey level changes"),
}
