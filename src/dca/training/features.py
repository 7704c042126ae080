"""Features of the frozen backbone, stored per image and view, and evaluation crops that stay in memory.

A feature belongs to an image's content and a view of it, not to a run: runs with other seeds, folds, shots and
methods share it; an image that is read without its EXIF rotation is another content. View "evaluation" is the
backbone's own crop; augmented view v of an image is one random crop, drawn from a stream that only the image's content
and v decide, with the smallest share of the image in its key.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Thread, current_thread

import torch
from PIL import Image
from torch import Tensor

from dca.backbones.encoder import Encoder, Pixels
from dca.core.files import json_digest
from dca.features.store import Features
from dca.images.crops import LOW, view_crops
from dca.images.decode import Count, Decodable, Unreadable, iter_decode, unreadable_error
from dca.methods.base import VIEW_CROP_LOW
from dca.training.pipeline import AHEAD, Source, choose_batch_size, encode_batches

# Smallest shares of the image in the augmented views that methods ask for by default.
DEFAULT_CROP_LOWS = (LOW, VIEW_CROP_LOW)


def memory_budget() -> int:
    """Bytes of crops that are kept: 2 GiB, or a quarter of the machine's memory where that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
    return min(2**31, memory // 4)


class CropCache:
    """Evaluation crops in memory, by the content of the image and the preprocessing.

    limit: Bytes that are kept at most; a set of images that is larger is not kept at all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = memory_budget() if limit is None else limit
        self._crops: dict[str, Tensor] = {}
        self._bytes = 0
        self._reader: Thread | None = None

    def crop_sources(self, images: Sequence[Decodable], contents: Sequence[str], preprocess: Pixels) -> list[Source]:
        """Where the evaluation crop of each image comes from: memory, or the image.

        contents: what decides the pixels of each, `Session.content_keys`.
        """
        self._wait()
        prefixes = [_key_prefix(part) for part in preprocess.parts]
        sources = []
        for image, content in zip(images, contents, strict=True):
            known = [self._crops.get(prefix + content) for prefix in prefixes]
            crops = [crop for crop in known if crop is not None]
            if len(crops) < len(known):
                sources.append(Source(image, preprocess.crop))
            else:
                sources.append(
                    Source(image, crops[0] if len(crops) == 1 else torch.cat([c.flatten(1) for c in crops], 1))
                )
        return sources

    def reserve(self, count: int, preprocess: Pixels) -> bool:
        """Return whether this many more crops can be kept, evicting the others if they must leave."""
        size = preprocess.values
        if count * size > self._limit:
            return False
        if self._bytes + count * size > self._limit:
            self._crops, self._bytes = {}, 0
        return True

    def put(self, content: str, preprocess: Pixels, crop: Tensor) -> None:
        """Keep the crop of an image, uint8 (3, S, S), (values,), or with an axis of one view; call `reserve` first."""
        row = crop.reshape(1, -1) if len(preprocess.parts) > 1 else crop.reshape(1, *crop.shape[-3:])
        for part, own in zip(preprocess.parts, preprocess.split(row), strict=True):
            key = _key_prefix(part) + content
            if key not in self._crops:
                self._crops[key] = own
                self._bytes += own.nbytes

    def read_ahead(self, images: Sequence[Decodable], contents: Sequence[str], preprocess: Pixels) -> None:
        """Make and keep crops while other work goes on; `crop_sources` waits for them."""

        def read() -> None:
            with suppress(Exception):  # whoever asks for the crops meets the same error
                if not self.reserve(len(contents), preprocess):
                    return
                decoded = iter_decode(images, preprocess.crop, ahead=AHEAD)
                for content, crop in zip(contents, decoded, strict=True):
                    if not isinstance(crop, Unreadable):
                        self.put(content, preprocess, torch.as_tensor(crop))

        self._wait()
        self._reader = Thread(target=read, daemon=True)
        self._reader.start()

    def _wait(self) -> None:
        """Wait for crops that are made ahead, unless this is the thread that makes them."""
        if self._reader is not None and self._reader is not current_thread():
            self._reader.join()
            self._reader = None


def _key_prefix(preprocess: Pixels) -> str:
    """What keys of crops with this preprocessing begin with."""
    return f"{json_digest(preprocess.to_dict())} "


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
            return [_view_key(content, "mirrored")] if self.mirrored else [content]
        kind = "mirrored view" if self.mirrored else "view"
        # Without a word about the usual range: features that were stored before it could be chosen stay valid.
        crop = "" if self.crop_low == LOW else f" from {self.crop_low!r}"
        return [_view_key(content, f"{kind} {number}{crop}") for number in self.numbers]

    def crops(self, size: int, content: str, places: Sequence[int], image: Image.Image) -> Tensor:
        """The augmented views at `places` of an opened image, not mirrored: uint8 (V, 3, size, size)."""
        assert self.numbers is not None
        return view_crops(image, size, [self.numbers[place] for place in places], content, self.crop_low)


def _view_key(content: str, view: str) -> str:
    return hashlib.sha256(f"{content} {view}".encode()).hexdigest()


def feature_space(encoder: Encoder) -> dict[str, object]:
    """The facts that decide the features of an image; `display` is for lists of the store and decides nothing."""
    display = {"source": encoder.source}
    return {"backbone": encoder.digest, "precision": str(encoder.feature_dtype), "display": display}


def load_features(
    store: Features,
    encoder: Encoder,
    images: Sequence[Decodable],
    contents: Sequence[str],
    views: Views,
    count: Count,
    *,
    cache: CropCache | None = None,
    keep: bool = False,
) -> Tensor:
    """Features (V · N, D) of V views of N images, view after view; what the store lacks is computed and stored.

    contents: the content key of each image, `Session.content_keys`. count: called with the images done and their total.
    cache: evaluation crops in memory. keep: put those that are made now there.
    """
    keys = [key for content in contents for key in views.keys(content)]
    source = _MissingFeatures(encoder, images, contents, views, count, cache or CropCache(), keep)
    rows = store.get_or_compute(feature_space(encoder), keys, source.encode)
    if not images:
        return torch.zeros(0, encoder.feature_dim)
    return rows.view(len(images), len(views), -1).transpose(0, 1).flatten(0, 1)


def find_stored_contents(store: Features, encoder: Encoder, contents: Sequence[str]) -> set[str]:
    """The contents of which the evaluation view or the first augmented view is stored."""
    stored = set(contents)
    for member in encoder.members:
        found = set[str]()
        for views in (Views(), *(Views(range(1), crop_low=low) for low in DEFAULT_CROP_LOWS)):
            keys = {views.keys(content)[0]: content for content in contents}
            found |= {keys[key] for key in store.known_keys(feature_space(member), list(keys))}
        stored &= found
    return stored


@dataclass(frozen=True)
class _MissingFeatures:
    """Computes features that are not stored; the fields are the arguments of `load_features`."""

    encoder: Encoder
    images: Sequence[Decodable]
    contents: Sequence[str]
    views: Views
    count: Count
    cache: CropCache
    keep: bool

    def encode(self, positions: Sequence[int]) -> Iterator[Tensor]:
        """Features at these positions of the N · V views, image after image, in batches; an image is opened once.

        Images are all opened before one that cannot be read is reported, with the others like it.
        """
        views, encoder = len(self.views), self.encoder
        wanted = [(n, [position % views for position in own]) for n, own in groupby(positions, lambda p: p // views)]
        contents = [self.contents[n] for n, _ in wanted]
        keep = self.keep and self.views.numbers is None and self.cache.reserve(len(contents), encoder.preprocess)
        batches = encode_batches(
            self._sources(wanted, contents),
            self._encode,
            encoder,
            size=max(choose_batch_size(encoder) // views, 1),
        )
        faults, done = list[Unreadable](), 0
        for batch in batches:
            for crops, content in zip(batch.outcomes, contents[done:], strict=False):
                if isinstance(crops, Unreadable):
                    faults.append(crops)
                elif keep:
                    self.cache.put(content, encoder.preprocess, crops)
            done += len(batch.outcomes)
            self.count(done, len(wanted))
            if batch.result is not None and not faults:
                yield batch.result
        if faults:
            raise unreadable_error(faults, len(wanted))

    def _encode(self, pixels: Tensor) -> Tensor:
        return self.encoder.encode_image(pixels.flip(-1) if self.views.mirrored else pixels).cpu()

    def _sources(self, wanted: Sequence[tuple[int, Sequence[int]]], contents: Sequence[str]) -> list[Source]:
        """Where the crops of the wanted views of each wanted image come from."""
        images, preprocess = [self.images[n] for n, _ in wanted], self.encoder.preprocess
        if self.views.numbers is None:
            return self.cache.crop_sources(images, contents, preprocess)
        parts = zip(images, contents, wanted, strict=True)
        return [
            Source(image, partial(self.views.crops, preprocess.size, content, numbers))
            for image, content, (_, numbers) in parts
        ]
