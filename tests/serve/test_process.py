"""A server with real sockets: slow and many connections, and a killed process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from dca.datasets.corrections import read_corrections
from helpers.processes import DCA, start_process
from serve.serving import OPTIONS, Live, picture

Start = Callable[..., Live]
CLOSE = "Host: 127.0.0.1\r\nConnection: close\r\n\r\n"
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


def count_ended(connections: Iterable[socket.socket]) -> int:
    """How many of these connections the server has ended; closes them all."""
    ended = 0
    for connection in connections:
        connection.settimeout(0.02)
        try:
            ended += connection.recv(1) == b""
        except ConnectionResetError:
            ended += 1
        except TimeoutError:
            pass
        connection.close()
    return ended


def test_many_connections_are_dropped_and_others_go_on(live: Start):
    """The silent ones end for new ones, and sooner than one that has been answered."""
    server = live(replace(OPTIONS, connections=40, header_seconds=30))
    with httpx.Client(base_url=server.address) as known:
        known.get("/icon.svg")
        (connection,) = known._transport._pool.connections
        many = [connect(server.port) for _ in range(300)]
        assert httpx.get(f"{server.address}/api/model").status_code == 200
        assert known.get("/api/model").status_code == 200
        assert known._transport._pool.connections == [connection], "the answered connection was kept"
        assert count_ended(many) >= 250


def test_connections_of_one_address_are_limited(live: Start):
    server = live(replace(OPTIONS, client_connections=4))
    with connect(server.port) as other:
        many = [socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0)) for _ in range(9)]
        other.sendall(f"GET /icon.svg HTTP/1.1\r\n{CLOSE}".encode())
        assert received(other).startswith(b"HTTP/1.1 200")
        assert count_ended(many) == 5


def test_connections_held_after_a_refusal_shut_nobody_out(live: Start):
    """Each sends a header that is refused, then its body byte by byte: it ends soon, and at once where others wait."""
    server = live(replace(OPTIONS, connections=20, linger_seconds=1))
    refused = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx"
    held = [connect(server.port) for _ in range(60)]
    start = time.monotonic()
    for connection in held:
        with suppress(ConnectionError):  # some have given way to others
            connection.sendall(refused)
    assert httpx.get(f"{server.address}/api/model").status_code == 200
    assert time.monotonic() - start < 10
    last = held.pop()
    for _ in range(80):  # a byte every 0.1 s
        try:
            last.sendall(b"x")
        except ConnectionError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("it is open as long as it sends")
    for connection in (*held, last):
        received(connection)
        connection.close()


def test_an_answered_request_that_never_ends_is_cut_off(live: Start):
    server = live(replace(OPTIONS, linger_seconds=0.5))
    for head in ("POST /api/undo HTTP/1.1", "GET /api/model HTTP/1.1", f"{HEAD[:-4]}"):
        with connect(server.port) as connection:
            start = time.monotonic()
            connection.sendall(f"{head}\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx".encode())
            assert received(connection).startswith(b"HTTP/1.1 ")
            assert time.monotonic() - start < 8


def test_who_sends_too_much_can_read_why_it_is_refused(live: Start):
    """A connection that is closed while its client sends is reset, which browsers show as an error of the network."""
    server = live()
    with connect(server.port) as connection:
        connection.sendall(f"{HEAD}Content-Length: 20000000\r\n\r\n".encode() + bytes(20_000_000))
        told = received(connection)
    assert told.startswith(b"HTTP/1.1 413")
    assert b'"body-large"' in told


def test_who_does_not_read_responses_is_cut_off(live: Start):
    server = live(replace(OPTIONS, response_seconds=0.5))
    count, request = 400, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    expected = count * len(httpx.get(f"{server.address}/openapi.json").content)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(count * request)
        time.sleep(2)
        assert len(received(slow)) < expected
    assert httpx.get(f"{server.address}/api/model").status_code == 200


def test_idle_connections_end(live: Start):
    server = live(replace(OPTIONS, keep_alive_seconds=0.5))
    with connect(server.port) as idle:
        idle.sendall(b"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        start = time.monotonic()
        assert received(idle).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - start < 8


def test_slow_uploads_delay_nobody(live: Start):
    """More of them than images that are decoded at a time."""
    server = live(replace(OPTIONS, uploads=2))
    slow = [connect(server.port) for _ in range(10)]
    for connection in slow:
        connection.sendall(f"{HEAD}Content-Length: 1000\r\n\r\n".encode() + b"x" * 10)
    start = time.monotonic()
    assert post_image(server, picture()).status_code == 200
    assert time.monotonic() - start < OPTIONS.body_grace
    for connection in slow:
        connection.close()


def test_a_body_must_keep_a_least_rate(live: Start):
    server = live(replace(OPTIONS, body_grace=0.3, body_rate=1000))
    with connect(server.port) as slow:
        start = time.monotonic()
        slow.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n".encode())
        with suppress(ConnectionError):
            for _ in range(100):  # 100 bytes per second
                slow.sendall(b"x" * 10)
                time.sleep(0.1)
        assert time.monotonic() - start < 8
    with connect(server.port) as steady:
        steady.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n".encode())
        for _ in range(10):  # 10,000 bytes per second, for longer than the grace
            steady.sendall(b"x" * 1000)
            time.sleep(0.1)
        steady.sendall(b"x" * 90_000)
        assert steady.recv(12) == b"HTTP/1.1 415", "it was received to its end"


def test_memory_for_bodies_goes_to_those_that_send_at_once(live: Start):
    server = live(replace(OPTIONS, body_bytes=400_000))
    with connect(server.port) as slow:
        slow.sendall(f"{HEAD}Content-Length: 299999\r\n\r\n".encode() + bytes(250_000))
        time.sleep(0.5)
        assert post_image(server, picture() + bytes(200_000)).status_code == 200
        text = received(slow)
    assert text.startswith(b"HTTP/1.1 503")
    assert b"retry-after" in text.lower()
    assert b'"busy"' in text
    assert post_image(server, picture() + bytes(250_000)).status_code == 200, "what they held is free again"


def post_image(server: Live, data: bytes) -> httpx.Response:
    return httpx.post(f"{server.address}/api/predict", content=data, headers={"X-DCA": "1"}, timeout=60)


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

    see, wait = server.service.intake._batcher._process, time.sleep
    server.service.intake._batcher._process = lambda pixels: (wait(0.3), see(pixels))[1]
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(ask, range(12))) == {200}
    text = httpx.get(f"{server.address}/metrics").text
    passes = int(re.search(r"dca_batch_images_count (\d+)", text)[1])
    assert passes <= 6


def test_a_killed_server_loses_no_correction(folder: Path, tiny_folder: Path):
    """kill -9 as soon as an answer came: the file of every answered correction is there, whole."""
    command = [*DCA, "serve", folder, "--port", "0", "--device", "cpu"]
    address, token, kept = "", "", {}
    with start_process(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        for line in process.stdout:
            if found := re.search(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)", line):
                address, token = found.groups()
                break
        headers = {"X-DCA": "1", "Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
            for number in range(6):
                data = picture("PNG", colour=30 * number)
                image = client.post("/api/predict", content=data).json()["image"]
                told = client.post("/api/correct", content=json.dumps({"image": image, "label": f"new {number % 2}"}))
                assert told.status_code == 200
                kept[image] = data
            process.send_signal(signal.SIGKILL)
    assert {found.sha256: found.path.read_bytes() for found in read_corrections(folder)} == kept
    assert not list((folder / "corrections").rglob(".*"))
