"""What a server keeps in memory, counted in objects: nothing of connections and processes that have ended."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dca import CLIP
from dca.serve.decoder import DecoderPool
from dca.serve.workspace import OBJECT_BYTES
from serve.serving import OPTIONS, Live, client_of, picture, service_of

HEAD = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-DCA: 1\r\n"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without the garbage collector, what refers to itself stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def count(name: str) -> int:
    """How many objects of a class there are."""
    return sum(type(one).__name__ == name for one in gc.get_objects())


def count_connections() -> int:
    """How many connections and requests there are; other tests may have left some that ended servers hold."""
    return count("LimitedProtocol") + count("RequestResponseCycle")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /api/model HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        HEAD + b"Content-Length: 5\r\n\r\nhello",
        HEAD + b"Content-Length: 100000\r\n\r\n" + bytes(60_000),
        b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx",
    ],
    ids=["nothing", "page", "other host", "no image", "half a body", "no header"],
)
@pytest.mark.parametrize(
    "reset", [pytest.param(False, id="closed", marks=pytest.mark.slow), pytest.param(True, id="reset")]
)
@pytest.mark.usefixtures("no_collector")
def test_nothing_stays_of_connections_that_have_ended(live: Callable[..., Live], sent: bytes, reset: bool) -> None:
    server, before = live(replace(OPTIONS, linger_seconds=0.2)), count_connections()
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", server.port), 10) as client:
            client.sendall(sent)
            client.settimeout(0.2)
            with suppress(TimeoutError):  # half a body has no answer
                client.recv(1000)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end = time.monotonic() + 30
    while (left := count_connections()) > before and time.monotonic() < end:
        time.sleep(0.1)
    assert left == before


@pytest.mark.slow
def test_nothing_stays_of_decoding_processes_that_were_killed(clip: CLIP) -> None:
    async def kill_some() -> list[int]:
        pool = DecoderPool(clip.preprocess, OPTIONS)
        await pool.start()
        counts = []
        try:
            for _ in range(4):
                (process,) = pool._all
                os.kill(process.pid, signal.SIGKILL)
                del process
                assert (await pool.decode(picture())).width == 48
                await asyncio.sleep(0.3)
                gc.collect()
                counts.append(sum(map(count, ("Process", "SubprocessStreamProtocol", "StreamReader"))))
        finally:
            await pool.stop()
        return counts

    counts = asyncio.run(kill_some())
    assert counts[-1] <= counts[0]


def test_a_correction_keeps_a_thumbnail_and_features_alone(folder: Path) -> None:
    service = service_of(folder, replace(OPTIONS, recent_bytes=1))
    with client_of(service) as client:
        found = client.post("/api/predict", content=picture()).json()["image"]
        recent: Any = service.images.get(found)
        gone, thumbnail, size = weakref.ref(recent), len(recent.thumbnail), recent.features.frozen.nbytes
        client.post("/api/correct", json={"image": found, "label": "narwhal"})
        assert read_gauge(client, "dca_correction_bytes") == thumbnail + size + OBJECT_BYTES
        assert read_gauge(client, "dca_image_bytes") == recent.memory
        recent = None
        client.post("/api/predict", content=picture(colour=9))
        gc.collect()
        assert gone() is None
        corrected = service.workspace.corrected_image(found)
        assert corrected is not None
        assert corrected.features.frozen.untyped_storage().nbytes() == size  # not a part of a larger one


def read_gauge(client: Any, name: str) -> float:
    """A number of the metrics."""
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.slow
def test_refits_that_are_undone_leave_nothing(folder: Path) -> None:
    service = service_of(folder)
    tensors = []
    with client_of(service) as client:
        for number in range(4):
            found = client.post("/api/predict", content=picture(colour=20 * number)).json()["image"]
            client.post("/api/correct", json={"image": found, "label": "narwhal"})
            assert client.post("/api/refit", json={}).status_code == 200
            for _ in range(2):
                assert client.post("/api/undo", json={}).status_code == 200
            gc.collect()
            tensors.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
    # The image itself is among the recent ones: one tensor each.
    assert tensors[-1] - tensors[1] <= 2
