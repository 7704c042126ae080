"""Reading what clients send, with limits on its size and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from dca.serve.errors import RequestError

JSON_BYTES = 64 * 1024
# Content types of an image in the body itself; forms are answered with how to send it instead.
_RAW = ("image/", "application/octet-stream")


async def read_image(request: Request, limit: int, seconds: float) -> bytes:
    """The image file in the body of a request.

    Raises:
        RequestError: If the content type is that of something else, or the body is empty, too large or too slow.
    """
    kind = request.headers.get("content-type", "").lower()
    if kind and not kind.startswith(_RAW):
        raise RequestError(
            415, f"an image is expected in the body, not {kind.partition(';')[0]}",
            "send the file itself with Content-Type: application/octet-stream", close=True,
        )  # fmt: skip
    data = await read_body(request, limit, seconds)
    if not data:
        raise RequestError(400, "the body is empty", "send an image file")
    return data


async def read_json(request: Request, seconds: float) -> dict[str, Any]:
    """The JSON object in the body of a request; an empty body is an empty object.

    Raises:
        RequestError: If it is something else, too large or too slow.
    """
    data = await read_body(request, JSON_BYTES, seconds)
    if not data:
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not valid JSON") from None
    if not isinstance(found, dict):
        raise RequestError(400, "a JSON object is expected")
    return found


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The body of a request.

    Raises:
        RequestError: If it has more than `limit` bytes, or does not arrive within `seconds`.
    """
    stated = request.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated) > limit:
        raise _too_large(limit)
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive within {seconds:g} s", close=True) from None
    except ClientDisconnect:
        raise RequestError(400, "the connection ended before the body did", close=True) from None
    return b"".join(parts)


def _too_large(limit: int) -> RequestError:
    size = f"{limit / 1e6:g} MB" if limit >= 10**5 else f"{limit:,} bytes"
    return RequestError(413, f"the body has more than {size}", close=True)
