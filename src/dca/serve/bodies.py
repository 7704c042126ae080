"""Bodies of requests, received within limits of size, time, rate and memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from dca.serve.errors import RequestError
from dca.serve.options import ServeOptions

# Largest JSON body, in bytes.
JSON_BYTES = 64 * 1024
# Content types of an image in the body itself; for others, such as forms, the error says how to send the image.
_IMAGE_TYPES = ("image/", "application/octet-stream")


@dataclass(eq=False)
class _Reception:
    """A body that is being received. size: bytes so far. ended: whether others needed its memory."""

    timer: asyncio.Timeout
    size: int = 0
    ended: bool = False


class BodyReader:
    """Receives bodies. The memory of all bodies that are received or in use is limited.

    When it is full, the body that has been on its way for the longest time is given up. So clients that send slowly,
    but within the limits of time, do not keep out those that send at once.

    Args:
        options: The limits.

    Attributes:
        memory: Bytes of all bodies that are received or in use.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self.memory = 0
        self._receptions: dict[_Reception, None] = {}  # the oldest first

    @asynccontextmanager
    async def read_image(self, request: Request) -> AsyncIterator[bytes]:
        """Receive the image file in the body of a request; its memory counts until the block ends.

        Raises:
            RequestError: If the content type is that of something else, or the body is empty, too large or too slow.
        """
        kind = request.headers.get("content-type", "").lower()
        if kind and not kind.startswith(_IMAGE_TYPES):
            raise RequestError(
                "content-type", f"an image is expected in the body, not {kind.partition(';')[0]}",
                "send the file itself with Content-Type: application/octet-stream", close=True,
            )  # fmt: skip
        async with self._read(request, self._options.upload_bytes) as data:
            if not data:
                raise RequestError("body-empty", "the body is empty", "send an image file")
            yield data

    async def read_json(self, request: Request) -> dict[str, Any]:
        """Receive the JSON object in the body of a request; an empty body is an empty object.

        Raises:
            RequestError: If it is something else, too large or too slow.
        """
        async with self._read(request, JSON_BYTES) as data:
            if not data:
                return {}
            try:
                value = json.loads(data)
            except (ValueError, RecursionError):
                raise RequestError("not-json", "the body is not valid JSON") from None
        if not isinstance(value, dict):
            raise RequestError("not-json", "a JSON object is expected")
        return value

    @asynccontextmanager
    async def _read(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """Receive a body of at most `limit` bytes."""
        stated = request.headers.get("content-length", "")
        if stated.isascii() and stated.isdigit() and int(stated) > limit:
            raise _too_large(limit)
        reception = _Reception(asyncio.timeout(self._options.body_grace))
        try:
            yield await self._receive(request, reception, limit)
        finally:
            self._release(reception)

    async def _receive(self, request: Request, reception: _Reception, limit: int) -> bytes:
        options, timer, chunks = self._options, reception.timer, list[bytes]()
        start = asyncio.get_running_loop().time()
        self._receptions[reception] = None
        try:
            async with timer:
                async for chunk in request.stream():
                    if reception.size + len(chunk) > limit:
                        raise _too_large(limit)
                    self._reserve(reception, len(chunk))
                    chunks.append(chunk)
                    seconds = min(options.body_seconds, options.body_grace + reception.size / options.body_rate)
                    if not timer.expired():
                        timer.reschedule(start + seconds)
        except TimeoutError:
            if reception.ended:
                raise _busy() from None
            raise RequestError(
                "body-slow", f"the body was sent too slowly: {reception.size:,} bytes arrived",
                f"send at least {options.body_rate:,} bytes per second, and all within {options.body_seconds:g} s",
                close=True,
            ) from None  # fmt: skip
        except ClientDisconnect:
            raise RequestError("body-incomplete", "the connection ended before the body did", close=True) from None
        finally:
            self._receptions.pop(reception, None)
        return b"".join(chunks)

    def _reserve(self, reception: _Reception, size: int) -> None:
        """Take memory for a part of a body, if need be that of the body that has been on its way longest."""
        while self.memory + size > self._options.body_bytes:
            oldest = next(iter(self._receptions), reception)
            if oldest is reception:
                raise _busy()
            oldest.ended = True
            self._release(oldest)
            del self._receptions[oldest]
            if not oldest.timer.expired():
                oldest.timer.reschedule(0)
        reception.size += size
        self.memory += size

    def _release(self, reception: _Reception) -> None:
        self.memory -= reception.size
        reception.size = 0


def _busy() -> RequestError:
    return RequestError("busy", "the server receives too many images at a time", "send it again", close=True)


def _too_large(limit: int) -> RequestError:
    size = f"{limit / 1e6:g} MB" if limit >= 10**5 else f"{limit:,} bytes"
    return RequestError("body-large", f"the body has more than {size}", close=True)
