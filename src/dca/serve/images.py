"""The images that a server holds: recent ones, which may be corrected, and the tray of unlabelled ones."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from dca.serve.errors import RequestError
from dca.serve.model_view import Encoded


@dataclass(frozen=True)
class Held:
    """One image. source: its file as bytes, or the place of a file that the owner of the server named."""

    sha256: str
    width: int
    height: int
    suffix: str
    thumbnail: bytes
    encoded: Encoded
    source: bytes | Path

    def content(self) -> bytes:
        """The image file."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    @property
    def memory(self) -> int:
        """Bytes that it takes."""
        return len(self.thumbnail) + (len(self.source) if isinstance(self.source, bytes) else 0)


class HeldImages:
    """Images by their hash. Recent ones are forgotten as others come; those of the tray stay until they are removed.

    Args:
        recent_bytes: Memory for recent images.
        tray_bytes: Memory for the tray.
        tray_images: Most images in the tray.
    """

    def __init__(self, recent_bytes: int, tray_bytes: int, tray_images: int) -> None:
        self._recent: OrderedDict[str, Held] = OrderedDict()
        self._tray: dict[str, Held] = {}
        self._recent_bytes, self._tray_bytes, self._tray_images = recent_bytes, tray_bytes, tray_images
        self._recent_taken = self._tray_taken = 0

    def get(self, sha256: str) -> Held | None:
        """The image, if it is held."""
        return self._tray.get(sha256) or self._recent.get(sha256)

    def keep_recent(self, image: Held) -> None:
        """Hold an image for a while; the oldest ones are forgotten."""
        if (before := self._recent.pop(image.sha256, None)) is not None:
            self._recent_taken -= before.memory
        self._recent[image.sha256] = image
        self._recent_taken += image.memory
        while self._recent_taken > self._recent_bytes and len(self._recent) > 1:
            self._recent_taken -= self._recent.popitem(last=False)[1].memory

    def put_in_tray(self, image: Held) -> None:
        """Hold an image in the tray.

        Raises:
            RequestError: If the tray is full.
        """
        if image.sha256 in self._tray:
            return
        if len(self._tray) >= self._tray_images or self._tray_taken + image.memory > self._tray_bytes:
            raise RequestError(409, "the tray is full", "label or remove some of its images first")
        self._tray[image.sha256] = image
        self._tray_taken += image.memory

    def remove_from_tray(self, sha256: str) -> bool:
        """Take an image out of the tray; False if it is not there."""
        image = self._tray.pop(sha256, None)
        self._tray_taken -= image.memory if image else 0
        return image is not None

    def tray(self) -> list[Held]:
        """The images of the tray in the order in which they came."""
        return list(self._tray.values())
