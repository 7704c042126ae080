"""The gallery of a model: a thumbnail and the frozen features of each training image, saved with the model.

It serves to show the nearest training images, and to fit methods over frozen features again without the original
files. It is one file of the model folder, `gallery.safetensors`; a model works without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Encoder
from dca.core.errors import UserError
from dca.core.files import write_bytes
from dca.datasets.dataset import LabelledImage
from dca.model.records import TrainingImage
from dca.training.session import Session

GALLERY = "gallery.safetensors"
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
    def make(
        cls, items: Sequence[LabelledImage], records: Sequence[TrainingImage], session: Session, encoder: Encoder
    ) -> Self:
        """Make thumbnails and features of training images.

        Args:
            items: The images.
            records: Their rows of `Classifier.training_images_`.
            session: Reads images and features.
            encoder: The backbone.

        Returns:
            A gallery of at most `MOST` images.

        Raises:
            UserError: If an image cannot be read.
        """
        kept = [len(items) * n // MOST for n in range(MOST)] if len(items) > MOST else range(len(items))
        images = [items[n].image for n in kept]
        return cls(
            session.frozen_features(encoder, images),
            tuple(records[n].label for n in kept),
            tuple(records[n].sha256 for n in kept),
            tuple(records[n].name for n in kept),
            tuple(session.encode_previews(images)),
        )

    @classmethod
    def load(cls, path: Path, encoder: str = "") -> Self | None:
        """Read a gallery.

        Args:
            path: The file.
            encoder: Identity of the backbone, as it was written.

        Returns:
            The gallery; None if there is no file, or one of another backbone.

        Raises:
            UserError: If the file is damaged.
        """
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
                if facts.get("encoder", "") != encoder:
                    return None
                rows = json.loads(facts["images"])
                features, sizes = file.get_tensor("features"), file.get_tensor("sizes")
                pieces = file.get_tensor("jpegs").split(sizes.tolist())
            labels, sha256, names = zip(*rows, strict=True) if rows else ((), (), ())
            gallery = cls(features, labels, sha256, names, tuple(bytes(piece.numpy()) for piece in pieces))
            if not len(features) == len(gallery.jpegs) == len(rows) or features.ndim != 2:
                raise ValueError("its parts do not belong together")
            if encoder and facts["sha256"] != gallery._hash():
                raise ValueError("its content has changed")
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            hint = "delete it (the model works without), or fit again"
            raise UserError(f"{path}: not a readable gallery ({error})", hint=hint) from None
        return gallery

    def write(self, path: Path, encoder: str = "") -> None:
        """Write the gallery, in one rename.

        Args:
            path: The file.
            encoder: Identity of the backbone. Such a file is in no manifest, so it also has the hash of its content.
        """
        rows = list(zip(self.labels, self.sha256, self.names, strict=True))
        tensors = {
            "features": self.features.contiguous(),
            "jpegs": torch.from_numpy(np.frombuffer(b"".join(self.jpegs), np.uint8).copy()),
            "sizes": torch.tensor([len(jpeg) for jpeg in self.jpegs], dtype=torch.int64),
        }
        facts = {"images": json.dumps(rows), **({"encoder": encoder, "sha256": self._hash()} if encoder else {})}
        write_bytes(path, save(tensors, metadata=facts))

    def _hash(self) -> str:
        """Hash of features and thumbnails."""
        content = hashlib.sha256(self.features.contiguous().numpy().tobytes())
        for jpeg in self.jpegs:
            content.update(jpeg)
        return content.hexdigest()

    def nearest(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the most similar images of the gallery.

        Args:
            features: Features (b, D) of the frozen backbone.
            k: How many to find; fewer if the gallery is smaller.

        Returns:
            Indices in the gallery and cosine similarities, (b, k) each, the most similar first.
        """
        similarities = F.normalize(features.float(), dim=-1) @ F.normalize(self.features, dim=-1).T
        values, indices = similarities.topk(min(k, len(self)), dim=-1)
        return indices, values

    def concatenate(self, other: Gallery) -> Self:
        """Append another gallery of the same backbone.

        Args:
            other: The images to append.

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

    def select(self, images: Sequence[TrainingImage]) -> Self:
        """Keep the images that are among training images, with the class indices that these have.

        Args:
            images: Rows of `Classifier.training_images_`.

        Returns:
            A gallery without the other images.
        """
        labels = {image.sha256: image.label for image in images}
        kept = [n for n, sha256 in enumerate(self.sha256) if sha256 in labels]
        return type(self)(
            self.features[kept],
            tuple(labels[self.sha256[n]] for n in kept),
            tuple(self.sha256[n] for n in kept),
            tuple(self.names[n] for n in kept),
            tuple(self.jpegs[n] for n in kept),
        )
