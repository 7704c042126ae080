"""What a server needs of corrected images, kept from one start to the next: thumbnails and features.

Without it every corrected image would be decoded and encoded again at every start. It is one file among the
corrections, in the form of a gallery, and never more than a copy: an image that it lacks is read again, and so is
everything if the file is damaged or of another backbone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.core.errors import UserError
from dca.core.files import explain_write_errors
from dca.datasets.corrections import CORRECTIONS
from dca.features.store import space_name
from dca.model.gallery import Gallery
from dca.serve.encoder import ImageFeatures
from dca.serve.workspace import CorrectedImage
from dca.training.features import feature_space

log = logging.getLogger(__name__)
# Hidden, so that it is no correction for whoever lists the folder.
FILE = ".features.safetensors"


@dataclass(frozen=True)
class StoredCorrection:
    """What is stored of one image."""

    thumbnail: bytes
    features: ImageFeatures


class StoredCorrections:
    """The file of a model folder.

    Args:
        folder: The model folder.
        encoder: The backbone.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._path, self._encoder = folder / CORRECTIONS / FILE, encoder
        self._space = space_name(feature_space(encoder))
        self._written = frozenset[str]()

    def read(self) -> dict[str, StoredCorrection]:
        """What is stored, by the hash of the image; nothing of a file that cannot be used."""
        try:
            gallery = Gallery.load(self._path, self._space)
        except UserError as error:
            log.warning("%s; the corrected images are read again", error.problem)
            return {}
        if gallery is None or not _is_usable(gallery.features, self._encoder.feature_dim):
            return {}
        self._written = frozenset(gallery.sha256)
        rows = zip(gallery.sha256, gallery.jpegs, gallery.features.to(self._encoder.device), strict=True)
        return {sha256: StoredCorrection(jpeg, ImageFeatures(row, None)) for sha256, jpeg, row in rows}

    def write(self, images: Collection[CorrectedImage]) -> None:
        """Store what is known of these images and of no others; where that cannot be written, it is logged.

        Features of a method that changes the image tower are those of the model, and not stored.
        """
        images = [image for image in images if image.features.adapted is None]
        contents = frozenset(image.sha256 for image in images)
        if contents == self._written:
            return
        try:
            if images:
                _to_gallery(images).write(self._path, self._space)
            else:
                with explain_write_errors(self._path):
                    self._path.unlink(missing_ok=True)
        except UserError as error:
            log.warning("what is known of the corrected images is not stored: %s", error.problem)
        else:
            self._written = contents


def _is_usable(features: Tensor, size: int) -> bool:
    """Whether these can be features (n, D) of a backbone."""
    return features.dtype == torch.float32 and features.shape[1:] == (size,) and bool(features.isfinite().all())


def _to_gallery(images: Collection[CorrectedImage]) -> Gallery:
    return Gallery(
        torch.stack([image.features.frozen.float().cpu() for image in images]),
        (0,) * len(images),
        tuple(image.sha256 for image in images),
        ("",) * len(images),
        tuple(image.thumbnail for image in images),
    )
