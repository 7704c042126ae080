"""The few-shot images as training sees them: evaluation view, augmented batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dca import seeds
from dca.clip import CLIP
from dca.data.images import ImageStore

BATCH = 64


class TrainingImages:
    """Images in memory and their labels, turned into pixels on the backbone's device."""

    def __init__(
        self, store: ImageStore, labels: Tensor, clip: CLIP, seed: int, validation: TrainingImages | None = None
    ) -> None:
        self.validation = validation
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
        rows = []
        for view in range(max(views, 1)):
            generator = seeds.generator(self.seed, "views", view)
            for indices in torch.split(torch.arange(len(self)), BATCH):
                rows.append(encode(self.pixels(indices, generator, augment=views > 0)))
        return torch.cat(rows)
