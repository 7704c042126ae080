"""The forms of one image: a path, a PIL image, an array, a tensor, bytes, or an open file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from PIL import Image

from dca.core.actions import download_first
from dca.core.errors import UserError
from dca.data.dataset import ImageLike
from dca.data.decode import open_bytes
from dca.data.pixels import image_from_pixels, is_pixels, one_image

_URL = re.compile(r"[a-z][a-z0-9+.-]+://|data:image/", re.IGNORECASE)


def is_single_image(X: Any) -> bool:
    """Whether X is a single image rather than several; a path to a folder is several."""
    if isinstance(X, str | Path):
        return not os.path.isdir(X)
    if is_pixels(X):
        return one_image(X)
    return isinstance(X, Image.Image | bytes | bytearray | memoryview) or _is_file(X)


def as_image(x: Any) -> ImageLike:
    """A path, or an image in memory; raises UserError for what is neither an image nor a path to one."""
    refuse_url(x)
    if isinstance(x, Image.Image | Path):
        return x
    if isinstance(x, str):
        return Path(x)
    if is_pixels(x):
        return image_from_pixels(x)
    if isinstance(x, bytes | bytearray | memoryview):
        return open_bytes(bytes(x))
    if _is_file(x):
        return open_bytes(_content(x))
    raise UserError(
        f"an image must be a path, a PIL image, an array, a tensor, bytes or an open file, not a {type(x).__name__}",
        hint="give one of these for each image",
    )


def refuse_url(x: Any) -> None:
    """Raise for an address of the web or of a store: nothing is downloaded."""
    if isinstance(x, str) and _URL.match(x):
        raise UserError(f"'{x[:80]}' is a URL, and images are not downloaded", hint=download_first())


def _is_file(x: Any) -> bool:
    return hasattr(x, "read") and not isinstance(x, Image.Image)


def _content(file: Any) -> bytes:
    """What an open file holds from where it is."""
    data = file.read()
    if not isinstance(data, bytes):
        raise UserError("the file is open as text", hint='open it with open(path, "rb")')
    return data
