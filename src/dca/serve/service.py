"""A model being served: decoding, batched encoding, images that are held, and metrics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from dca.core.memory import return_freed_memory
from dca.data.corrections import Correction, read_corrections
from dca.data.sources.walk import image_files
from dca.model.classifier import Classifier
from dca.serve.batching import Batcher
from dca.serve.decoder import Decoders
from dca.serve.encoder import Encoder, Pixels
from dca.serve.errors import RequestError
from dca.serve.images import Held, HeldImages
from dca.serve.metrics import SECONDS, SIZES, Counter, Gauge, Histogram, rendered
from dca.serve.model_view import Answer, Encoded
from dca.serve.options import ServeOptions
from dca.serve.tray import doubts, labelling_order
from dca.serve.workspace import Kept, Workspace

log = logging.getLogger(__name__)
# Seconds between two returns of freed memory.
TIDY_SECONDS = 20.0


class Service:
    """Everything behind the API.

    Args:
        folder: The model folder.
        model: Its model.
        options: How it is served.
        tray: A folder whose images are put into the tray.

    Attributes:
        space: The model and its corrections.
        images: The images that are held.
        uploads: Limits how many images are received at a time.
        metrics: What is counted.
    """

    def __init__(self, folder: Path, model: Classifier, options: ServeOptions, tray: Path | None = None) -> None:
        self.options, self._tray_folder = options, tray
        self.space = Workspace(folder, model)
        self.images = HeldImages(options.recent_bytes, options.tray_bytes, options.tray_images)
        self.uploads = asyncio.Semaphore(options.uploads)
        self.metrics = Metrics(self)
        self._decoders = Decoders(model.method_.clip.preprocess, options)
        self._encoder = Encoder()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dca-batch")
        self._batcher = Batcher(self._see, options.batch, self._thread, self.metrics.batches.observe)
        self._filling: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._ordered: tuple[object, list[tuple[Held, Answer, float]]] = (None, [])

    async def start(self) -> None:
        """Start the processes, and read the corrections of the model folder."""
        await asyncio.gather(self._decoders.start(), self._batcher.start())
        await self.space.adopt([kept for kept in await self._read_corrections() if kept is not None])
        self._tidying = asyncio.create_task(_tidy())
        if self._tray_folder is not None:
            self._filling = asyncio.create_task(self._fill_tray(self._tray_folder))

    async def stop(self) -> None:
        """End the processes."""
        for task in (self._filling, self._tidying):
            if task is not None:
                task.cancel()
        await self._batcher.stop()
        await self._decoders.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._encoder.close()

    def _see(self, pixels: Sequence[Pixels]) -> list[tuple[Encoded, Answer]]:
        """Features of some images, and what the current model says about them."""
        current = self.space.current
        encoded = self._encoder(current.model.method_, pixels)
        return list(zip(encoded, current.answers(encoded), strict=True))

    async def seen(self, data: bytes, sha256: str, source: bytes | Path) -> tuple[Held, Answer]:
        """An image file, decoded and encoded, and what the model says about it.

        Args:
            data: The file.
            sha256: Its hash.
            source: What is kept of it: the file, or its place.

        Raises:
            RequestError: If it cannot be decoded.
        """
        known = self.images.get(sha256)
        if known is not None:
            (answer,) = await asyncio.to_thread(self.space.current.answers, [known.encoded])
            return known, answer
        found = await self._decoders.decode(data)
        encoded, answer = await self._batcher.submit(found.pixels)
        held = Held(sha256, found.width, found.height, found.suffix, found.thumbnail, encoded, source)
        return held, answer

    async def _read_corrections(self) -> list[Kept | None]:
        """The corrections in the model folder; those that cannot be read are named in the log and left alone."""
        return await asyncio.gather(*map(self._kept, await asyncio.to_thread(read_corrections, self.space.folder)))

    async def _kept(self, correction: Correction) -> Kept | None:
        try:
            held, _ = await self._seen_file(correction.path, correction.sha256)
        except (RequestError, OSError) as error:
            log.warning("%s is left out: %s", correction.path, error)
            return None
        return Kept(correction, held.thumbnail, held.encoded)

    async def _seen_file(self, path: Path, sha256: str | None = None) -> tuple[Held, Answer]:
        """An image file of the server's own machine, which may be as large as an upload."""
        async with self.uploads:
            if path.stat().st_size > self.options.upload_bytes:
                raise RequestError(413, f"larger than {self.options.upload_bytes:,} bytes")
            data = await asyncio.to_thread(path.read_bytes)
            return await self.seen(data, sha256 or hashlib.sha256(data).hexdigest(), path)

    async def _fill_tray(self, folder: Path) -> None:
        """Put the images of a folder into the tray, as many as it takes."""
        for path in await asyncio.to_thread(image_files, folder):
            try:
                held, _ = await self._seen_file(path)
                self.images.put_in_tray(held)
                self.space.revision += 1
            except (RequestError, OSError) as error:
                log.warning("%s is left out of the tray: %s", path, error)

    def thumbnail(self, sha256: str) -> bytes | None:
        """A small JPEG of an image that is held, corrected or trained on."""
        found = self.images.get(sha256) or self.space.kept(sha256)
        if found is not None:
            return found.thumbnail
        gallery = self.space.current.model.gallery()
        if gallery is None or sha256 not in gallery.sha256:
            return None
        return gallery.thumbnail(gallery.sha256.index(sha256))

    def unlabelled(self) -> list[Held]:
        """The images of the tray that have no corrected label."""
        labelled = self.space.corrections
        return [held for held in self.images.tray() if held.sha256 not in labelled]

    def ordered_tray(self) -> list[tuple[Held, Answer, float]]:
        """The unlabelled images with the model's answers and its doubt, the most useful to label first."""
        current, images = self.space.current, self.unlabelled()
        key = (id(current), tuple(held.sha256 for held in images))
        if self._ordered[0] != key:
            self._ordered = key, _ordered(images, current.answers([held.encoded for held in images]))
        return self._ordered[1]


def _ordered(images: Sequence[Held], answers: Sequence[Answer]) -> list[tuple[Held, Answer, float]]:
    """Images with answers and doubts, the most useful to label first."""
    if not images:
        return []
    doubt = doubts(np.stack([answer.probabilities for answer in answers]))
    frozen = torch.stack([held.encoded.frozen for held in images]).double().cpu()
    units = torch.nn.functional.normalize(frozen, dim=-1).numpy()
    return [(images[n], answers[n], round(float(doubt[n]), 4)) for n in labelling_order(doubt, units)]


async def _tidy() -> None:
    """Return freed memory from time to time: images that stay and batches that go would leave ever more of it."""
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        await asyncio.to_thread(return_freed_memory)


class Metrics:
    """What a server counts."""

    def __init__(self, service: Service) -> None:
        self.requests = Counter("dca_requests_total", "Requests by route and status.")
        self.seconds = Histogram("dca_request_seconds", "Time of requests to the API.", SECONDS)
        self.batches = Histogram("dca_batch_images", "Images that passed the encoder together.", SIZES)
        self._service = service

    def render(self) -> str:
        """All figures in the text format of Prometheus."""
        space = self._service.space
        gauges = {
            "dca_model_revision": ("Changes since the start.", space.revision),
            "dca_refits": ("Refits since the start.", space.refits),
            "dca_corrections": ("Corrections that are kept.", len(space.corrections)),
            "dca_tray_images": ("Unlabelled images in the tray.", len(self._service.unlabelled())),
            "dca_resident_bytes": ("Memory of the server without its decoding processes.", resident_bytes()),
        }
        read = [Gauge(name, help, float(value)) for name, (help, value) in gauges.items()]
        return rendered([self.requests, self.seconds, self.batches, *read])


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
