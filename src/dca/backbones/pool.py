"""A pool: several encoders used as one.

The feature of an image is the unit features of the members, one after the other, and that of a text the unit features
of the R members that know texts, with zeros in the place of the others. With E members the cosine of two images is the
mean of their cosines, and τ sqrt(E / R) times the cosine of an image and a text is the mean of τ times the cosines of
those R members. So every method over image features runs on a pool as on one encoder; one that weighs the members takes
the features apart (`Pool.split`).

The pixels of an image are those of the members, one after the other in one row: (B, Σ 3 S²).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import USUAL_TAU, Ability, Encoder, Pixels
from dca.backbones.sources import SEPARATOR
from dca.core.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

    from dca.images.decode import Crop


@dataclass(frozen=True)
class PoolPreprocess:
    """The preprocessing of several encoders: one row of values per image.

    parts: those of the encoders.
    """

    parts: tuple[Pixels, ...]

    @property
    def size(self) -> int:
        """The largest side."""
        return max(part.size for part in self.parts)

    @property
    def values(self) -> int:
        """Values of all parts."""
        return sum(part.values for part in self.parts)

    @property
    def crops(self) -> tuple[Crop, ...]:
        """Those of all parts."""
        return tuple(crop for part in self.parts for crop in part.crops)

    @property
    def coverage(self) -> float:
        """The largest share."""
        return max(part.coverage for part in self.parts)

    def crop(self, image: Image.Image) -> NDArray[np.uint8]:
        """The crops of all encoders as one row, uint8 (values,)."""
        return np.concatenate([np.asarray(part.crop(image)).reshape(-1) for part in self.parts])

    def normalize(self, pixels: Tensor) -> Tensor:
        """Rows (B, values), each part normalised as its encoder requires."""
        crops = self.split(pixels)
        rows = [part.normalize(crop).flatten(1) for part, crop in zip(self.parts, crops, strict=True)]
        return torch.cat(rows, dim=1)

    def split(self, pixels: Tensor) -> list[Tensor]:
        """Rows (B, values) as the pixels (B, 3, S, S) of each encoder."""
        rows = torch.split(pixels, [part.values for part in self.parts], dim=1)
        return [row.reshape(-1, 3, part.size, part.size) for row, part in zip(rows, self.parts, strict=True)]

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """PIL images -> pixels (B, values), on the CPU."""
        return self.normalize(torch.from_numpy(np.stack([self.crop(image) for image in images])))

    def to_dict(self) -> dict[str, Any]:
        """The values of all parts, for records."""
        return {"parts": [part.to_dict() for part in self.parts]}


class Pool(Encoder):
    """Several encoders used as one.

    Args:
        members: At least two different encoders on the same device.
    """

    def __init__(self, members: Sequence[Encoder]) -> None:
        super().__init__()
        self._members = tuple(members)
        for number, member in enumerate(members):
            self.add_module(str(number), member)
        self.preprocess = PoolPreprocess(tuple(member.preprocess for member in members))
        self.source = SEPARATOR.join(member.source for member in members)

    @property
    def members(self) -> tuple[Encoder, ...]:
        """The encoders."""
        return self._members

    @property
    def readers(self) -> tuple[Encoder, ...]:
        """The members that read texts."""
        return tuple(member for member in self.members if Ability.TEXT_FEATURES in member.abilities)

    @property
    def reader(self) -> Encoder | None:
        """The first member that reads texts; None if no member does."""
        return next(iter(self.readers), None)

    @property
    def abilities(self) -> frozenset[Ability]:  # type: ignore[override]
        """Image features, and text features where a member has them; all else belongs to one tower."""
        own = {Ability.IMAGE_FEATURES} | ({Ability.TEXT_FEATURES} if self.reader is not None else set())
        return frozenset(own)

    @property
    def feature_dim(self) -> int:
        """The lengths of the members' features together."""
        return sum(member.feature_dim for member in self.members)

    @cached_property
    def digest(self) -> str:
        """sha256 of the members' identities, in their order."""
        return hashlib.sha256(" ".join(member.digest for member in self.members).encode()).hexdigest()

    @property
    def device(self) -> torch.device:
        """The device of the members."""
        return self.members[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The type that the largest member computes in."""
        return min((member.dtype for member in self.members), key=lambda dtype: dtype.itemsize)

    @property
    def floats_per_image(self) -> int:
        """That of the member with the smallest activations: the others take a batch in parts."""
        return min(member.floats_per_image for member in self.members)

    @property
    def tau(self) -> float:
        """Mean τ of the readers, for cosines of the whole features."""
        readers = self.readers
        if not readers:
            return USUAL_TAU * math.sqrt(len(self.members))
        mean = sum(reader.tau for reader in readers) / len(readers)
        return mean * math.sqrt(len(self.members) / len(readers))

    @property
    def patches_per_side(self) -> int:
        """That of the finest member."""
        return max(member.patches_per_side for member in self.members)

    @property
    def feature_dtype(self) -> torch.dtype:
        """The coarsest type of the members' features."""
        return min((member.feature_dtype for member in self.members), key=lambda dtype: dtype.itemsize)

    @property
    def precision(self) -> str:
        """That of the members, each named once."""
        return "; ".join(dict.fromkeys(member.precision for member in self.members))

    @property
    def is_full_size(self) -> bool:
        """Whether a member is."""
        return any(member.is_full_size for member in self.members)

    def with_dtype(self, dtype: torch.dtype, *, features: torch.dtype | None = None) -> Self:
        """A pool of the members with these compute types; features: of the full-size members."""
        return self._replace(
            [m.with_dtype(dtype, features=features if m.is_full_size else dtype) for m in self.members]
        )

    def to_device(self, device: torch.device | str) -> Self:
        """A pool of the members on this device."""
        return self._replace([member.to_device(device) for member in self.members])

    def _replace(self, members: Sequence[Encoder]) -> Self:
        same = all(new is old for new, old in zip(members, self.members, strict=True))
        return self if same else type(self)(members)

    def encode_image(self, images: Sequence[Image.Image] | Tensor) -> Tensor:
        """Unit features of all members, side by side.

        Args:
            images: PIL images, or normalised pixels (B, values).

        Returns:
            Features (B, D), float32.
        """
        pixels = images if isinstance(images, Tensor) else self.preprocess(images)
        parts = zip(self.members, self.preprocess.split(pixels.to(self.device)), strict=True)
        return self.join([_encode_in_parts(member, own) for member, own in parts])

    def join(self, features: Sequence[Tensor]) -> Tensor:
        """The members' features (B, D_e) as those of the pool, (B, D)."""
        return torch.cat([F.normalize(own, dim=-1) for own in features], dim=-1)

    def split(self, features: Tensor) -> list[Tensor]:
        """The members' parts (B, D_e) of features (B, D), in any scale."""
        return list(torch.split(features, [member.feature_dim for member in self.members], dim=-1))

    def take_pixels(self, member: Encoder, pixels: Tensor) -> Tensor:
        """The pixels (B, 3, S, S) of a member, of pixels (B, values)."""
        return self.preprocess.split(pixels)[self._position(member)]

    def take_features(self, member: Encoder, features: Tensor) -> Tensor:
        """The features (B, D_e) of a member, of features (B, D)."""
        return self.split(features)[self._position(member)]

    def _position(self, member: Encoder) -> int:
        return [own.digest for own in self.members].index(member.digest)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Unit text features of the readers, with zeros in the place of the other members.

        Args:
            texts: N strings.

        Returns:
            Features (N, D), float32, not normalised.

        Raises:
            UserError: If no member knows texts.
        """
        readers = self.readers
        if not readers:
            raise UserError(f"{self.source}: none of these knows texts")
        return torch.cat(
            [
                F.normalize(member.encode_text(texts), dim=-1)
                if member in readers
                else torch.zeros(len(texts), member.feature_dim, device=self.device)
                for member in self.members
            ],
            dim=-1,
        )

    def describe(self) -> dict[str, Any]:
        """Name, identity and sizes of the members."""
        return {
            "members": [
                {"source": member.source, "digest": member.digest, "config": member.describe()}
                for member in self.members
            ]
        }


def _encode_in_parts(encoder: Encoder, pixels: Tensor) -> Tensor:
    """Features of pixels (B, 3, S, S), on a CPU in batches that suit the encoder."""
    if pixels.device.type != "cpu" or torch.compiler.is_exporting():
        return encoder.encode_image(pixels)
    return torch.cat([encoder.encode_image(rows) for rows in torch.split(pixels, encoder.batch_size_on_cpu)])
