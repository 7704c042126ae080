"""A queue in front of the encoder: requests that arrive while it works pass it together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Generic, TypeVar

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
