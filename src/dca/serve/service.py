"""A queue in front of the encoder: requests that arrive while it works pass it together.

The encoder of a server: many images at once, and on a CPU on all of its cores.

Which unlabelled image to label next: the least certain first, unlike those before it.

A model being served: decoding, batched encoding, images that are held, and metrics.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dca.core.device import return_freed_memory
from dca.datasets.corrections import Correction, read_corrections
from dca.datasets.walk import list_images
from dca.methods.base import Method
from dca.model.classifier import Classifier
from dca.serve.decoder import Decoders
from dca.serve.errors import RequestError
from dca.serve.metrics import SECONDS, SIZES, Counter, Gauge, Histogram, rendered
from dca.serve.options import ServeOptions
from dca.serve.workspace import Answer, Encoded, Held, HeldImages, Kept, Workspace

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Calls `work` with all items that are waiting, at most `most` at once, one call at a time.

    No item waits for others to come: a single request is done at once, and batches grow with the load.

    Args:
        work: Results of some items, in their order; called in the executor.
        most: Items per call; 1 does them one by one.
        executor: Where `work` runs.
        observe: Called with the number of items of each call.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], Sequence[R]],
        most: int,
        executor: Executor,
        observe: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._work, self._most, self._executor, self._observe = work, most, executor, observe
        self._waiting: asyncio.Queue[tuple[T, asyncio.Future[R]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End; items that are waiting are dropped."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def submit(self, item: T) -> R:
        """The result of one item; raises what `work` raised for its batch."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((item, future))
        return await future

    async def _run(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < self._most and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            wanted = [(item, future) for item, future in batch if not future.done()]  # else its client has gone
            if wanted:
                await self._do(wanted)

    async def _do(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        self._observe(len(batch))
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._executor, self._work, [item for item, _ in batch])
        except Exception as error:  # every client of the batch learns of it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)


Pixels = NDArray[np.uint8]


class Encoder:
    """Turns pixels into features.

    On a CPU, torch divides every operation among the cores, and all of them wait for the slowest each time. Where other
    work wants the cores, too, as here, that costs a multiple. So each core gets a part of the images instead; only a
    single image is encoded by all cores together.
    """

    def __init__(self) -> None:
        self._cores = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._cores, "dca-encode", initializer=torch.set_num_threads, initargs=(1,))

    def __call__(self, method: Method, pixels: Sequence[Pixels]) -> list[Encoded]:
        """Features of images; pixels: uint8 (3, S, S) each."""
        parts = min(self._cores, len(pixels)) if method.clip.device.type == "cpu" else 1
        if parts < 2:
            return encode(method, pixels)
        size = -(-len(pixels) // parts)
        chunks = [pixels[start : start + size] for start in range(0, len(pixels), size)]
        done = self._pool.map(encode, [method] * len(chunks), chunks)
        return [image for part in done for image in part]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@torch.no_grad()
def encode(method: Method, pixels: Sequence[Pixels]) -> list[Encoded]:
    """Features of images in one pass; pixels: uint8 (3, S, S) each."""
    clip = method.clip
    batch = clip.preprocess.normalize(torch.from_numpy(np.stack(pixels)).to(clip.device))
    frozen = clip.encode_image(batch)
    own = [None] * len(pixels) if method.has_frozen_image_tower else [row.clone() for row in method.encode(batch)]
    # Copies: a row of the batch would keep all of it in memory.
    return [Encoded(row.clone(), other) for row, other in zip(frozen, own, strict=True)]


Floats = NDArray[np.float64]


def doubts(probabilities: Floats) -> Floats:
    """How unsure a model is of each image, (n,): one minus the lead of the best class over the second.

    probabilities: (n, C).

    >>> doubts(np.array([[0.9, 0.1], [0.5, 0.5]])).round(6).tolist()
    [0.2, 1.0]
    """
    if probabilities.shape[1] < 2:
        return np.zeros(len(probabilities))
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    found: Floats = 1.0 - (first - second)
    return found


def labelling_order(doubt: Floats, features: Floats) -> list[int]:
    """Places of the images, the most useful to label first.

    Each next image has the largest doubt times distance to the nearest image before it. A label also says much about
    images that look the same, so that a copy of an image that is asked for first is asked for late.

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
        for path in await asyncio.to_thread(list_images, folder):
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
        return gallery.jpegs[gallery.sha256.index(sha256)]

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
