"""Decoding in processes of limited memory and time, so that no upload can harm the server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dca.backbones.clip import Preprocess
from dca.serve.decode_worker import LENGTH
from dca.serve.errors import RequestError
from dca.serve.options import TOKEN, ServeOptions

WORKER = "dca.serve.decode_worker"


@dataclass(frozen=True)
class Decoded:
    """What is kept of an uploaded image.

    width, height: of the image. suffix: end of the name of such a file, such as ".jpg". pixels: uint8 (3, S, S), what
    the encoder takes. thumbnail: a small JPEG.
    """

    width: int
    height: int
    suffix: str
    pixels: NDArray[np.uint8]
    thumbnail: bytes


class Decoders:
    """A few decoding processes; each decodes one image at a time and is replaced when it fails.

    Args:
        preprocess: How the encoder's pixels are made.
        options: Number of processes and their limits.
    """

    def __init__(self, preprocess: Preprocess, options: ServeOptions) -> None:
        self._size, self._seconds = preprocess.size, options.decode_seconds
        self._settings = json.dumps(
            {
                "size": preprocess.size,
                "resize": preprocess.resize,
                "resample": int(preprocess.resample),
                "pixels": options.pixels,
                "memory": options.decode_memory,
            }
        )
        self._count = options.decoders
        self._free: asyncio.Queue[Process] = asyncio.Queue()
        self._all: set[Process] = set()

    async def start(self) -> None:
        """Start the processes."""
        for process in await asyncio.gather(*(self._started() for _ in range(self._count))):
            self._free.put_nowait(process)

    async def stop(self) -> None:
        """End the processes."""
        for process in list(self._all):
            await self._end(process)

    async def decode(self, data: bytes) -> Decoded:
        """Decode one image file.

        Args:
            data: The file.

        Returns:
            What is kept of it.

        Raises:
            RequestError: If it is no image, damaged, too large, or takes too long.
        """
        process = await self._free.get()
        whole = False
        try:
            async with asyncio.timeout(self._seconds):
                facts, pixels, thumbnail = await _exchange(process, data)
            whole = True
        except TimeoutError:
            raise RequestError(422, f"decoding the image took longer than {self._seconds:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            raise RequestError(422, "the image cannot be decoded") from None
        finally:
            # Also when this request is cancelled: half an answer must not be taken for the next one's.
            self._free.put_nowait(process if whole else await asyncio.shield(self._replaced(process)))
        found = json.loads(facts)
        if "error" in found:
            raise RequestError(found["status"], found["error"])
        shaped = np.frombuffer(bytearray(pixels), np.uint8).reshape(3, self._size, self._size)
        return Decoded(found["width"], found["height"], found["suffix"], shaped, thumbnail)

    async def _started(self) -> Process:
        # -P: a file in the working folder must not be taken for a module. The token is no business of a decoder.
        command = [sys.executable, "-P", "-m", WORKER, self._settings]
        environment = {name: value for name, value in os.environ.items() if name != TOKEN}
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
        )
        self._all.add(process)
        return process

    async def _replaced(self, process: Process) -> Process:
        await self._end(process)
        return await self._started()

    async def _end(self, process: Process) -> None:
        self._all.discard(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _exchange(process: Process, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Send one file to a process and receive the three frames of its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(len(data).to_bytes(LENGTH, "big") + data)
    await process.stdin.drain()
    frames = []
    for _ in range(3):
        length = int.from_bytes(await process.stdout.readexactly(LENGTH), "big")
        frames.append(await process.stdout.readexactly(length))
    return frames[0], frames[1], frames[2]
