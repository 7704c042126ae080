"""`dca serve` under load: images per second, waiting times and memory, with and without batching.

    python benchmarks/serve_load.py                                  2,000 requests from 50 clients, each way
    python benchmarks/serve_load.py --minutes 20                     then 20 minutes of load, with the memory every
                                                                     half minute and its growth in the second half
    python benchmarks/serve_load.py --requests 200 --clients 8       a quick look

Server and clients run on this machine and talk over the loopback address. The model is the default method on the
embedded backbone, fitted on images drawn by code; `--model` takes another one. Every request sends different bytes, so
that no answer comes from memory.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_REQUESTS, MOST_CLIENTS, MOST_MINUTES = 100_000, 200, 60


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    port: int


@contextmanager
def start_server(model: Path, batch: int, token: str = "") -> Iterator[Server]:
    """`dca serve` on a free port, with this token or none, ended at the end."""
    command = [sys.executable, "-m", "dca", "serve", str(model), "--port", "0", "--batch", str(batch)]
    command += [] if token else ["--no-token"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "DCA_TOKEN": token}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                yield Server(process, int(found[1]))
                break
        else:
            raise SystemExit("the server did not start")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def fit_model(folder: Path) -> Path:
    """A model of the default method on the sample."""
    from dca import Classifier
    from dca.datasets.sample import load_sample

    Classifier(device="cpu").fit(load_sample(per_class_train=8, per_class_test=1)).save_pretrained(folder / "model.dca")
    return folder / "model.dca"


def load_photos(count: int, side: int) -> list[bytes]:
    """JPEG files of the sample's test images, again and again until there are `count`."""
    from dca.datasets.sample import load_sample
    from dca.images.decode import open_image

    items = load_sample(per_class_train=1, size=side).test
    files = []
    for item in items[:count]:
        file = io.BytesIO()
        open_image(item.image).save(file, "JPEG", quality=88)
        files.append(file.getvalue())
    return [files[n % len(files)] for n in range(count)]


class Client:
    """One keep-alive connection; small, because it shares the processors with the server."""

    def __init__(self, port: int, token: str = "") -> None:
        self._port = port
        self._authorization = f"Authorization: Bearer {token}\r\n" if token else ""

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of an answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nX-DCA: 1\r\n{self._authorization}"
        head += f"Content-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
        return int(lines[0].split()[1]), await self._reader.readexactly(length)


async def run_load(port: int, images: list[bytes], clients: int, requests: int, seconds: float) -> dict[str, Any]:
    """So many requests, or as many as fit into the seconds, from so many clients at once."""
    waits: list[float] = []
    errors: list[int] = []
    left = iter(range(requests))
    end = time.monotonic() + seconds

    async def one() -> None:
        rng = random.Random()  # not seeded: two calls would send the same bytes, which are answered from memory
        async with Client(port) as client:
            for _ in left:
                began = time.monotonic()
                if began > end:
                    return
                status, _ = await client.request("POST", "/api/predict", rng.choice(images) + rng.randbytes(16))
                waits.append(time.monotonic() - began)
                if status != 200:
                    errors.append(status)

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(clients)))
    took = time.monotonic() - began
    cuts = statistics.quantiles(waits, n=100)
    return {
        "requests": len(waits), "errors": len(errors), "seconds": round(took, 2),
        "images_per_second": round(len(waits) / took, 1),
        "p50_ms": round(1000 * cuts[49], 1), "p95_ms": round(1000 * cuts[94], 1), "p99_ms": round(1000 * cuts[98], 1),
    }  # fmt: skip


def iterate_processes(pid: int) -> Iterator[tuple[list[str], list[str]]]:
    """`stat` (behind the name) and `statm` of a process and of the processes that it started, the process first."""
    # A number may be lower than that of its parent: they begin anew some time.
    for place in sorted(Path("/proc").glob("[0-9]*"), key=lambda place: (int(place.name) != pid, int(place.name))):
        try:
            stat = (place / "stat").read_text().rpartition(")")[2].split()
            if int(place.name) == pid or int(stat[1]) == pid:
                yield stat, (place / "statm").read_text().split()
        except (OSError, ValueError):
            continue


def read_resident_mb(pid: int) -> float:
    """Memory of a server with its decoding processes, in MB."""
    return round(sum(int(memory[1]) for _, memory in iterate_processes(pid)) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def read_processor_seconds(pid: int) -> list[float]:
    """Processor time of a server, and of its decoding processes together."""
    times = [(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") for stat, _ in iterate_processes(pid)]
    return [times[0], sum(times[1:])]


async def read_mean_batch(port: int) -> float:
    """Images that passed the encoder together, on average since the start."""
    async with Client(port) as client:
        text = (await client.request("GET", "/metrics"))[1].decode()
    found = dict(re.findall(r"dca_batch_images_(sum|count) (\S+)", text))
    return round(float(found["sum"]) / float(found["count"]), 1)


async def measure(model: Path, args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """The figures of one server."""
    images = load_photos(args.images, args.side)
    with start_server(model, batch) as server:
        await run_load(server.port, images, args.clients, args.clients * 2, 60)  # warm up
        before, busy = read_resident_mb(server.process.pid), read_processor_seconds(server.process.pid)
        found = await run_load(server.port, images, args.clients, args.requests, 600)
        spent = [end - start for start, end in zip(busy, read_processor_seconds(server.process.pid), strict=True)]
        found["processor_ms_per_image"] = [round(1000 * part / found["requests"], 2) for part in spent]
        found |= {"batch": batch, "mean_batch": await read_mean_batch(server.port)}
        found["memory_mb"] = [before, read_resident_mb(server.process.pid)]
        if batch > 1 and args.minutes:
            found |= await run_soak(server, images, args.clients, args.minutes)
    return found


async def run_soak(server: Server, images: list[bytes], clients: int, minutes: int) -> dict[str, Any]:
    """Minutes of load: the memory every half minute, also on stderr, and how fast it grows in the second half.

    What a server keeps is bounded, and has to fill first.
    """
    began, times, memory = time.monotonic(), [0.0], [read_resident_mb(server.process.pid)]
    for _ in range(minutes * 2):
        found = await run_load(server.port, images, clients, MOST_REQUESTS, 30)
        times.append((time.monotonic() - began) / 60)
        memory.append(read_resident_mb(server.process.pid))
        rate = f"{found['images_per_second']:.1f} images/s, {found['errors']} errors"
        print(f"{times[-1]:5.1f} min  {memory[-1]:8.1f} MB  {rate}", file=sys.stderr, flush=True)
    late = len(times) // 2
    slope = statistics.linear_regression(times[late:], memory[late:]).slope
    return {"memory_over_time": memory, "memory_growth_mb_per_minute": round(slope, 2)}


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder; by default one is fitted")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--images", type=int, default=40, help="different images; every request changes their bytes")
    parser.add_argument("--side", type=int, default=256, help="pixels of their sides")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--minutes", type=int, default=0, help="of load for the memory over time")
    args = parser.parse_args()
    if args.requests > MOST_REQUESTS or args.clients > MOST_CLIENTS or args.minutes > MOST_MINUTES:
        parser.error(f"at most {MOST_REQUESTS:,} requests, {MOST_CLIENTS} clients and {MOST_MINUTES} minutes")
    with tempfile.TemporaryDirectory() as place:
        model = args.model or fit_model(Path(place))
        batched, single = (asyncio.run(measure(model, args, batch)) for batch in (args.batch, 1))
    ratio = batched["images_per_second"] / single["images_per_second"]
    print(json.dumps({"batched": batched, "unbatched": single, "ratio": round(ratio, 2)}, indent=2))


if __name__ == "__main__":
    main()
