"""The training images of a model, small enough to travel with it: a thumbnail and the frozen features of each.

Nearest training images are found and shown with it, and methods over frozen features are fitted again without the
original files. It is one file of the model folder, `gallery.safetensors`; a model works without it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.core.files import write_bytes
from dca.datasets.dataset import Item
from dca.images.decode import decode_all
from dca.training.session import Session

GALLERY = "gallery.safetensors"
# Pixels of the longer side, and JPEG quality: about 3 kB per image.
SIDE, QUALITY = 128, 80
# Of more training images, evenly spread ones are kept: 5,000 thumbnails are about 15 MB.
MOST = 5000


@dataclass(frozen=True)
class Gallery:
    """Thumbnails and features of training images.

    Attributes:
        features: Features (n, D) of the frozen backbone's evaluation view, float32, not normalised.
        labels: Index of each image's class.
        sha256: Hash of each image's content.
        names: Short name of each image, the last two parts of its path.
        jpegs: Each image as a small JPEG file.
    """

    features: Tensor
    labels: tuple[int, ...]
    sha256: tuple[str, ...]
    names: tuple[str, ...]
    jpegs: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, items: Sequence[Item], draw: Sequence[dict[str, Any]], session: Session, clip: CLIP) -> Self:
        """The gallery of training images.

        Args:
            items: The images.
            draw: Their rows of `Classifier.draw_`.
            session: Reads images and features.
            clip: The backbone.

        Returns:
            A gallery of at most `MOST` images.

        Raises:
            UserError: If an image cannot be read.
        """
        kept = [len(items) * place // MOST for place in range(MOST)] if len(items) > MOST else range(len(items))
        images, rows = [items[place].image for place in kept], [draw[place] for place in kept]
        return cls(
            session.frozen_features(clip, images),
            tuple(row["label"] for row in rows),
            tuple(row["sha256"] for row in rows),
            tuple(row["name"] for row in rows),
            tuple(decode_all(images, partial(jpeg_of, side=SIDE))),
        )

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The gallery of a model folder; None if it has none.

        Args:
            folder: The model folder.

        Returns:
            The gallery, or None.

        Raises:
            UserError: If the file is damaged.
        """
        path = folder / GALLERY
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                rows = json.loads((file.metadata() or {})["images"])
                features, sizes = file.get_tensor("features"), file.get_tensor("sizes")
                pieces = file.get_tensor("jpegs").split(sizes.tolist())
            labels, sha256, names = zip(*rows, strict=True) if rows else ((), (), ())
            found = cls(features, labels, sha256, names, tuple(bytes(piece.numpy()) for piece in pieces))
            if not len(features) == len(found.jpegs) == len(rows) or features.ndim != 2:
                raise ValueError("its parts do not belong together")
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            hint = "delete it (the model works without), or fit again"
            raise UserError(f"{path}: not a readable gallery ({error})", hint=hint) from None
        return found

    def write(self, folder: Path) -> None:
        """Write the gallery into a model folder.

        Args:
            folder: The folder.
        """
        rows = list(zip(self.labels, self.sha256, self.names, strict=True))
        tensors = {
            "features": self.features.contiguous(),
            "jpegs": torch.from_numpy(np.frombuffer(b"".join(self.jpegs), np.uint8).copy()),
            "sizes": torch.tensor([len(jpeg) for jpeg in self.jpegs], dtype=torch.int64),
        }
        write_bytes(folder / GALLERY, save(tensors, metadata={"images": json.dumps(rows)}))

    def thumbnail(self, place: int) -> bytes:
        """One image as a small JPEG file.

        Args:
            place: Its place in the gallery.

        Returns:
            The content of the file.
        """
        return self.jpegs[place]

    def nearest(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The images of the gallery that are most similar.

        Args:
            features: Features (b, D) of the frozen backbone.
            k: How many to find; fewer if the gallery is smaller.

        Returns:
            Places in the gallery and cosine similarities, (b, k) each, the most similar first.
        """
        similar = F.normalize(features.float(), dim=-1) @ F.normalize(self.features, dim=-1).T
        values, places = similar.topk(min(k, len(self)), dim=-1)
        return places, values

    def joined(self, other: Gallery) -> Self:
        """This gallery followed by another.

        Args:
            other: A gallery of the same backbone.

        Returns:
            A gallery of both.
        """
        return type(self)(
            torch.cat([self.features, other.features]),
            self.labels + other.labels,
            self.sha256 + other.sha256,
            self.names + other.names,
            self.jpegs + other.jpegs,
        )

    def of_draw(self, draw: Sequence[dict[str, Any]]) -> Self:
        """The images of the gallery that are in a draw, with the draw's class indices.

        Args:
            draw: Rows of `Classifier.draw_`.

        Returns:
            A gallery without the other images.
        """
        labels = {row["sha256"]: row["label"] for row in draw}
        kept = [place for place, sha256 in enumerate(self.sha256) if sha256 in labels]
        return type(self)(
            self.features[kept],
            tuple(labels[self.sha256[place]] for place in kept),
            tuple(self.sha256[place] for place in kept),
            tuple(self.names[place] for place in kept),
            tuple(self.jpegs[place] for place in kept),
        )


def jpeg_of(image: Image.Image, *, side: int = SIDE) -> bytes:
    """An RGB image as a JPEG file whose longer side has at most `side` pixels, without the original's metadata."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, exif=b"", icc_profile=None, comment=b"")
    return file.getvalue()
