"""Encoding on all cores, and the queue in front of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dca.model.classifier import Classifier
from dca.serve.encoder import Batcher, encode_batch, encode_images


def batches_of(most: int, items: int) -> list[list[int]]:
    """What a batcher makes of items that all come while it is busy."""
    seen: list[list[int]] = []

    def work(some: Sequence[int]) -> list[int]:
        time.sleep(0.02)
        seen.append(list(some))
        return [2 * n for n in some]

    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(work, most, pool)
            await batcher.start()
            assert await asyncio.gather(*(batcher.submit(n) for n in range(items))) == [2 * n for n in range(items)]
            await batcher.stop()

    asyncio.run(run())
    return seen


def test_waiting_items_are_done_together():
    assert batches_of(4, 10) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches_of(1, 3) == [[0], [1], [2]]


def test_a_failed_batch_is_told_to_all_and_the_next_goes_on():
    def work(some: Sequence[int]) -> list[int]:
        if 0 in some:
            raise ValueError("no zero")
        return list(some)

    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(work, 8, pool)
            await batcher.start()
            told = await asyncio.gather(batcher.submit(0), batcher.submit(1), return_exceptions=True)
            assert [str(error) for error in told] == ["no zero", "no zero"]
            assert await batcher.submit(2) == 2
            await batcher.stop()

    asyncio.run(run())


def test_clients_that_have_gone_are_left_out():
    seen: list[int] = []

    def work(some: Sequence[int]) -> list[int]:
        time.sleep(0.05)
        seen.extend(some)
        return list(some)

    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(work, 1, pool)
            await batcher.start()
            first, gone = asyncio.create_task(batcher.submit(1)), asyncio.create_task(batcher.submit(2))
            await asyncio.sleep(0.01)
            gone.cancel()
            assert await first == 1
            assert await batcher.submit(3) == 3
            await batcher.stop()

    asyncio.run(run())
    assert seen == [1, 3]


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Torch with three threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_all_cores_give_the_features_of_one_pass(closed_form: Path):
    method = Classifier.from_pretrained(closed_form, device="cpu").method_
    size = method.clip.preprocess.size
    pixels = list(np.random.default_rng(0).integers(0, 256, (7, 3, size, size), dtype=np.uint8))
    for count in (1, 2, 3, 7):
        normalized = method.clip.preprocess.normalize(torch.from_numpy(np.stack(pixels[:count])))
        with torch.no_grad():
            found = encode_images(method.encoder, pixels[:count])
            expected = encode_batch(method.encoder, None, normalized)
        assert len(found) == count
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.frozen, other.frozen, atol=1e-5, rtol=1e-5)
