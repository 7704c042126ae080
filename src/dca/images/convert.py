"""The forms in which a caller may hold one image: a path, a PIL image, an array, a tensor, bytes, or an open file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dca.core.errors import UserError
from dca.core.hints import download_first, raise_pixel_limit
from dca.images.decode import ImageLike, ImageRefusedError, open_bytes, refuse_size

CHANNELS = (1, 3, 4)
# Floats that are out of [0, 1] by no more than this were rounded on the way.
SLACK = 1e-3
# Floats with a value above this are levels of 0 to 255: with no level above it, an image would be black.
DARK = 16
# Bytes that are read from an open file at a time.
AT_ONCE = 2**20


def is_array(x: Any) -> bool:
    """Whether x is an array or tensor of numbers; arrays of text or objects are lists of something else."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "buif"
    return _is_tensor(x)


def _is_tensor(x: Any) -> bool:
    """Whether x is a tensor of torch, or of another library that has its interface."""
    return all(hasattr(x, name) for name in ("detach", "cpu", "ndim", "shape", "__array__"))


def is_image_array(x: Any) -> bool:
    """Whether an array is one image rather than several: (H, W), (H, W, C) or (C, H, W)."""
    return x.ndim in (2, 3)


def image_from_array(x: Any) -> Image.Image:
    """The image of an array (H, W) or (H, W, C) or a tensor (C, H, W), of 1, 3 or 4 channels.

    Where both the first and the last axis could be the channels, they are the last of an array and the first of a
    tensor. Whole numbers are levels of 0 to 255; floats are in [0, 1], or levels of 0 to 255 as well if one is above 16
    (an image without a pixel above that is black).

    >>> image_from_array(np.ones((2, 3, 3))).getpixel((0, 0))
    (255, 255, 255)
    """
    pixels = np.asarray(x.detach().float().cpu() if _is_tensor(x) and _is_float(x) else _to_cpu(x))
    levels = _to_levels(_move_channels_last(pixels, first=_is_tensor(x)))
    return Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)


def _is_float(x: Any) -> bool:
    """Whether a tensor is of floats, perhaps of a type that NumPy does not know (bfloat16)."""
    return bool(getattr(x, "is_floating_point", lambda: False)())


def _to_cpu(x: Any) -> Any:
    return x.detach().cpu() if _is_tensor(x) else x


def _move_channels_last(pixels: NDArray[Any], *, first: bool) -> NDArray[Any]:
    """Pixels (H, W, C). first: prefer channels first where both are possible."""
    if pixels.size and pixels.ndim == 2:
        return pixels[..., None]
    if pixels.size and pixels.ndim == 3:
        ends = [pixels.shape[0] in CHANNELS, pixels.shape[-1] in CHANNELS]
        if ends[0] and (first or not ends[1]):
            return np.moveaxis(pixels, 0, -1)
        if ends[1]:
            return pixels
    raise UserError(
        f"an array of shape {pixels.shape} is no image",
        hint="give (H, W), (H, W, 3) or (3, H, W); several images as (N, H, W, 3) or as a list",
    )


def _to_levels(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels as levels of 0 to 255."""
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * 255
    low, high = float(pixels.min()), float(pixels.max())
    most, slack = (1, SLACK) if pixels.dtype.kind == "f" and not high > DARK else (255, 0)
    if not -slack <= low <= high <= most + slack:
        raise UserError(
            f"pixels of an array are from {low:g} to {high:g}; [0, 1] or [0, 255] expected",
            hint="undo a normalisation, or divide by the largest possible value",
        )
    levels: NDArray[np.uint8] = np.rint(np.clip(pixels, 0, most) * (255 / most)).astype(np.uint8)
    return levels


_URL = re.compile(r"[a-z][a-z0-9+.-]+://|data:image/", re.IGNORECASE)


def is_single_image(X: Any) -> bool:
    """Whether X is a single image rather than several; a path to a folder is several."""
    if isinstance(X, str | Path):
        return not os.path.isdir(X)
    if is_array(X):
        return is_image_array(X)
    return isinstance(X, Image.Image | bytes | bytearray | memoryview) or _is_file(X)


def as_image(x: Any) -> ImageLike:
    """A path, or an image in memory; raises UserError for what is neither an image nor a path to one."""
    reject_url(x)
    if isinstance(x, Image.Image | Path):
        return x
    if isinstance(x, str):
        return Path(x)
    if is_array(x):
        return image_from_array(x)
    if isinstance(x, bytes | bytearray | memoryview):
        return open_bytes(bytes(x))
    if _is_file(x):
        return open_bytes(_read_bytes(x))
    raise UserError(
        f"an image must be a path, a PIL image, an array, a tensor, bytes or an open file, not a {type(x).__name__}",
        hint="give one of these for each image",
    )


def reject_url(x: Any) -> None:
    """Raise for an address of the web or of a store: nothing is downloaded."""
    if isinstance(x, str) and _URL.match(x):
        raise UserError(f"'{x[:80]}' is a URL, and images are not downloaded", hint=download_first())


def _is_file(x: Any) -> bool:
    return hasattr(x, "read") and not isinstance(x, Image.Image)


def _read_bytes(file: Any) -> bytes:
    """What an open file holds from where it is; a file that is too large is not read to its end."""
    parts, part, count = list[bytes](), None, 0
    while part != b"":
        part = file.read(AT_ONCE)
        if not isinstance(part, bytes):
            raise UserError("the file is open as text", hint='open it with open(path, "rb")')
        parts.append(part)
        count += len(part)
        try:
            refuse_size(count)
        except ImageRefusedError as error:
            raise UserError(f"cannot read an image from an open file: {error}", hint=raise_pixel_limit()) from error
    return b"".join(parts)
