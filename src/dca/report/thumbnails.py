"""Images inside a page: small JPEG files as data URLs."""

from __future__ import annotations

import base64
from functools import partial

from PIL import Image

from dca.images.decode import ImageLike, Unreadable, open_bytes, try_decode_all
from dca.images.reading import encode_jpeg


def to_data_url(jpeg: bytes) -> str:
    """The content of a JPEG file as a data URL."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode('ascii')}"


def image_url(image: Image.Image, side: int) -> str:
    """The data URL of an image with at most `side` pixels per side."""
    return to_data_url(encode_jpeg(image, side=side))


def shrink_jpeg(jpeg: bytes, side: int) -> str:
    """The data URL of a JPEG file, made smaller."""
    return image_url(open_bytes(jpeg), side)


def thumbnail_urls(images: list[ImageLike], side: int) -> list[str]:
    """The data URL of each image; "" for one that cannot be read any more."""
    outcomes = try_decode_all(images, partial(encode_jpeg, side=side))
    return ["" if isinstance(outcome, Unreadable) else to_data_url(outcome) for outcome in outcomes]
