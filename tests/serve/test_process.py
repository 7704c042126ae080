"""A server with real sockets: slow and many connections, and a killed process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx

from dca.datasets.corrections import read_corrections
from helpers.processes import DCA, start_process
from serve.serving import OPTIONS, Live, picture

Start = Callable[..., Live]
HEAD = "POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-DCA: 1\r\n"


def connect(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port))
    found.settimeout(20)
    return found


def received(connection: socket.socket) -> bytes:
    """Everything until the server ends the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_slow_bodies_time_out(live: Start):
    server = live(replace(OPTIONS, body_seconds=0.5))
    with connect(server.port) as slow:
        slow.sendall(f"{HEAD}Content-Length: 1000\r\n\r\n".encode() + b"x" * 10)
        assert received(slow).startswith(b"HTTP/1.1 408")
    assert httpx.get(f"{server.address}/api/model").status_code == 200


def test_slow_headers_time_out(live: Start):
    server = live(replace(OPTIONS, header_seconds=0.5))
    with connect(server.port) as silent, connect(server.port) as slow:
        slow.sendall(b"POST /api/predict HTTP/1.1\r\nHost: ")
        assert received(slow) == received(silent) == b""
    with connect(server.port) as kept:  # also for the second request of a connection
        kept.sendall(b"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert kept.recv(15) == b"HTTP/1.1 200 OK"
        kept.sendall(b"GET /icon.svg HT")
        received(kept)


def test_many_connections_are_dropped_and_others_go_on(live: Start):
    server = live(replace(OPTIONS, connections=40, header_seconds=30))
    with connect(server.port) as known:
        many = [connect(server.port) for _ in range(300)]
        known.sendall(b"GET /api/model HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in received(known)
        dropped = 0
        for connection in many:
            connection.settimeout(0.02)
            try:
                dropped += connection.recv(1) == b""
            except ConnectionResetError:
                dropped += 1
            except TimeoutError:
                pass
            connection.close()
        assert dropped >= 250
    assert httpx.get(f"{server.address}/api/model").status_code == 200


def test_nonsense_is_answered_or_dropped(live: Start):
    server = live()
    for text in (
        b"\x00\xff" * 50,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"\r\n\r\n",
        f"{HEAD}Content-Length: -5\r\n\r\n".encode(),
    ):
        with connect(server.port) as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            answer = received(connection)
            assert answer == b"" or answer[9:10] == b"4", answer[:80]
    assert httpx.get(f"{server.address}/api/model").status_code == 200


def test_requests_pass_the_encoder_together(live: Start):
    """Twelve requests at once take far fewer than twelve passes."""
    from concurrent.futures import ThreadPoolExecutor

    server = live()

    def ask(number: int) -> int:
        data = picture(colour=20 * number)
        return httpx.post(f"{server.address}/api/predict", content=data, headers={"X-DCA": "1"}, timeout=60).status_code

    see, wait = server.service._batcher._process, time.sleep
    server.service._batcher._process = lambda pixels: (wait(0.3), see(pixels))[1]
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(ask, range(12))) == {200}
    text = httpx.get(f"{server.address}/metrics").text
    passes = int(re.search(r"dca_batch_images_count (\d+)", text)[1])
    assert passes <= 6


def test_a_killed_server_loses_no_correction(folder: Path, tiny_folder: Path):
    """kill -9 as soon as an answer came: the file of every answered correction is there, whole."""
    command = [*DCA, "serve", folder, "--port", "0", "--device", "cpu"]
    address, kept = "", {}
    with start_process(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                address = found[0]
                break
        with httpx.Client(base_url=address, headers={"X-DCA": "1"}, timeout=60) as client:
            for number in range(6):
                data = picture("PNG", colour=30 * number)
                image = client.post("/api/predict", content=data).json()["image"]
                told = client.post("/api/correct", content=json.dumps({"image": image, "label": f"new {number % 2}"}))
                assert told.status_code == 200
                kept[image] = data
            process.send_signal(signal.SIGKILL)
    assert {found.sha256: found.path.read_bytes() for found in read_corrections(folder)} == kept
    assert not list((folder / "corrections").rglob(".*"))
