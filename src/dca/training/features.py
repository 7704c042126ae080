"""Evaluation crops that stay in memory, so that images which are used several times are decoded once.

Features of the frozen backbone, stored per image and view.

A feature belongs to an image's content and a view of it, not to a run: runs with other seeds, folds, shots and
methods share it; an image that is read without its EXIF rotation is another content. View "evaluation" is the
backbone's own crop; augmented view v of an image is one random crop, drawn from a stream that only the image's content
and v decide, with the smallest share of the image in its key.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Thread, current_thread

import torch
from PIL import Image
from torch import Tensor

from dca.backbones.clip import CLIP, Preprocess
from dca.core.files import json_digest
from dca.features.store import Features
from dca.images.crops import LOW, batch_crops, view_crops
from dca.images.decode import Count, ImageLike, Unreadable, iter_decoded
from dca.methods.base import VIEW_CROP_LOW

# Images that are decoded ahead of what is done with them.
AHEAD = 256


def budget() -> int:
    """Bytes of crops that are kept: 2 GiB, or a quarter of the machine's memory where that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
    return min(2**31, memory // 4)


class CropCache:
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
        name = json_digest(preprocess.to_dict())
        keys = [f"{name} {content}" for content in contents]
        known = [self._crops.get(key) for key in keys]
        missing = [image for image, crop in zip(images, known, strict=True) if crop is None]
        keep = keep and self._make_room(len(images), len(missing), 3 * preprocess.size**2)
        made = iter_decoded(missing, preprocess.crop, ahead=AHEAD, upright=upright)
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


# Ranges of the augmented views that methods ask for by default.
CROPS = (LOW, VIEW_CROP_LOW)
# Images that pass the tower at once: the least number, and on a GPU the most and the pixels of all together. A GPU
# encodes a small image faster than a batch is prepared and its result is fetched, so small images come in many.
BATCH, MOST_ON_GPU, PIXELS_ON_GPU = 128, 1024, 128 * 224**2


def batch_size(clip: CLIP) -> int:
    """Images that pass the image tower at once.

    >>> batch_size(CLIP.from_pretrained("mini"))
    128
    """
    if clip.device.type == "cpu":
        return BATCH
    return max(BATCH, min(PIXELS_ON_GPU // clip.preprocess.size**2, MOST_ON_GPU))


@dataclass(frozen=True)
class Views:
    """Which views of every image are encoded.

    numbers: of augmented views; None for the evaluation view. mirrored: flip the views left to right. crop_low:
    smallest share of the image in an augmented view.
    """

    numbers: range | None = None
    mirrored: bool = False
    crop_low: float = LOW

    def __len__(self) -> int:
        return 1 if self.numbers is None else len(self.numbers)

    def keys(self, content: str) -> list[str]:
        """One key of 64 hexadecimal digits per view of the image with this content hash."""
        if self.numbers is None:
            return [_key(content, "mirrored")] if self.mirrored else [content]
        kind = "mirrored view" if self.mirrored else "view"
        # Without a word about the usual range: features that were stored before it could be chosen stay valid.
        crop = "" if self.crop_low == LOW else f" from {self.crop_low!r}"
        return [_key(content, f"{kind} {number}{crop}") for number in self.numbers]

    def crops(self, size: int, content: str, places: Sequence[int], image: Image.Image) -> Tensor:
        """The augmented views at `places` of an opened image, not mirrored: uint8 (V, 3, size, size)."""
        assert self.numbers is not None
        return view_crops(image, size, [self.numbers[place] for place in places], content, self.crop_low)


def _key(content: str, view: str) -> str:
    return hashlib.sha256(f"{content} {view}".encode()).hexdigest()


def feature_space(clip: CLIP) -> dict[str, object]:
    """The facts that decide the features of an image; `display` is for lists of the store and decides nothing."""
    return {"backbone": clip.digest, "precision": str(clip.dtype), "display": {"source": clip.source}}


def load_features(
    store: Features,
    clip: CLIP,
    images: Sequence[ImageLike],
    contents: Sequence[str],
    views: Views,
    count: Count,
    *,
    upright: bool = True,
    kept: CropCache | None = None,
    keep: bool = False,
) -> Tensor:
    """Features (V · N, D) of V views of N images, view after view; what the store lacks is computed and stored.

    contents: the content key of each image, `Session.contents`. count: called with the images done and their total.
    upright: apply EXIF rotations. kept: evaluation crops in memory. keep: put those that are made now there.
    """
    keys = [key for content in contents for key in views.keys(content)]
    source = _Source(clip, images, contents, views, count, upright, kept or CropCache(), keep)
    rows = store.rows(feature_space(clip), keys, source.missing)
    if not images:
        return torch.zeros(0, clip.config.embed_dim)
    return rows.view(len(images), len(views), -1).transpose(0, 1).flatten(0, 1)


def stored_contents(store: Features, clip: CLIP, contents: Sequence[str]) -> set[str]:
    """The contents of which the evaluation view or the first augmented view is stored."""
    found = set()
    for views in (Views(), *(Views(range(1), crop_low=low) for low in CROPS)):
        keys = {views.keys(content)[0]: content for content in contents}
        found |= {keys[key] for key in store.known(feature_space(clip), list(keys))}
    return found


@dataclass(frozen=True)
class _Source:
    """Where features come from that are not stored; the arguments of `load_features`."""

    clip: CLIP
    images: Sequence[ImageLike]
    contents: Sequence[str]
    views: Views
    count: Count
    upright: bool
    kept: CropCache
    keep: bool

    @torch.no_grad()
    def missing(self, places: Sequence[int]) -> Iterator[Tensor]:
        """Features at these places of the N · V views, image after image, in batches; every image is opened once."""
        views = len(self.views)
        wanted = [(n, [place % views for place in own]) for n, own in groupby(places, lambda p: p // views)]
        clip, pin = self.clip, self.clip.device.type == "cuda"
        for crops in batch_crops(self._crops(wanted), len(wanted), batch_size(clip), self.count, pin=pin):
            yield clip.encode_image(clip.preprocess.normalize(crops.to(clip.device, non_blocking=True))).cpu()

    def _crops(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> Iterator[Tensor | Unreadable]:
        """Crops (V, 3, S, S) of the wanted views of each wanted image, or why it cannot be read."""
        images, contents = [self.images[n] for n, _ in wanted], [self.contents[n] for n, _ in wanted]
        preprocess = self.clip.preprocess
        if self.views.numbers is None:
            opened = self.kept.of(images, contents, preprocess, upright=self.upright, keep=self.keep)
        else:
            pairs = zip(contents, wanted, strict=True)
            cut = [partial(self.views.crops, preprocess.size, content, numbers) for content, (_, numbers) in pairs]
            opened = iter_decoded(images, cut, ahead=AHEAD, upright=self.upright)
        for crops in opened:
            mirrored = self.views.mirrored and isinstance(crops, Tensor)
            yield crops.flip(-1) if mirrored else crops  # type: ignore[union-attr]
