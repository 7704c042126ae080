"""The process that decodes untrusted images: `python -m dca.serve.decode_worker OPTIONS`, started by `decoder.py`.

It writes an empty frame when it is ready, then reads image files from stdin and writes size, pixels and thumbnail of
each to stdout, as frames: four bytes with the length, then the content. It is limited in memory, writes no file, and is
killed by the server when it takes too long. torch is not imported here, so that the process starts quickly and takes
little memory.
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from PIL import Image, UnidentifiedImageError

from dca.images.decode import FORMATS, Crop, ImageRefusedError, center_crop, enable_heif, load_rgb, open_header

# Longer side of a thumbnail in pixels, and its JPEG quality.
THUMBNAIL, QUALITY = 320, 82
# Bytes of the length in front of a frame.
LENGTH = 4


@dataclass(frozen=True)
class DecodeOptions:
    """How images are decoded.

    crops: of each encoder's preprocessing. pixels: most pixels of an image. memory: bytes that the process may use
    beyond those at its start.
    """

    crops: Sequence[Crop]
    pixels: int
    memory: int


def main() -> None:
    """Decode files until stdin ends. The only argument is `DecodeOptions` as a JSON object."""
    options = DecodeOptions(**json.loads(sys.argv[1]))
    enable_heif()
    Image.init()
    warnings.simplefilter("ignore")  # about odd metadata; too many pixels are refused below
    Image.MAX_IMAGE_PIXELS = options.pixels
    limit_process(options.memory)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    target.write(bytes(LENGTH))
    target.flush()
    while (data := read_frame(source)) is not None:
        for part in decode_frames(data, options):
            target.write(len(part).to_bytes(LENGTH, "big") + part)
        target.flush()


def limit_process(memory: int) -> None:
    """Allow `memory` more bytes, no written files and no core dump, where the system has such limits."""
    try:
        import resource
    except ImportError:  # Windows
        return
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_frame(source: BinaryIO) -> bytes | None:
    """Return the next frame; None at the end."""
    head = source.read(LENGTH)
    return source.read(int.from_bytes(head, "big")) if len(head) == LENGTH else None


def decode_frames(data: bytes, options: DecodeOptions) -> tuple[bytes, bytes, bytes]:
    """Return the frames of one reply: facts as JSON, the pixels (3, S, S) for each encoder, and a small JPEG."""
    try:
        facts, pixels, small = decode_upload(data, options)
    except RefusedError as refused:
        facts, pixels, small = {"code": refused.code, "error": str(refused)}, b"", b""
    except MemoryError:
        facts, pixels, small = {"code": "image-large", "error": "the image needs too much memory"}, b"", b""
    except Exception:  # decoders raise almost anything on damaged files
        facts, pixels, small = {"code": "image-damaged", "error": "the image is damaged or cut off"}, b"", b""
    return json.dumps(facts).encode(), pixels, small


class RefusedError(Exception):
    """An image that is refused. code: what is wrong, as in `dca.serve.errors`."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def decode_upload(data: bytes, options: DecodeOptions) -> tuple[dict[str, Any], bytes, bytes]:
    """Return facts, encoder pixels and a small JPEG of an image file; raises RefusedError."""
    try:
        image = open_header(io.BytesIO(data))
    except Image.DecompressionBombError:
        raise too_large_error(options.pixels) from None
    except ImageRefusedError as refused:
        raise RefusedError("image-large" if refused.too_large else "image-damaged", str(refused)) from None
    except UnidentifiedImageError:
        known = ", ".join(name for name in FORMATS if name in Image.OPEN)
        raise RefusedError("image-format", f"not an image in a known format ({known})") from None
    with image:
        if image.width * image.height > options.pixels:
            raise too_large_error(options.pixels)
        suffix = FORMATS.get(image.format or "", FORMATS["JPEG"])[0]
        rgb = load_rgb(image)
    pixels = b"".join(center_crop(rgb, *crop).tobytes() for crop in options.crops)
    facts = {"width": rgb.width, "height": rgb.height, "suffix": suffix}
    return facts, pixels, make_thumbnail(rgb)


def too_large_error(pixels: int) -> RefusedError:
    """The refusal of an image with too many pixels."""
    return RefusedError("image-large", f"the image has more than {pixels / 1e6:g} million pixels")


def make_thumbnail(image: Image.Image) -> bytes:
    """Return a small JPEG of an RGB image, without its metadata."""
    factor = min(1.0, THUMBNAIL / max(image.size))
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    small = image.resize(size, Image.Resampling.LANCZOS) if factor < 1 else image.copy()
    file = io.BytesIO()
    small.info = {}  # drops comments, GPS positions and other metadata
    small.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


if __name__ == "__main__":
    main()
