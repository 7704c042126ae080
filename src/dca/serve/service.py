"""The service behind the API: decodes and encodes images in batches, predicts, fills the tray, and refits."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dca.core.device import return_freed_memory
from dca.core.errors import UserError
from dca.datasets.corrections import Correction, read_corrections
from dca.datasets.walk import list_images
from dca.model.classifier import Classifier
from dca.serve.decoder import DecoderPool
from dca.serve.encoder import Batcher, ImageFeatures, Pixels, encode_images
from dca.serve.errors import RequestError
from dca.serve.metrics import Gauge, ServerMetrics
from dca.serve.options import ServeOptions
from dca.serve.workspace import (
    AccuracyEstimate,
    CorrectedImage,
    ImagePool,
    LoadedImage,
    ServedModel,
    ServedPrediction,
    Workspace,
    estimated_accuracy,
)

log = logging.getLogger(__name__)
# Seconds between two returns of freed memory to the system.
MEMORY_RETURN_SECONDS = 20.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TrayImage:
    """An unlabelled image of the tray. doubt: how unsure the model is of it, 0 to 1."""

    image: LoadedImage
    prediction: ServedPrediction
    doubt: float


@dataclass(frozen=True)
class RefitSide:
    """A model before or after a refit. prediction: of the image that the client looks at; None without one."""

    accuracy: AccuracyEstimate | None
    prediction: ServedPrediction | None


@dataclass(frozen=True)
class RefitResult:
    """What a refit changed. tray_changed: images of the tray that have another predicted class."""

    seconds: float
    tray_changed: int
    before: RefitSide
    after: RefitSide


class Service:
    """Everything behind the API.

    Args:
        folder: The model folder.
        model: The model of the folder.
        options: How it is served.
        tray: A folder whose images are put into the tray.

    Attributes:
        workspace: The model and its corrections.
        images: The images in memory.
        uploads: Limits how many images are decoded and encoded at a time.
        metrics: Counters of requests and batches.
        failure: Why it could not start; None if it did.
    """

    def __init__(self, folder: Path, model: Classifier, options: ServeOptions, tray: Path | None = None) -> None:
        self.options, self._tray_folder = options, tray
        self.workspace = Workspace(folder, model, options)
        self.images = ImagePool(options.recent_bytes, options.tray_bytes, options.tray_images)
        self.uploads = asyncio.Semaphore(options.uploads)
        self.metrics = ServerMetrics()
        self.failure: UserError | None = None
        self._decoders = DecoderPool(model.method_.encoder.preprocess, options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dca-batch")
        self._batcher = Batcher(self._predict_batch, options.batch, self._thread, self.metrics.batches.observe)
        self._background: list[asyncio.Task[None]] = []
        self._ranking: tuple[object, list[TrayImage]] = (None, [])

    async def start(self) -> None:
        """Start the decoding processes and load the corrections of the model folder."""
        await asyncio.gather(self._decoders.start(), self._batcher.start())
        await self.workspace.load_corrections(await self._load_corrections())
        self._background.append(asyncio.create_task(_return_memory_periodically()))
        if self._tray_folder is not None:
            self._background.append(asyncio.create_task(self._fill_tray(self._tray_folder)))

    async def stop(self) -> None:
        """End all processes and threads."""
        for task in self._background:
            task.cancel()
        await self._batcher.stop()
        await self._decoders.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def load_image(self, data: bytes, sha256: str, source: bytes | Path) -> tuple[LoadedImage, ServedPrediction]:
        """Decode and encode an image file and predict its class.

        Args:
            data: The file's content.
            sha256: Hash of `data`.
            source: What is kept of the file: its content, or its path.

        Raises:
            RequestError: If it cannot be decoded.
        """
        known = self.images.get(sha256)
        if known is not None:
            (prediction,) = await asyncio.to_thread(self.workspace.current.predict, [known.features])
            return known, prediction
        decoded = await self._decoders.decode(data)
        features, prediction = await self._batcher.submit(decoded.pixels)
        width, height = decoded.width, decoded.height
        return LoadedImage(sha256, width, height, decoded.suffix, decoded.thumbnail, features, source), prediction

    def find_image(self, sha256: str) -> LoadedImage | CorrectedImage | None:
        """Return an image that is in memory or corrected, or None."""
        return self.images.get(sha256) or self.workspace.corrected_image(sha256)

    def find_thumbnail(self, sha256: str) -> bytes | None:
        """Return a small JPEG of an image that is in memory, corrected or a training image, or None."""
        if (image := self.find_image(sha256)) is not None:
            return image.thumbnail
        gallery = self.workspace.current.model.gallery()
        if gallery is None or sha256 not in gallery.sha256:
            return None
        return gallery.jpegs[gallery.sha256.index(sha256)]

    def unlabelled_images(self) -> list[LoadedImage]:
        """The images of the tray that have no corrected label."""
        labelled = self.workspace.corrections
        return [image for image in self.images.tray() if image.sha256 not in labelled]

    def rank_tray(self) -> list[TrayImage]:
        """Return the unlabelled images of the tray, the most useful to label first."""
        current, images = self.workspace.current, self.unlabelled_images()
        key = (id(current), tuple(image.sha256 for image in images))
        if self._ranking[0] != key:
            self._ranking = key, rank_images(images, current.predict([image.features for image in images]))
        return self._ranking[1]

    async def refit(self, viewed: LoadedImage | CorrectedImage | None) -> RefitResult:
        """Refit the model with all corrections and compare it with the one before.

        Args:
            viewed: An image whose predictions before and after are wanted.

        Raises:
            RequestError: As `Workspace.refit`.
        """
        before, unlabelled = self.workspace.current, self.unlabelled_images()
        seconds = await self.workspace.refit()
        after = self.workspace.current
        features = [image.features for image in unlabelled] + ([viewed.features] if viewed else [])
        old, new = await asyncio.to_thread(lambda: (before.predict(features), after.predict(features)))
        count = len(unlabelled)
        changed = sum(a.best != b.best for a, b in zip(old[:count], new[:count], strict=True))

        def side(served: ServedModel, predictions: Sequence[ServedPrediction]) -> RefitSide:
            return RefitSide(estimated_accuracy(served.model), predictions[-1] if viewed else None)

        return RefitResult(seconds, changed, side(before, old), side(after, new))

    def render_metrics(self) -> str:
        """Render all metrics in the text format of Prometheus."""
        workspace = self.workspace
        return self.metrics.render(
            [
                Gauge("dca_model_revision", "Changes since the start.", workspace.revision),
                Gauge("dca_refits", "Refits since the start.", workspace.refits),
                Gauge("dca_corrections", "Corrections that are kept.", len(workspace.corrections)),
                Gauge("dca_tray_images", "Unlabelled images in the tray.", len(self.unlabelled_images())),
                Gauge("dca_decoders", "Decoding processes that are ready or at work.", self._decoders.count),
                Gauge("dca_resident_bytes", "Memory of the server without its decoding processes.", resident_bytes()),
            ]
        )

    def _predict_batch(self, pixels: Sequence[Pixels]) -> list[tuple[ImageFeatures, ServedPrediction]]:
        """Encode images and predict their classes with the current model; pixels: uint8 (3, S, S) each."""
        current = self.workspace.current
        features = encode_images(current.model.method_, pixels)
        return list(zip(features, current.predict(features), strict=True))

    async def _load_corrections(self) -> list[CorrectedImage]:
        """Load the corrections in the model folder; those that cannot be read are logged and left alone."""
        corrections = await asyncio.to_thread(read_corrections, self.workspace.folder)
        images = await asyncio.gather(*map(self._load_correction, corrections))
        return [image for image in images if image is not None]

    async def _load_correction(self, correction: Correction) -> CorrectedImage | None:
        try:
            image, _ = await self._load_file(correction.path, correction.sha256)
        except (RequestError, OSError) as error:
            log.warning("%s is left out: %s", correction.path, error)
            return None
        size = correction.path.stat().st_size
        return CorrectedImage(correction, size, image.thumbnail, image.features)

    async def _load_file(self, path: Path, sha256: str | None = None) -> tuple[LoadedImage, ServedPrediction]:
        """Load an image file of the server's own machine; it has the size limit of an upload."""
        async with self.uploads:
            if path.stat().st_size > self.options.upload_bytes:
                raise RequestError("image-large", f"larger than {self.options.upload_bytes:,} bytes")
            data = await asyncio.to_thread(path.read_bytes)
            return await self.load_image(data, sha256 or hashlib.sha256(data).hexdigest(), path)

    async def _fill_tray(self, folder: Path) -> None:
        """Put the images of a folder into the tray until it is full."""
        for path in await asyncio.to_thread(list_images, folder):
            try:
                image, _ = await self._load_file(path)
                self.images.put_in_tray(image)
                self.workspace.revision += 1
            except (RequestError, OSError) as error:
                log.warning("%s is left out of the tray: %s", path, error)


async def _return_memory_periodically() -> None:
    """Return freed memory to the system; images that stay between batches that go would make the process grow."""
    while True:
        await asyncio.sleep(MEMORY_RETURN_SECONDS)
        await asyncio.to_thread(return_freed_memory)


def resident_bytes() -> int:
    """Memory of this process in bytes; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def rank_images(images: Sequence[LoadedImage], predictions: Sequence[ServedPrediction]) -> list[TrayImage]:
    """Images with their predictions and doubt, the most useful to label first."""
    if not images:
        return []
    doubt = margin_doubt(np.stack([prediction.probabilities for prediction in predictions]))
    frozen = torch.stack([image.features.frozen for image in images]).double().cpu()
    units = torch.nn.functional.normalize(frozen, dim=-1).numpy()
    order = labelling_order(doubt, units)
    return [TrayImage(images[n], predictions[n], round(float(doubt[n]), 4)) for n in order]


def margin_doubt(probabilities: Floats) -> Floats:
    """How unsure a model is of each image, (n,): one minus the margin of the best class over the second.

    probabilities: (n, C).

    >>> margin_doubt(np.array([[0.9, 0.1], [0.5, 0.5]])).round(6).tolist()
    [0.2, 1.0]
    """
    if probabilities.shape[1] < 2:
        return np.zeros(len(probabilities))
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    doubt: Floats = 1.0 - (first - second)
    return doubt


def labelling_order(doubt: Floats, features: Floats) -> list[int]:
    """Indices of the images in the order in which to label them.

    The next image is the one with the largest doubt times cosine distance to the nearest image before it. The label of
    an image also says much about images that look the same, so copies of an image come late.

    Args:
        doubt: How unsure the model is of each image, (n,).
        features: Unit features (n, D).
    """
    score, distance = doubt.astype(np.float64), np.ones(len(doubt))
    order: list[int] = []
    for _ in range(len(doubt)):
        best = int(score.argmax())
        order.append(best)
        # Cosine distances of different photos are small numbers of about the same size; only their ratio counts.
        distance = np.minimum(distance, np.clip(1.0 - features @ features[best], 0.0, 1.0))
        score = doubt * distance
        score[order] = -1.0
    return order
