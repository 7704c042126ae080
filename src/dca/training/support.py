"""The few-shot images as methods and training see them: evaluation view, augmented batches, stored features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.core import seeds
from dca.datasets.dataset import LabelledImage
from dca.images.crops import LOW, DecodedImages
from dca.methods.base import Fitter
from dca.training.session import Session

BATCH = 64
# Most steps, and pixels, that are made together.
STEPS, PIXELS = 8, 2**22


class ImageSupport:
    """Training images and their labels on the backbone's device; see `methods.base.Support`.

    Images are decoded when pixels are first needed: a method over stored features never opens one.
    """

    def __init__(
        self,
        items: Sequence[LabelledImage],
        session: Session,
        encoder: Encoder,
        seed: int,
        validation: ImageSupport | None = None,
        nested: Fitter | None = None,
    ) -> None:
        self.images = [item.image for item in items]
        self.session, self.encoder, self.seed, self.validation = session, encoder, seed, validation
        self.fitter = nested
        self._labels = torch.tensor([item.label for item in items], dtype=torch.int64, device=encoder.device)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> Tensor:
        """Class index of each image, (N,), on the backbone's device."""
        return self._labels

    @cached_property
    def groups(self) -> Tensor:
        """Group of each image, (N,), on the backbone's device: copies and near-copies share a number."""
        return torch.from_numpy(self.session.group_copies(self.images)).to(self.encoder.device)

    @cached_property
    def store(self) -> DecodedImages:
        """The decoded images."""
        return self.session.decode_images(self.images, self.encoder)

    def pixels(self, indices: Tensor, generator: torch.Generator, *, augment: bool, crop_low: float = LOW) -> Tensor:
        """Normalised pixels (B, 3, S, S) of the images at `indices`."""
        return self.pixels_of_steps([indices], generator, augment=augment, crop_low=crop_low)[0]

    def pixels_of_steps(
        self, steps: Sequence[Tensor], generator: torch.Generator, *, augment: bool, crop_low: float = LOW
    ) -> Sequence[Tensor]:
        """`pixels` of several steps, made together."""
        preprocess, device = self.encoder.preprocess, self.encoder.device
        if augment:
            crops = self.store.augment(steps, preprocess.size, generator, device, crop_low)
        else:
            crops = self.store.crops[torch.cat(list(steps)).to(device)]
        return torch.split(preprocess.normalize(crops), [len(rows) for rows in steps])

    def steps_per_pixel_call(self, batch_size: int) -> int:
        """Steps whose pixels are made together, since each call has a cost; the same on every device."""
        return max(min(STEPS, PIXELS // (batch_size * self.encoder.preprocess.size**2)), 1)

    @torch.no_grad()
    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0, crop_low: float = LOW) -> Tensor:
        """`encode` of every image's pixels: (N, ...), or (views · N, ...) of augmented views, view after view."""
        rows = []
        for view in range(max(views, 1)):
            generator = seeds.generator(self.seed, "views", view)
            for indices in torch.split(torch.arange(len(self)), BATCH):
                rows.append(encode(self.pixels(indices, generator, augment=views > 0, crop_low=crop_low)))
        return torch.cat(rows)

    def frozen_features(self, *, views: int = 0, mirrored: bool = False, crop_low: float = LOW) -> Tensor:
        """Features of the frozen backbone, not normalised: (N, D), or (views · N, D); stored from run to run."""
        found = self.session.frozen_features(
            self.encoder, self.images, views=views, mirrored=mirrored, crop_low=crop_low
        )
        return found.to(self.encoder.device)
