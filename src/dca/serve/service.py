"""The service behind the API: decodes and encodes images in batches, predicts, fills the tray, and refits."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dca.core.device import return_freed_memory
from dca.core.errors import UserError
from dca.datasets.corrections import Correction, read_corrections
from dca.datasets.walk import list_images
from dca.model.classifier import Classifier
from dca.serve.encoder import ImageFeatures
from dca.serve.errors import RequestError
from dca.serve.intake import Intake, Predictor
from dca.serve.metrics import Gauge, ServerMetrics
from dca.serve.options import ServeOptions
from dca.serve.predictions import AccuracyEstimate, ServedModel, ServedPrediction, estimated_accuracy
from dca.serve.stored_corrections import StoredCorrection, StoredCorrections
from dca.serve.workspace import CorrectedImage, ImagePool, LoadedImage, Workspace

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


class Served(Protocol):
    """What an application runs: a model, or the projects of a workspace.

    Attributes:
        options: How it is served.
        metrics: Counters of requests and batches.
        failure: Why it could not start; None if it did.
    """

    options: ServeOptions
    metrics: ServerMetrics
    failure: UserError | None

    def gauges(self) -> list[Gauge]:
        """Numbers for the metrics."""

    async def start(self) -> None:
        """Start whatever answers requests."""

    async def stop(self) -> None:
        """End all processes and threads."""


class LabelStore(Predictor, Protocol):
    """Where labels go: the corrections of a model, or the photos of a project.

    Attributes:
        revision: Grows with every change, so that a page can tell whether it is up to date.
    """

    revision: int

    @property
    def corrections(self) -> Mapping[str, str]:
        """Label of each labelled image, by hash."""

    def corrected_image(self, sha256: str) -> CorrectedImage | None:
        """The labelled image with this hash, where its features are at hand."""

    def find_thumbnail(self, sha256: str) -> bytes | None:
        """A small JPEG of a labelled or a training image."""

    def resolve_label(self, label: Any) -> str:
        """Return a client's label as that of a known class, or a new one; raises RequestError if it is none."""

    async def keep_label(self, image: LoadedImage | CorrectedImage, label: str) -> str:
        """Keep an image under a label, on disk; returns its path in the folder that is served."""

    async def refit(self) -> float:
        """Fit the model with all labels; returns the seconds it took."""

    async def undo(self, revision: int | None = None) -> str:
        """Take back the last change; returns what it was, in words."""

    def state(self) -> StoreState:
        """What a page shows."""


class StoreState(Protocol):
    """What a page shows of a `LabelStore`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""


class Service:
    """Everything behind the API of one model.

    Args:
        labels: The model, and where labels go.
        intake: Decodes and encodes images.
        options: How it is served.
        metrics: Counters of requests and batches.

    Attributes:
        labels, options, metrics: As given.
        images: The images in memory.
        uploads: Limits how many images are decoded and encoded at a time.
    """

    def __init__(self, labels: LabelStore, intake: Intake, options: ServeOptions, metrics: ServerMetrics) -> None:
        self.labels, self.options, self.metrics = labels, options, metrics
        self.intake, self.uploads = intake, intake.uploads
        self.images = ImagePool(options.recent_bytes, options.tray_bytes, options.tray_images)
        self._ranking: tuple[object, list[TrayImage]] = (None, [])

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
            return known, (await asyncio.to_thread(self.predict, [known.features]))[0]
        found, prediction = await self.intake.encode(data, self.labels)
        size = found.width, found.height
        return LoadedImage(sha256, *size, found.suffix, found.thumbnail, found.features, source), prediction

    def predict(self, features: Sequence[ImageFeatures]) -> list[ServedPrediction]:
        """Predict encoded images with the current model; without one, nothing is said of them."""
        current = self.labels.current
        return current.predict(features) if current is not None else [ServedPrediction.missing()] * len(features)

    def find_image(self, sha256: str) -> LoadedImage | CorrectedImage | None:
        """Return an image that is in memory or corrected, or None."""
        return self.images.get(sha256) or self.labels.corrected_image(sha256)

    def find_thumbnail(self, sha256: str) -> bytes | None:
        """Return a small JPEG of an image that is in memory, corrected or a training image, or None."""
        if (image := self.find_image(sha256)) is not None:
            return image.thumbnail
        return self.labels.find_thumbnail(sha256)

    def unlabelled_images(self) -> list[LoadedImage]:
        """The images of the tray that have no corrected label."""
        labelled = self.labels.corrections
        return [image for image in self.images.tray() if image.sha256 not in labelled]

    def rank_tray(self) -> list[TrayImage]:
        """Return the unlabelled images of the tray, the most useful to label first."""
        images = self.unlabelled_images()
        key = (id(self.labels.current), tuple(image.sha256 for image in images))
        if self._ranking[0] != key:
            self._ranking = key, rank_images(images, self.predict([image.features for image in images]))
        return self._ranking[1]

    async def refit(self, viewed: LoadedImage | CorrectedImage | None) -> RefitResult:
        """Refit the model with all corrections and compare it with the one before.

        Args:
            viewed: An image whose predictions before and after are wanted.

        Raises:
            RequestError: As `Workspace.refit`.
        """
        before, unlabelled = self.labels.current, self.unlabelled_images()
        features = [image.features for image in unlabelled] + ([viewed.features] if viewed else [])
        old = await asyncio.to_thread(self.predict, features)
        seconds = await self.labels.refit()
        after = self.labels.current
        new = await asyncio.to_thread(self.predict, features)
        count = len(unlabelled)
        changed = sum(a.best != b.best for a, b in zip(old[:count], new[:count], strict=True))

        def side(served: ServedModel | None, predictions: Sequence[ServedPrediction]) -> RefitSide:
            accuracy = estimated_accuracy(served.model) if served is not None else None
            return RefitSide(accuracy, predictions[-1] if viewed else None)

        return RefitResult(seconds, changed, side(before, old), side(after, new))

    def gauges(self) -> list[Gauge]:
        """Numbers of this model for the metrics."""
        return [
            Gauge("dca_model_revision", "Changes since the start.", self.labels.revision),
            Gauge("dca_tray_images", "Unlabelled images in the tray.", len(self.unlabelled_images())),
        ]


class ModelService(Service):
    """A finished model that is served, with its corrections.

    Args:
        folder: The model folder.
        model: The model of the folder.
        options: How it is served.
        tray: A folder whose images are put into the tray.

    Attributes:
        workspace: The model and its corrections.
        failure: Why it could not start; None if it did.
    """

    def __init__(self, folder: Path, model: Classifier, options: ServeOptions, tray: Path | None = None) -> None:
        metrics = ServerMetrics()
        self.workspace = Workspace(folder, model, options)
        intake = Intake(model.method_.encoder, options, model.method_, metrics.batches.observe)
        super().__init__(self.workspace, intake, options, metrics)
        self.failure: UserError | None = None
        self._stored, self._loaded = StoredCorrections(folder, model.method_.encoder), False
        self._tray_folder = tray
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the decoding processes and load the corrections of the model folder."""
        await self.intake.start()
        await self.workspace.load_corrections(await self._load_corrections())
        self._loaded = True
        self._background.append(asyncio.create_task(return_memory_periodically()))
        if self._tray_folder is not None:
            self._background.append(asyncio.create_task(self._fill_tray(self._tray_folder)))

    async def stop(self) -> None:
        """End all processes and threads."""
        for task in self._background:
            task.cancel()
        await self.intake.stop()
        if self._loaded:
            await asyncio.to_thread(self._stored.write, self.workspace.corrected_images())

    def gauges(self) -> list[Gauge]:
        """Numbers of this model for the metrics."""
        corrected = self.workspace.corrected_images()
        return [
            *super().gauges(),
            Gauge("dca_refits", "Refits since the start.", self.workspace.refits),
            Gauge("dca_corrections", "Corrections that are kept.", len(corrected)),
            Gauge("dca_correction_bytes", "Memory of the corrections.", sum(image.memory for image in corrected)),
            Gauge("dca_image_bytes", "Memory of recent images and those of the tray.", self.images.memory),
            *process_gauges(self.intake),
        ]

    async def _load_corrections(self) -> list[CorrectedImage]:
        """Load the corrections in the model folder; those that cannot be read are logged and left alone."""
        corrections = await asyncio.to_thread(read_corrections, self.workspace.folder)
        known = await asyncio.to_thread(self._stored.read)
        loads = [self._load_correction(correction, known.get(correction.sha256)) for correction in corrections]
        images = [image for image in await asyncio.gather(*loads) if image is not None]
        await asyncio.to_thread(self._stored.write, images)
        return images

    async def _load_correction(self, correction: Correction, known: StoredCorrection | None) -> CorrectedImage | None:
        try:
            size = correction.path.stat().st_size
            if known is None:
                image, _ = await self._load_file(correction.path, correction.sha256)
                known = StoredCorrection(image.thumbnail, image.features)
        except (RequestError, OSError) as error:
            log.warning("%s is left out: %s", correction.path, error)
            return None
        return CorrectedImage(correction, size, known.thumbnail, known.features)

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


def process_gauges(intake: Intake) -> list[Gauge]:
    """Numbers of the whole process for the metrics."""
    return [
        Gauge("dca_decoders", "Decoding processes that are ready or at work.", intake.decoders),
        Gauge("dca_resident_bytes", "Memory of the server without its decoding processes.", resident_bytes()),
    ]


async def return_memory_periodically() -> None:
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
    if not images or not predictions[0].labels:
        return [TrayImage(image, prediction, 0.0) for image, prediction in zip(images, predictions, strict=True)]
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
