"""Batching, the order of the tray, metrics, and the images that are held."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dca.model.classifier import Classifier
from dca.serve.errors import RequestError
from dca.serve.metrics import Counter, Gauge, Histogram, rendered
from dca.serve.service import Batcher, Encoder, doubts, encode, labelling_order
from dca.serve.workspace import Encoded, Held, HeldImages
from serve.serving import client_of, service_of


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


def test_all_cores_give_the_features_of_one_pass(closed_form: Path, monkeypatch: pytest.MonkeyPatch):
    method = Classifier.from_pretrained(closed_form, device="cpu").method_
    size = method.clip.preprocess.size
    pixels = list(np.random.default_rng(0).integers(0, 256, (7, 3, size, size), dtype=np.uint8))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    encoder = Encoder()
    for count in (1, 2, 3, 7):
        found, expected = encoder(method, pixels[:count]), encode(method, pixels[:count])
        assert len(found) == count
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.frozen, other.frozen, atol=1e-5, rtol=1e-5)
    encoder.close()


def test_the_least_certain_image_comes_first():
    probabilities = np.array([[0.9, 0.1, 0.0], [0.4, 0.35, 0.25], [0.6, 0.3, 0.1]])
    features = np.eye(3)
    assert labelling_order(doubts(probabilities), features) == [1, 2, 0]


def test_copies_come_late():
    """A copy of the first image is asked for after a more certain image that looks different."""
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert labelling_order(np.array([1.0, 0.99, 0.2]), features) == [0, 2, 1]


def test_every_image_is_in_the_order_once():
    rng = np.random.default_rng(0)
    units = rng.normal(size=(40, 5))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    assert sorted(labelling_order(rng.random(40), units)) == list(range(40))
    assert labelling_order(np.zeros(0), np.zeros((0, 5))) == []


def test_metrics_are_in_the_text_format():
    requests, sizes = Counter("asked_total", "Asked."), Histogram("size", "Sizes.", (1, 4))
    requests.add(code='2"0\n0')
    requests.add(2.5)
    for value in (1, 3, 9):
        sizes.observe(value)
    lines = rendered([requests, sizes, Gauge("now", "Now.", 3)]).splitlines()
    assert 'asked_total{code="2\\"0\\n0"} 1' in lines
    assert "asked_total 2.5" in lines
    assert [line for line in lines if line.startswith("size_")] == [
        'size_bucket{le="1"} 1', 'size_bucket{le="4"} 2', 'size_bucket{le="+Inf"} 3', "size_sum 13", "size_count 3"
    ]  # fmt: skip
    assert lines[-1] == "now 3"


def held(name: str, size: int) -> Held:
    return Held(name, 1, 1, ".jpg", b"", Encoded(torch.zeros(2), None), bytes(size))


def test_recent_images_are_forgotten_by_size_and_the_tray_stays():
    images = HeldImages(recent_bytes=100, tray_bytes=50, tray_images=2)
    images.put_in_tray(held("t", 40))
    for name in "abc":
        images.keep_recent(held(name, 40))
    assert [images.get(name) is not None for name in "abct"] == [False, True, True, True]
    with pytest.raises(RequestError):
        images.put_in_tray(held("u", 40))
    assert images.remove_from_tray("t")
    images.put_in_tray(held("u", 40))


def test_freed_memory_is_returned_while_the_server_runs(closed_form: Path, monkeypatch: pytest.MonkeyPatch):
    returned = threading.Event()
    monkeypatch.setattr("dca.serve.service.TIDY_SECONDS", 0.01)
    monkeypatch.setattr("dca.serve.service.return_freed_memory", returned.set)
    with client_of(service_of(closed_form)):
        assert returned.wait(10)
    time.sleep(0.1)
    returned.clear()
    assert not returned.wait(0.2), "it ends with the server"
