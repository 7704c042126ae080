"""What every encoder offers, and what only some have.

An encoder is a frozen network that turns images into features, with its preprocessing. What else it can do is a set of
abilities: a method names those that it needs (`Method.needs`), and runs on every encoder that has them. CLIP with a ViT
image tower has them all; a convolutional tower that knows no texts has the first one.
docs/backbones.md has the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from dca.core.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

    from dca.images.decode import Crop

# Most images per batch on a CPU.
MOST_ON_CPU = 16
# Bytes of the largest activation of a batch on a CPU. Small activations stay in its caches, and blocks of more than
# 32 MB are mapped by the system, page by page, for every layer anew: a tower of the shape of ViT-B/16 takes 375 ms of
# one core per image in batches of 8, and 400 ms in batches of 16.
LARGEST_ACTIVATION = 2**24
# Patches along a side of an image, for explanations, where the tower has no patches of its own: the positions of a
# convolutional tower that halves 224 pixels five times.
USUAL_PATCHES = 7
# τ where no text gives one: that of nearly every CLIP.
USUAL_TAU = 100.0


class Ability(StrEnum):
    """What an encoder can do; the values are words for messages."""

    IMAGE_FEATURES = "image features"
    TEXT_FEATURES = "text features"
    TEXT_PROMPTS = "a text tower that takes learned prompts"
    TEXT_LAYERS = "a text tower whose layers can be changed"
    IMAGE_TOKENS = "an image tower that takes learned tokens"
    IMAGE_LAYERS = "an image tower whose layers can be changed"
    IMAGE_END = "an image tower whose end can be trained"
    PROJECTION = "an image tower that ends with a projection"
    PATCHES = "local features of an image's patches"


class Pixels(Protocol):
    """How an image becomes what an encoder takes; `Preprocess` for one encoder, `PoolPreprocess` for several."""

    @property
    def size(self) -> int:
        """Side of the square that the image tower takes; the largest, if there are several."""

    @property
    def values(self) -> int:
        """Number of values of one image, which bounds memory."""

    @property
    def parts(self) -> tuple[Pixels, ...]:
        """The preprocessing of each encoder."""

    @property
    def crops(self) -> tuple[Crop, ...]:
        """Size, resize, resample and even of each encoder's crop, for programs that make it elsewhere."""

    @property
    def coverage(self) -> float:
        """Share of an image's short side that the crop covers; the largest, if there are several."""

    def split(self, pixels: Tensor) -> list[Tensor]:
        """Crops or pixels (B, ...) as those of each encoder, (B, 3, S, S)."""

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """PIL images -> normalised pixels, on the CPU."""

    def crop(self, image: Image.Image) -> Any:
        """What the encoder takes of an image, uint8: (3, S, S), or (values,) for several encoders."""

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 crops (B, ...) -> normalised float32 of the same shape, on the same device."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for records."""


class Encoder(nn.Module, ABC):
    """A frozen network that turns images into features.

    Encoding changes nothing in the object, so several methods and threads can share it. Features are float32 and not
    normalised.

    Attributes:
        abilities: What it can do.
        licence: Licence of the weights; "" where it is not known.
        preprocess: Turns images into pixels.
        source: Short name, hub id or folder name, for display and for finding the weights again.
    """

    abilities: ClassVar[frozenset[Ability]] = frozenset({Ability.IMAGE_FEATURES})
    licence: str = ""
    preprocess: Pixels
    source: str

    @property
    @abstractmethod
    def feature_dim(self) -> int:
        """D, the length of a feature."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """sha256 of all that decides features: the identity of this encoder."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type in which it computes unless a call asks for another one."""

    @property
    @abstractmethod
    def floats_per_image(self) -> int:
        """Number of values in its largest activation, per image."""

    @property
    def feature_dtype(self) -> torch.dtype:
        """The type in which it computes frozen features."""
        return self.dtype

    @property
    def precision(self) -> str:
        """The compute types in words, for identities."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def is_full_size(self) -> bool:
        """Whether bfloat16 makes it faster on CPUs with instructions for it."""
        return False

    @abstractmethod
    def with_dtype(self, dtype: torch.dtype, *, features: torch.dtype | None = None) -> Self:
        """The same weights with other compute types; this encoder is unchanged.

        Args:
            dtype: Type in which it computes.
            features: Type of frozen features; `dtype` by default.

        Returns:
            The other encoder; this one if it has these types already.
        """

    @abstractmethod
    def to_device(self, device: torch.device | str) -> Self:
        """This encoder if its weights are on the device, else a copy there.

        Args:
            device: A device or its name.

        Returns:
            An encoder whose weights are on the device.
        """

    @abstractmethod
    def encode_image(self, images: Sequence[Image.Image] | Tensor) -> Tensor:
        """Features of images, not normalised.

        Args:
            images: PIL images, or normalised pixels.

        Returns:
            Features (B, D).
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Sizes as plain values, for records."""

    @property
    def members(self) -> tuple[Encoder, ...]:
        """The encoders that it consists of: itself, unless it is a pool."""
        return (self,)

    @property
    def tau(self) -> float:
        """Scale of the cosines between images and texts."""
        return USUAL_TAU

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Features of texts, for encoders that have `Ability.TEXT_FEATURES`.

        Args:
            texts: N strings.

        Returns:
            Features (N, D), not normalised.

        Raises:
            UserError: If it knows no texts.
        """
        raise UserError(f"{self.source} knows no texts")

    def take_pixels(self, member: Encoder, pixels: Tensor) -> Tensor:
        """The pixels of one of the `members`, of pixels of all.

        Args:
            member: The encoder.
            pixels: Pixels of images as this encoder takes them.

        Returns:
            The part of them that is the member's.
        """
        return pixels

    def take_features(self, member: Encoder, features: Tensor) -> Tensor:
        """The features of one of the `members`, of features of all.

        Args:
            member: The encoder.
            features: Features (B, D) of this encoder.

        Returns:
            The part of them that is the member's.
        """
        return features

    @property
    def patches_per_side(self) -> int:
        """G, parts along a side of an image that an explanation tells apart."""
        return USUAL_PATCHES

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the classes that it was trained on and can tell; empty for most."""
        return ()

    def label_classifier(self) -> tuple[Tensor, Tensor]:
        """Weight (L, D) and bias (L,) of the logits of `label_names` for unit features."""
        raise UserError(f"{self.source} knows no labels")

    @property
    def batch_size_on_cpu(self) -> int:
        """Images that pass it at once on a CPU.

        >>> from dca import CLIP
        >>> CLIP.from_pretrained("mini").batch_size_on_cpu
        16
        """
        return min(MOST_ON_CPU, max(1, LARGEST_ACTIVATION // (4 * self.floats_per_image)))
