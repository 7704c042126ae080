"""Evaluation crops that stay in memory, so that images which are used several times are decoded once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Thread, current_thread

import torch
from torch import Tensor

from dca.clip import Preprocess
from dca.core.files import digest_of
from dca.data.dataset import ImageLike
from dca.data.decode import Unreadable
from dca.data.decode_many import in_order

# Images that are decoded ahead of what is done with them.
AHEAD = 256


def budget() -> int:
    """Bytes of crops that are kept: 2 GiB, or a quarter of the machine's memory where that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
    return min(2**31, memory // 4)


class KeptCrops:
    """Evaluation crops by the content of the image and the preprocessing.

    limit: Bytes that are kept at most; a set of images that is larger is not kept at all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = budget() if limit is None else limit
        self._crops: dict[str, Tensor] = {}
        self._bytes = 0
        self._ahead: Thread | None = None

    def read_ahead(
        self, images: Sequence[ImageLike], contents: Sequence[str], preprocess: Preprocess, *, upright: bool
    ) -> None:
        """Make and keep crops while other work goes on; `of` waits for them. Arguments as for `of`."""

        def read() -> None:
            with suppress(Exception):  # whoever asks for the crops meets the same error
                deque(self.of(images, contents, preprocess, upright=upright, keep=True), maxlen=0)

        self._wait()
        self._ahead = Thread(target=read, daemon=True)
        self._ahead.start()

    def _wait(self) -> None:
        """Wait for crops that are made ahead, unless this is the thread that makes them."""
        if self._ahead is not None and self._ahead is not current_thread():
            self._ahead.join()
            self._ahead = None

    def of(
        self,
        images: Sequence[ImageLike],
        contents: Sequence[str],
        preprocess: Preprocess,
        *,
        upright: bool,
        keep: bool,
    ) -> Iterator[Tensor | Unreadable]:
        """The evaluation crop of each image, in order.

        Args:
            images: N images.
            contents: What decides the pixels of each, `Session.contents`.
            preprocess: Makes the crops.
            upright: Apply EXIF rotations.
            keep: Keep crops that are made now, if those of all images fit into memory.

        Yields:
            uint8 (1, 3, S, S) per image, or why it cannot be read.
        """
        self._wait()
        name = digest_of(preprocess.to_dict())
        keys = [f"{name} {content}" for content in contents]
        known = [self._crops.get(key) for key in keys]
        missing = [image for image, crop in zip(images, known, strict=True) if crop is None]
        keep = keep and self._make_room(len(images), len(missing), 3 * preprocess.size**2)
        made = in_order(missing, preprocess.crop, ahead=AHEAD, upright=upright)
        for key, crop in zip(keys, known, strict=True):
            yield crop if crop is not None else self._taken(key, next(made), keep)

    def _make_room(self, images: int, missing: int, size: int) -> bool:
        """Whether a set of so many images can be kept; other sets leave if they must."""
        if images * size > self._limit:
            return False
        if self._bytes + missing * size > self._limit:
            self._crops, self._bytes = {}, 0
        return True

    def _taken(self, key: str, made: object, keep: bool) -> Tensor | Unreadable:
        """A crop that was made now."""
        if isinstance(made, Unreadable):
            return made
        crop = torch.as_tensor(made)[None]
        if keep and key not in self._crops:
            self._crops[key] = crop
            self._bytes += crop.nbytes
        return crop
