"""`dca serve` under attack: what honest clients notice, its memory, and what is left after it is killed.

    python benchmarks/serve_attack.py                  5 minutes without and 5 minutes with the attack
    python benchmarks/serve_attack.py --minutes 0.5    a quick look

Honest clients send images and label some of them, first alone and then beside 256 connections that are held open after
a refusal, 40 uploads that are sent too slowly, clients that do not read their responses, and a killer that ends a
random decoding process every few seconds. All clients have the same address. Afterwards a server is killed while
clients label images, and started again, a few times. The exit status is 1 if an honest client sees an error, if its
95th percentile is three times that without the attack, if memory grows, or if a correction is lost.

A server is meant to keep what belongs to images: of those that were sent last up to a limit, and of every correction.
It says how much that is (`dca_image_bytes` and `dca_correction_bytes` of /metrics), and growth of its memory means what
goes beyond.

Everything runs on this machine and talks over the loopback address; all loops end by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_load import Client, Server, fit_model, iterate_processes, load_photos, start_server

MOST_MINUTES, MOST_CLIENTS, MOST_KILLS = 30, 200, 20
HELD, SLOW, DEAF = 256, 40, 10
# Every so many requests an honest client labels the image.
LABEL_EVERY = 20
# Growth of the server's own memory without the images that it keeps, in MB per minute of the second half and beyond
# twice its standard error, that still counts as flat.
FLAT = 10.0
# Seconds between two readings of the memory, and within which the lowest counts: so often a server gives memory back.
READ_EVERY, GIVEN_BACK_EVERY = 5.0, 20.0
Hold = Callable[[int, str], Awaitable[None]]


@dataclass
class Seen:
    """What honest clients saw. kept: hashes of the images whose correction was confirmed."""

    waits: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Reading:
    """Memory of a server in MB. minutes: since the first reading. corrected, images: of these, as it says itself."""

    minutes: float
    own: float
    corrections: int
    corrected: float
    images: float

    @property
    def rest(self) -> float:
        """What does not belong to images."""
        return self.own - self.corrected - self.images


async def run_honest(port: int, token: str, images: list[bytes], clients: int, seconds: float, every: int) -> Seen:
    """Honest clients for some seconds; each labels an image every so many requests."""
    seen, end = Seen(), time.monotonic() + seconds

    async def one(number: int) -> None:
        rng = random.Random()
        count = number
        while time.monotonic() < end:
            try:
                async with Client(port, token) as client:
                    while (began := time.monotonic()) < end:
                        count += 1
                        body = rng.choice(images) + rng.randbytes(16)
                        status, text = await asyncio.wait_for(client.request("POST", "/api/predict", body), 60)
                        seen.waits.append(time.monotonic() - began)
                        if status != 200:
                            seen.errors.append(f"predict {status} {text[:200]!r}")
                        elif count % every == 0:
                            await label(client, json.loads(text)["image"], rng)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                seen.errors.append(f"after {time.monotonic() - end + seconds:.1f} s: {error!r}")
                await asyncio.sleep(0.1)

    async def label(client: Client, image: str, rng: random.Random) -> None:
        content = json.dumps({"image": image, "label": f"class {rng.randrange(3)}"}).encode()
        status, text = await asyncio.wait_for(client.request("POST", "/api/correct", content), 60)
        if status == 200:
            seen.kept.add(image)
        else:
            seen.errors.append(f"correct {status} {text[:200]!r}")

    await asyncio.gather(*(one(number) for number in range(clients)))
    return seen


async def hold_connection(port: int, token: str) -> None:
    """A request without a token, then its body byte by byte, for as long as it lasts."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx")
    await drip(writer, 0.5)


async def upload_slowly(port: int, token: str) -> None:
    """An upload with a token, a few bytes per second."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-DCA: 1\r\nAuthorization: Bearer {token}\r\n"
    writer.write(f"{head}Content-Length: 1000000\r\n\r\n".encode() + bytes(60_000))
    await drip(writer, 0.2)


async def read_nothing(port: int, token: str) -> None:
    """Many requests, and no response is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    try:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", port))
        for _ in range(200):
            await loop.sock_sendall(connection, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for _ in range(60):
            await asyncio.sleep(1)
            await loop.sock_sendall(connection, b"\r\n")
    finally:
        connection.close()


async def drip(writer: asyncio.StreamWriter, pause: float) -> None:
    """Send a byte after each pause, for a minute or until the server ends the connection."""
    try:
        for _ in range(int(60 / pause)):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(pause)
    finally:
        writer.close()


def attack(port: int, token: str, seconds: float) -> None:
    """Hold connections for some seconds, in a process of its own; those that end are opened again."""
    end = time.monotonic() + seconds

    async def again(hold: Hold) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(hold(port, token), max(end - time.monotonic(), 0.01))
            await asyncio.sleep(0.5)

    async def everything() -> None:
        ways = [hold_connection] * HELD + [upload_slowly] * SLOW + [read_nothing] * DEAF
        await asyncio.gather(*map(again, ways))

    asyncio.run(everything())


def kill_decoders(pid: int, seconds: float, killed: list[int]) -> None:
    """End a random decoding process of a server every few seconds."""
    rng, end = random.Random(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(rng.uniform(1, 4), left))
        workers = [int(stat[0]) for stat in find_children(pid)]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker := rng.choice(workers), signal.SIGKILL)
                killed.append(worker)


def find_children(pid: int) -> list[list[str]]:
    """Number and state of the processes that a server has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (place / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == pid and stat[0] != "Z":
                found.append([place.name, stat[0]])
    return found


def watch_memory(server: Server, token: str, seconds: float, memory: list[Reading]) -> None:
    """Read the memory of a server every few seconds."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            found = asyncio.run(asyncio.wait_for(read_metrics(server.port, token), 60))
            _, pages = next(iterate_processes(server.process.pid))  # without decoding processes, which come and go
            own = int(pages[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            corrected, images = found["dca_correction_bytes"] / 1e6, found["dca_image_bytes"] / 1e6
            memory.append(Reading(passed / 60, own, int(found["dca_corrections"]), corrected, images))
        time.sleep(min(READ_EVERY, seconds / 10))


async def read_metrics(port: int, token: str) -> dict[str, float]:
    """The numbers without labels of /metrics."""
    async with Client(port, token) as client:
        status, text = await client.request("GET", "/metrics")
    if status != 200:
        raise OSError(f"metrics {status}")
    lines = (line.split() for line in text.decode().splitlines() if line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in lines}


def describe(seen: Seen) -> dict[str, Any]:
    """Figures of honest clients."""
    cuts = statistics.quantiles(seen.waits, n=100)
    return {
        "requests": len(seen.waits), "errors": len(seen.errors), "first_errors": seen.errors[:5],
        "corrections": len(seen.kept), "p50_ms": round(1000 * cuts[49], 1), "p95_ms": round(1000 * cuts[94], 1),
    }  # fmt: skip


def measure_attack(model: Path, images: list[bytes], clients: int, minutes: float) -> dict[str, Any]:
    """Honest clients alone and under attack, on one server."""
    token, seconds = secrets.token_hex(16), 60 * minutes
    with start_server(model, 32, token) as server:
        pid, port = server.process.pid, server.port
        asyncio.run(run_honest(port, token, images, clients, 5, 10**9))  # warm up
        quiet = asyncio.run(run_honest(port, token, images, clients, seconds, LABEL_EVERY))
        killed: list[int] = []
        memory: list[Reading] = []
        attackers = multiprocessing.get_context("spawn").Process(target=attack, args=(port, token, seconds + 5))
        threads = [
            threading.Thread(target=kill_decoders, args=(pid, seconds, killed)),
            threading.Thread(target=watch_memory, args=(server, token, seconds, memory)),
        ]
        attackers.start()
        time.sleep(5)  # until all connections are held
        for thread in threads:
            thread.start()
        loud = asyncio.run(run_honest(port, token, images, clients, seconds, LABEL_EVERY))
        for thread in threads:
            thread.join()
        attackers.join(60)
        attackers.kill()
    growth, error = measure_growth(memory[len(memory) // 2 :], min(GIVEN_BACK_EVERY, seconds / 10))
    ratio = statistics.quantiles(loud.waits, n=100)[94] / statistics.quantiles(quiet.waits, n=100)[94]
    return {
        "quiet": describe(quiet), "attack": describe(loud), "p95_ratio": round(ratio, 2),
        "decoders_killed": len(killed),
        "memory_mb": [round(reading.own) for reading in memory][:: max(len(memory) // 12, 1)],
        "without_images_mb": [round(reading.rest) for reading in memory][:: max(len(memory) // 12, 1)],
        "kb_per_correction": round(1000 * memory[-1].corrected / max(memory[-1].corrections, 1), 1),
        "memory_growth_mb_per_minute": round(growth, 2), "memory_growth_error": round(error, 2),
        "lost": find_lost(model, quiet.kept | loud.kept),
    }  # fmt: skip


def measure_growth(memory: list[Reading], span: float) -> tuple[float, float]:
    """Slope over minutes of the memory that does not belong to images, in MB, and its standard error.

    span: seconds of which the lowest reading counts.
    """
    groups = itertools.groupby(memory, key=lambda reading: reading.minutes * 60 // span)
    lowest = [min(group, key=lambda reading: reading.rest) for _, group in groups]
    times, sizes = [reading.minutes for reading in lowest], [reading.rest for reading in lowest]
    slope, start = statistics.linear_regression(times, sizes)
    rest = sum((mb - start - slope * t) ** 2 for t, mb in zip(times, sizes, strict=True)) / (len(lowest) - 2)
    return slope, math.sqrt(rest / (statistics.pvariance(times) * len(times)))


def find_lost(model: Path, kept: set[str]) -> int:
    """How many confirmed corrections have no whole file in the model folder."""
    from dca.datasets.corrections import read_corrections

    return len(kept - {correction.sha256 for correction in read_corrections(model)})


def measure_kills(model: Path, images: list[bytes], kills: int) -> dict[str, Any]:
    """Kill a server at random moments while clients label images; what the next one has of them."""
    rng, kept, known, starts = random.Random(), set[str](), list[int](), list[float]()
    for number in range(kills + 1):
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError), start_server(model, 32, "token") as server:
            starts.append(round(time.monotonic() - began, 1))
            known.append(asyncio.run(count_corrections(server)) - len(kept))
            if number < kills:
                threading.Timer(rng.uniform(0.5, 3), server.process.kill).start()
                kept |= asyncio.run(run_honest(server.port, "token", images, 8, 4, 2)).kept
                server.process.wait(30)
    return {
        "kills": kills, "corrections": len(kept), "lost": find_lost(model, kept),
        "missing_after_start": [max(-more, 0) for more in known], "start_seconds": starts,
    }  # fmt: skip


async def count_corrections(server: Server) -> int:
    """How many corrections a server knows."""
    async with Client(server.port, "token") as client:
        return int(json.loads((await client.request("GET", "/api/model"))[1])["corrections"])


def main() -> None:
    """Measure, print one JSON object, and fail if something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder; by default one is fitted")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--kills", type=int, default=5, help="of the server")
    args = parser.parse_args()
    if args.minutes > MOST_MINUTES or args.clients > MOST_CLIENTS or args.kills > MOST_KILLS:
        parser.error(f"at most {MOST_MINUTES} minutes, {MOST_CLIENTS} clients and {MOST_KILLS} kills")
    images = load_photos(40, 256)
    with tempfile.TemporaryDirectory() as place:
        model = Path(shutil.copytree(args.model, Path(place, "model.dca"))) if args.model else fit_model(Path(place))
        other = Path(shutil.copytree(model, Path(place, "other.dca")))
        found = measure_attack(model, images, args.clients, args.minutes)
        found["kills"] = measure_kills(other, images, args.kills)
    print(json.dumps(found, indent=2))
    faults = {
        "honest clients saw errors": found["quiet"]["errors"] + found["attack"]["errors"],
        "the attack slowed them": found["p95_ratio"] >= 3,
        "memory grows": found["memory_growth_mb_per_minute"] - 2 * found["memory_growth_error"] > FLAT,
        "corrections are lost": found["lost"] + found["kills"]["lost"] + sum(found["kills"]["missing_after_start"]),
    }
    sys.exit("; ".join(name for name, bad in faults.items() if bad) or 0)


if __name__ == "__main__":
    main()
