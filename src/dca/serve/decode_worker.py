"""The process that decodes images of strangers: `python -m dca.serve.decode_worker SETTINGS`.

It reads image files from stdin and writes what the server needs of them to stdout, each as a frame: four bytes with
its length, then its content. It is limited in memory, writes no file, and is killed by the server when it takes too
long. torch is not imported here: the process starts quickly and takes little memory.
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from typing import Any, BinaryIO

from PIL import Image, UnidentifiedImageError

from dca.images.decode import center_crop, enable_heif, to_rgb

# Formats that are decoded, and the end of the name under which such a file is kept.
FORMATS = {
    "JPEG": ".jpg",
    "MPO": ".jpg",
    "PNG": ".png",
    "WEBP": ".webp",
    "GIF": ".gif",
    "BMP": ".bmp",
    "TIFF": ".tif",
    "AVIF": ".avif",
    "HEIF": ".heic",
}
THUMBNAIL, QUALITY = 320, 82
LENGTH = 4


def main() -> None:
    """Serve frames until stdin ends. The only argument: `Settings.to_json` of the server."""
    settings = json.loads(sys.argv[1])
    enable_heif()
    Image.init()
    warnings.simplefilter("ignore")  # about odd metadata; too many pixels are refused below
    Image.MAX_IMAGE_PIXELS = settings["pixels"]
    limit_process(settings["memory"])
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (data := read_frame(source)) is not None:
        for part in answer(data, settings):
            target.write(len(part).to_bytes(LENGTH, "big") + part)
        target.flush()


def limit_process(memory: int) -> None:
    """Allow so many more bytes of memory, no file to be written and no core dump, where the system has such limits."""
    try:
        import resource
    except ImportError:  # Windows
        return
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm", encoding="ascii") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (present + memory, present + memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_frame(source: BinaryIO) -> bytes | None:
    """The next frame; None at the end."""
    head = source.read(LENGTH)
    return source.read(int.from_bytes(head, "big")) if len(head) == LENGTH else None


def answer(data: bytes, settings: dict[str, Any]) -> tuple[bytes, bytes, bytes]:
    """The frames of one reply: facts as JSON, the pixels (3, S, S) for the encoder, and a small JPEG."""
    try:
        facts, pixels, small = decoded(data, settings)
    except RefusedError as refused:
        facts, pixels, small = {"status": refused.status, "error": str(refused)}, b"", b""
    except MemoryError:
        facts, pixels, small = {"status": 413, "error": "the image needs too much memory"}, b"", b""
    except Exception:  # decoders raise almost anything on damaged files
        facts, pixels, small = {"status": 422, "error": "the image is damaged or cut off"}, b"", b""
    return json.dumps(facts).encode(), pixels, small


class RefusedError(Exception):
    """An image that is not decoded. status: the HTTP status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def decoded(data: bytes, settings: dict[str, Any]) -> tuple[dict[str, Any], bytes, bytes]:
    """Facts, encoder pixels and a small JPEG of an image file."""
    known = [name for name in FORMATS if name in Image.OPEN]
    try:
        opened = Image.open(io.BytesIO(data), formats=known)
    except Image.DecompressionBombError:
        raise too_large(settings["pixels"]) from None
    except UnidentifiedImageError:
        raise RefusedError(415, f"not an image in a known format ({', '.join(known)})") from None
    with opened:
        if opened.width * opened.height > settings["pixels"]:
            raise too_large(settings["pixels"])
        opened.load()
        suffix = FORMATS.get(opened.format or "", ".jpg")
        image = to_rgb(opened)
    pixels = center_crop(image, settings["size"], settings["resize"], settings["resample"])
    facts = {"width": image.width, "height": image.height, "suffix": suffix}
    return facts, pixels.tobytes(), small_jpeg(image)


def too_large(pixels: int) -> RefusedError:
    """The refusal of an image with too many pixels."""
    return RefusedError(413, f"the image has more than {pixels / 1e6:g} million pixels")


def small_jpeg(image: Image.Image) -> bytes:
    """A small version of an RGB image, without its metadata."""
    small = image.copy() if max(image.size) <= THUMBNAIL else image.resize(_small_size(image), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.info = {}  # comments, positions and the like
    small.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _small_size(image: Image.Image) -> tuple[int, int]:
    factor = THUMBNAIL / max(image.size)
    return max(1, round(image.width * factor)), max(1, round(image.height * factor))


if __name__ == "__main__":
    main()
