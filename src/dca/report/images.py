"""Images inside a page: small JPEG files as data addresses."""

from __future__ import annotations

import base64
import io
from functools import partial

from PIL import Image

from dca.images.decode import ImageLike, Unreadable, try_decode_all
from dca.images.reading import encode_jpeg


def data_address(jpeg: bytes) -> str:
    """The content of a JPEG file as an address."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode('ascii')}"


def addresses(images: list[ImageLike], side: int) -> list[str]:
    """Each image with at most `side` pixels; "" for one that cannot be read any more."""
    found = try_decode_all(images, partial(encode_jpeg, side=side))
    return ["" if isinstance(one, Unreadable) else data_address(one) for one in found]


def smaller(jpeg: bytes, side: int) -> str:
    """A JPEG file, made smaller, as an address."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return data_address(encode_jpeg(image.convert("RGB"), side=side))


def picture(image: Image.Image, side: int) -> str:
    """An image in memory as an address."""
    return data_address(encode_jpeg(image, side=side))
