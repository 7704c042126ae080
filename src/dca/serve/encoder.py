"""Encoding for a server: images of concurrent requests pass the image tower together, on all cores of a CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.images.decode import StoredImage
from dca.methods.base import Method
from dca.training.pipeline import Source, encode_batches

Item = TypeVar("Item")
Result = TypeVar("Result")
Pixels = NDArray[np.uint8]
# Stands for the file of an image that a decoding process has opened and cropped.
DECODED = StoredImage("", "upload", b"")


@dataclass(frozen=True)
class ImageFeatures:
    """Features of one image.

    frozen: (D,), of the frozen backbone. adapted: (D,), of the method, if it changes the image tower; None otherwise. A
    method that changes the image tower is never refitted here, so these features stay valid.
    """

    frozen: Tensor
    adapted: Tensor | None

    @property
    def memory(self) -> int:
        """Bytes of its values."""
        return self.frozen.nbytes + (0 if self.adapted is None else self.adapted.nbytes)


def encode_images(encoder: Encoder, pixels: Sequence[Pixels], method: Method | None = None) -> list[ImageFeatures]:
    """Encode decoded images, on a CPU one part of them per core; pixels: uint8 (3, S, S) or (values,) each.

    method: one that may change the image tower; None for frozen features alone.
    """
    parts = min(torch.get_num_threads(), len(pixels)) if encoder.device.type == "cpu" else 1
    sources = [Source(DECODED, torch.from_numpy(crop)) for crop in pixels]
    encode = partial(encode_batch, encoder, method)
    batches = encode_batches(sources, encode, encoder, size=-(-len(pixels) // parts))
    return [features for batch in batches for features in batch.result or ()]


def encode_batch(encoder: Encoder, method: Method | None, pixels: Tensor) -> list[ImageFeatures]:
    """Features of the images of one batch; pixels: (B, 3, S, S), normalised."""
    frozen = encoder.encode_image(pixels)
    changed = method is not None and not method.has_frozen_image_tower
    # Copies: a row of the batch would keep the whole batch in memory.
    adapted = [row.clone() for row in method.encode(pixels)] if method and changed else [None] * len(pixels)
    return [ImageFeatures(row.clone(), own) for row, own in zip(frozen, adapted, strict=True)]


class Batcher(Generic[Item, Result]):
    """A queue in front of `process`: items that arrive while it runs are processed together in the next call.

    No item waits for others to arrive: a single request is processed at once, and batches grow with the load.

    Args:
        process: Maps items to their results, in order; called in the executor, one call at a time.
        max_batch: Most items per call; 1 processes them one by one.
        executor: Where `process` runs.
        on_batch: Callback with the number of items of each call.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Item]], Sequence[Result]],
        max_batch: int,
        executor: Executor,
        on_batch: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._process, self._max_batch, self._executor, self._on_batch = process, max_batch, executor, on_batch
        self._queue: asyncio.Queue[tuple[Item, asyncio.Future[Result]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start processing the queue."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; queued items are dropped."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def submit(self, item: Item) -> Result:
        """Return the result of one item; raises what `process` raised for its batch."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        return await future

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._max_batch and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            waiting = [(item, future) for item, future in batch if not future.done()]  # the others' clients have gone
            if waiting:
                await self._run_batch(waiting)

    async def _run_batch(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        self._on_batch(len(batch))
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._executor, self._process, [item for item, _ in batch])
        except Exception as error:  # raised by `submit` of every item of the batch
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
