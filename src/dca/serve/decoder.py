"""Decoding in processes of limited memory and time, so that no upload can harm the server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from dca.backbones.encoder import Pixels
from dca.core.errors import UserError
from dca.serve.decode_worker import LENGTH, DecodeOptions
from dca.serve.errors import RequestError
from dca.serve.options import TOKEN, ServeOptions

log = logging.getLogger(__name__)
WORKER = "dca.serve.decode_worker"
# How often an image is tried: a process that ends may have been killed for another reason than its image.
ATTEMPTS = 3
# Seconds that a process may take to be ready, and the pauses between attempts to start one, which double.
START_SECONDS, FIRST_PAUSE, LONGEST_PAUSE = 60.0, 0.2, 10.0
# Seconds within which a process that has ended is known to have.
ENDED_SECONDS = 0.1


@dataclass(frozen=True)
class DecodedImage:
    """What the server needs of an uploaded image.

    width, height: of the image. suffix: of such a file, such as ".jpg". pixels: the input of the encoder,
    uint8 (3, S, S), or (values,) for several. thumbnail: a small JPEG.
    """

    width: int
    height: int
    suffix: str
    pixels: NDArray[np.uint8]
    thumbnail: bytes


class DecoderPool:
    """A few decoding processes; each decodes one image at a time and is replaced when it fails.

    A replacement that cannot be started is tried again, with growing pauses. While no process is left, images are
    refused with status 503.

    Args:
        preprocess: Preprocessing of the encoder.
        options: Number of processes and their limits.
    """

    def __init__(self, preprocess: Pixels, options: ServeOptions) -> None:
        sizes = [size for size, *_ in preprocess.crops]
        self._shape = (3, sizes[0], sizes[0]) if len(sizes) == 1 else (preprocess.values,)
        self._seconds = options.decode_seconds
        self._options = DecodeOptions(preprocess.crops, options.pixels, options.decode_memory)
        self._count = options.decoders
        self._idle: deque[Process] = deque()
        self._busy = 0
        self._all: set[Process] = set()
        self._replacements: set[asyncio.Task[None]] = set()
        self._failing = 0
        self._changed = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of processes that are ready or decode."""
        return len(self._idle) + self._busy

    async def start(self) -> None:
        """Start the processes.

        Raises:
            UserError: If none can be started.
        """
        starts = (self._start_process() for _ in range(self._count))
        started = await asyncio.gather(*starts, return_exceptions=True)
        self._idle.extend(process for process in started if isinstance(process, Process))
        failures = [error for error in started if isinstance(error, BaseException)]
        for error in failures:
            if not isinstance(error, _StartError):
                raise error
        if not self._idle:
            problem = f"no process that decodes images can be started: {failures[0]}"
            raise UserError(problem, hint="free memory or processes on this machine")
        for _ in failures:
            self._add_process()

    async def stop(self) -> None:
        """End the processes."""
        for task in self._replacements:
            task.cancel()
        await asyncio.gather(*self._replacements, return_exceptions=True)
        for process in list(self._all):
            await self._kill(process)

    async def decode(self, data: bytes) -> DecodedImage:
        """Decode one image file.

        Args:
            data: The file.

        Returns:
            Its size, pixels and thumbnail.

        Raises:
            RequestError: If it is no image, damaged, too large, or takes too long, or no process is left.
        """
        for _ in range(ATTEMPTS):
            if (frames := await self._try_to_decode(data)) is not None:
                break
        else:
            raise RequestError("image-damaged", "the image cannot be decoded")
        reply, pixels, thumbnail = frames
        facts = json.loads(reply)
        if "error" in facts:
            raise RequestError(facts["code"], facts["error"])
        array = np.frombuffer(bytearray(pixels), np.uint8).reshape(self._shape)
        return DecodedImage(facts["width"], facts["height"], facts["suffix"], array, thumbnail)

    async def _try_to_decode(self, data: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Return the frames of a reply; None if the process ended before it replied."""
        process = await self._take_process()
        self._busy += 1
        complete = False
        try:
            async with asyncio.timeout(self._seconds):
                frames = await _exchange(process, data)
            complete = True
            return frames
        except TimeoutError:
            raise RequestError("image-slow", f"decoding the image took longer than {self._seconds:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            return None
        finally:
            self._busy -= 1
            if complete:
                self._idle.append(process)
            else:  # also when this request is cancelled: half a reply must not be taken for that of the next request
                self._add_process(instead_of=process)
            self._changed.set()

    async def _take_process(self) -> Process:
        """Wait for an idle process; raises RequestError if there is none and none can be started."""
        while True:
            while self._idle:
                process = self._idle.popleft()
                if process.returncode is None:
                    return process
                self._add_process(instead_of=process)  # it was killed while it was idle
            if self._failing == self._count:
                raise RequestError("no-decoder", "images cannot be decoded at the moment", "send it again in a while")
            self._changed.clear()
            await self._changed.wait()

    def _add_process(self, instead_of: Process | None = None) -> None:
        """Start a process in the background, as often as it takes, after killing the one that it replaces."""
        task = asyncio.create_task(self._start_until_ready(instead_of))
        self._replacements.add(task)
        task.add_done_callback(self._replacements.discard)

    async def _start_until_ready(self, old: Process | None) -> None:
        if old is not None:
            with suppress(TimeoutError):  # of one that has ended, asyncio learns soon, and kills it only with a warning
                async with asyncio.timeout(ENDED_SECONDS):
                    await old.wait()
            await self._kill(old)
        pause, failures = FIRST_PAUSE, 0
        while True:
            try:
                process = await self._start_process()
            except _StartError as error:
                failures += 1
                if failures == 2:  # a single one may have been killed as it started
                    log.warning("a process that decodes images cannot be started, and is tried again: %s", error)
                    self._failing += 1
                    self._changed.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._failing -= failures >= 2
                self._idle.append(process)
                self._changed.set()
                return

    async def _start_process(self) -> Process:
        """Start a process and wait until it is ready."""
        # -P: a file in the working folder must not be imported as a module. A decoder does not need the token.
        command = [sys.executable, "-P", "-m", WORKER, json.dumps(asdict(self._options))]
        environment = {name: value for name, value in os.environ.items() if name != TOKEN}
        creation = asyncio.ensure_future(
            asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment)
        )
        try:
            process = await asyncio.shield(creation)
        except OSError as error:
            raise _StartError(error.strerror or str(error)) from None
        except asyncio.CancelledError:  # a process that is cancelled half-created would stay behind
            with suppress(OSError):
                await self._kill(await creation)
            raise
        self._all.add(process)
        ready = False
        try:
            assert process.stdout is not None
            async with asyncio.timeout(START_SECONDS):
                await process.stdout.readexactly(LENGTH)
            ready = True
        except TimeoutError:
            raise _StartError(f"it is not ready after {START_SECONDS:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            raise _StartError("it ended at once") from None
        finally:
            if not ready:
                await self._kill(process)
        return process

    async def _kill(self, process: Process) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self._all.discard(process)  # not before: `stop` waits for what is left, also if this is cancelled


class _StartError(Exception):
    """A decoding process could not be started."""


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
