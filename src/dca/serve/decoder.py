"""Decoding in processes of limited memory and time, so that no upload can harm the server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from dca.backbones.preprocess import Preprocess
from dca.serve.decode_worker import LENGTH, DecodeOptions
from dca.serve.errors import RequestError
from dca.serve.options import TOKEN, ServeOptions

WORKER = "dca.serve.decode_worker"


@dataclass(frozen=True)
class DecodedImage:
    """What the server needs of an uploaded image.

    width, height: of the image. suffix: of such a file, such as ".jpg". pixels: uint8 (3, S, S), the input of the
    encoder. thumbnail: a small JPEG.
    """

    width: int
    height: int
    suffix: str
    pixels: NDArray[np.uint8]
    thumbnail: bytes


class DecoderPool:
    """A few decoding processes; each decodes one image at a time and is replaced when it fails.

    Args:
        preprocess: Preprocessing of the encoder.
        options: Number of processes and their limits.
    """

    def __init__(self, preprocess: Preprocess, options: ServeOptions) -> None:
        self._size, self._seconds = preprocess.size, options.decode_seconds
        self._options = DecodeOptions(
            preprocess.size, preprocess.resize, int(preprocess.resample), options.pixels, options.decode_memory
        )
        self._count = options.decoders
        self._idle: asyncio.Queue[Process] = asyncio.Queue()
        self._all: set[Process] = set()

    async def start(self) -> None:
        """Start the processes."""
        for process in await asyncio.gather(*(self._start_process() for _ in range(self._count))):
            self._idle.put_nowait(process)

    async def stop(self) -> None:
        """End the processes."""
        for process in list(self._all):
            await self._kill(process)

    async def decode(self, data: bytes) -> DecodedImage:
        """Decode one image file.

        Args:
            data: The file.

        Returns:
            Its size, pixels and thumbnail.

        Raises:
            RequestError: If it is no image, damaged, too large, or takes too long.
        """
        process = await self._idle.get()
        complete = False
        try:
            async with asyncio.timeout(self._seconds):
                reply, pixels, thumbnail = await _exchange(process, data)
            complete = True
        except TimeoutError:
            raise RequestError("image-slow", f"decoding the image took longer than {self._seconds:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            raise RequestError("image-damaged", "the image cannot be decoded") from None
        finally:
            # Also when this request is cancelled: half a reply must not be taken for that of the next request.
            self._idle.put_nowait(process if complete else await asyncio.shield(self._replace(process)))
        facts = json.loads(reply)
        if "error" in facts:
            raise RequestError(facts["code"], facts["error"])
        array = np.frombuffer(bytearray(pixels), np.uint8).reshape(3, self._size, self._size)
        return DecodedImage(facts["width"], facts["height"], facts["suffix"], array, thumbnail)

    async def _start_process(self) -> Process:
        # -P: a file in the working folder must not be imported as a module. A decoder does not need the token.
        command = [sys.executable, "-P", "-m", WORKER, json.dumps(asdict(self._options))]
        environment = {name: value for name, value in os.environ.items() if name != TOKEN}
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
        )
        self._all.add(process)
        return process

    async def _replace(self, process: Process) -> Process:
        await self._kill(process)
        return await self._start_process()

    async def _kill(self, process: Process) -> None:
        self._all.discard(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _exchange(process: Process, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Send one file to a process and receive the three frames of its reply."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(len(data).to_bytes(LENGTH, "big") + data)
    await process.stdin.drain()
    frames = []
    for _ in range(3):
        length = int.from_bytes(await process.stdout.readexactly(LENGTH), "big")
        frames.append(await process.stdout.readexactly(length))
    return frames[0], frames[1], frames[2]
