"""The few-shot images as training sees them: evaluation view, augmented batches, stored features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dca.clip import CLIP
from dca.core import seeds
from dca.core.progress import Progress, of_stage, silent
from dca.data.feature_store import FeatureCache
from dca.data.image_store import ImageStore

BATCH = 64


class TrainingImages:
    """Images in memory and their labels, turned into pixels on the backbone's device.

    cache: where the features of the frozen backbone are kept from run to run.
    """

    def __init__(
        self,
        store: ImageStore,
        labels: Tensor,
        clip: CLIP,
        seed: int,
        validation: TrainingImages | None = None,
        *,
        cache: FeatureCache | None = None,
        progress: Progress = silent,
    ) -> None:
        self.validation, self.cache = validation, cache
        self._tell = of_stage(progress, "features")
        self.store = store.to(clip.device)
        self.clip = clip
        self.seed = seed
        self._labels = labels.to(clip.device)
        crops = np.stack([clip.preprocess.crop(image) for image in store.images])
        self._crops = torch.from_numpy(crops).to(clip.device)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> Tensor:
        """(N,), on the backbone's device."""
        return self._labels

    def pixels(self, indices: Tensor, generator: torch.Generator, *, augment: bool) -> Tensor:
        """Normalised pixels (B, 3, S, S) of the images at `indices`."""
        if not augment:
            return self.clip.preprocess.normalize(self._crops[indices.to(self.clip.device)])
        size = self.clip.preprocess.size
        return self.clip.preprocess.normalize(self.store.augment(indices, size, generator, self.clip.device))

    @torch.no_grad()
    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0) -> Tensor:
        """`encode` of every image's pixels; see `methods.base.Support`."""
        return torch.cat(list(self._encoded(encode, range(max(views, 1)), augment=views > 0)))

    def frozen_features(self, clip: CLIP, *, views: int = 0, mirrored: bool = False) -> Tensor:
        """What the backbone itself says of every image; see `methods.base.Support`."""

        def encode(pixels: Tensor) -> Tensor:
            return clip.encode_image(pixels.flip(-1) if mirrored else pixels)

        if self.cache is None:
            return self.map(encode, views=views)
        kind = ("augmented" if views else "plain") + (", mirrored" if mirrored else "")
        places = [(view, n) for view in range(max(views, 1)) for n in range(len(self))]
        keys = [hashlib.sha256(f"{kind}, view {view}, image {n}".encode()).hexdigest() for view, n in places]
        about = {"training images": self.store.digest()[:16], "seed": self.seed, **clip.about()}
        stored = self.cache.rows(about, keys, lambda missing: self._missing(encode, missing, augment=views > 0))
        return stored.to(self.clip.device)

    @torch.no_grad()
    def _missing(self, encode: Callable[[Tensor], Tensor], places: Sequence[int], *, augment: bool) -> Iterator[Tensor]:
        """`encode` at these places of (views · N), view after view."""
        asked: dict[int, list[int]] = {}
        for place in places:
            asked.setdefault(place // len(self), []).append(place % len(self))
        # A view is one random stream, so all of it is computed, even where a part of it was stored.
        encoded = self._encoded(encode, list(asked), augment=augment)
        yield from (rows[wanted] for rows, wanted in zip(encoded, asked.values(), strict=True))

    def _encoded(self, encode: Callable[[Tensor], Tensor], views: Sequence[int], *, augment: bool) -> Iterator[Tensor]:
        """`encode` of all images, (N, ...), in each of these views."""
        for done, view in enumerate(views):
            generator, rows = seeds.generator(self.seed, "views", view), []
            for indices in torch.split(torch.arange(len(self)), BATCH):
                rows.append(encode(self.pixels(indices, generator, augment=augment)))
                self._tell(done * len(self) + int(indices[-1]) + 1, len(views) * len(self))
            yield torch.cat(rows)
