"""Reading what clients send, with limits on its size and time.

The JSON API: predict, correct, refit, undo, the tray, and the state of the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dca.core.errors import UserError
from dca.serve.errors import RequestError
from dca.serve.metrics import CONTENT_TYPE
from dca.serve.service import Service
from dca.serve.workspace import Answer, Held, Kept, accuracy

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


Endpoint = Callable[[Request], Awaitable[Response]]
_HASH = re.compile("[0-9a-f]{64}")
_GONE = "send it to /api/predict again"


class Api:
    """The endpoints over one service."""

    def __init__(self, service: Service) -> None:
        self._service, self._space, self._options = service, service.space, service.options

    def routes(self) -> list[Route]:
        """All routes of the API."""
        table: list[tuple[str, str, Endpoint]] = [
            ("GET", "/api/model", self.model),
            ("POST", "/api/predict", self.predict),
            ("POST", "/api/correct", self.correct),
            ("POST", "/api/refit", self.refit),
            ("POST", "/api/undo", self.undo),
            ("GET", "/api/tray", self.tray),
            ("POST", "/api/tray", self.add_to_tray),
            ("DELETE", "/api/tray/{image}", self.remove_from_tray),
            ("GET", "/api/images/{image}", self.image),
            ("GET", "/metrics", self.metrics),
        ]
        return [Route(path, self._observed(path, do), methods=[method]) for method, path, do in table]

    def _observed(self, route: str, do: Endpoint) -> Endpoint:
        """An endpoint that counts its requests and their time, and turns errors of the user into answers."""
        metrics = self._service.metrics

        async def endpoint(request: Request) -> Response:
            began, code = time.monotonic(), 500
            try:
                response = await do(request)
                code = response.status_code
                return response
            except UserError as error:
                code = 409
                hint = error.render("cli").partition("  fix: ")[2]
                raise RequestError(409, error.problem, hint, details=list(error.details)) from None
            except RequestError as error:
                code = error.status
                raise
            finally:
                metrics.requests.add(route=route, code=str(code))
                metrics.seconds.observe(time.monotonic() - began)

        return endpoint

    async def model(self, request: Request) -> Response:
        """The model, its classes and corrections."""
        return JSONResponse(self._state())

    async def predict(self, request: Request) -> Response:
        """The classes of the image in the body."""
        held, answer = await self._received(request)
        self._service.images.keep_recent(held)
        return JSONResponse(self._described(held, answer))

    async def correct(self, request: Request) -> Response:
        """Keep an image under the right label."""
        body = await read_json(request, self._options.body_seconds)
        label = self._space.checked_label(body.get("label"))
        made = await self._space.correct(self._known(body.get("image")), label)
        saved = made.path.relative_to(self._space.folder).as_posix()
        return JSONResponse({"image": made.sha256, "label": label, "saved": saved, "state": self._state()})

    async def refit(self, request: Request) -> Response:
        """Fit the model with all corrections; says what changed, also for the image that is being looked at."""
        body = await read_json(request, self._options.body_seconds)
        shown = None if body.get("image") is None else self._known(body["image"])
        before, others = self._space.current, self._service.unlabelled()
        seconds = await self._space.refit()
        after = self._space.current
        encoded = [held.encoded for held in others] + ([shown.encoded] if shown else [])
        old, new = await asyncio.to_thread(lambda: (before.answers(encoded), after.answers(encoded)))
        changed = sum(a.best != b.best for a, b in zip(old[: len(others)], new[: len(others)], strict=True))
        told = {"seconds": round(seconds, 3), "tray_changed": changed, "state": self._state()}
        for name, snapshot, answers in (("before", before, old), ("after", after, new)):
            told[name] = {
                "accuracy": accuracy(snapshot.model),
                "answer": answers[-1].to_dict(self._options.reject) if shown else None,
            }
        return JSONResponse(told)

    async def undo(self, request: Request) -> Response:
        """Take back the last correction or refit."""
        body = await read_json(request, self._options.body_seconds)
        revision = body.get("revision")
        if revision is not None and type(revision) is not int:
            raise RequestError(422, "revision: a whole number is expected")
        undone = await self._space.undo(revision)
        return JSONResponse({"undone": undone, "state": self._state()})

    async def tray(self, request: Request) -> Response:
        """The unlabelled images, the most useful to label first."""
        rows = await asyncio.to_thread(self._service.ordered_tray)
        images = [{**self._described(held, answer), "doubt": doubt} for held, answer, doubt in rows]
        return JSONResponse({"revision": self._space.revision, "images": images})

    async def add_to_tray(self, request: Request) -> Response:
        """Put the image in the body into the tray."""
        held, answer = await self._received(request)
        if held.sha256 not in self._space.corrections:
            self._service.images.put_in_tray(held)
            self._space.revision += 1
        return JSONResponse(self._described(held, answer), 201)

    async def remove_from_tray(self, request: Request) -> Response:
        """Take an image out of the tray."""
        if not self._service.images.remove_from_tray(_hash(request.path_params["image"])):
            raise RequestError(404, "the tray does not hold this image")
        self._space.revision += 1
        return JSONResponse(self._state())

    async def image(self, request: Request) -> Response:
        """A small JPEG of an image that is held, corrected or trained on."""
        found = self._service.thumbnail(_hash(request.path_params["image"]))
        if found is None:
            raise RequestError(404, "the server does not hold this image", _GONE)
        return Response(found, media_type="image/jpeg")

    async def metrics(self, request: Request) -> Response:
        """Figures for Prometheus."""
        return Response(self._service.metrics.render(), media_type=CONTENT_TYPE)

    async def _received(self, request: Request) -> tuple[Held, Answer]:
        """The image in the body of a request, decoded and encoded, and what the model says about it."""
        service, options = self._service, self._options
        async with service.uploads:
            data = await read_image(request, options.upload_bytes, options.body_seconds)
            sha256 = hashlib.sha256(data).hexdigest()
            return await service.seen(data, sha256, data)

    def _known(self, image: Any) -> Held | Kept:
        """The image that a client names by its hash."""
        sha256 = _hash(image)
        found = self._service.images.get(sha256) or self._space.kept(sha256)
        if found is None:
            raise RequestError(404, "the server does not hold this image", _GONE)
        return found

    def _described(self, held: Held, answer: Answer) -> dict[str, Any]:
        """The answer about one image as plain values."""
        return {
            "image": held.sha256,
            "width": held.width,
            "height": held.height,
            "revision": self._space.revision,
            "corrected": self._space.corrections.get(held.sha256),
            **answer.to_dict(self._options.reject),
        }

    def _state(self) -> dict[str, Any]:
        options = self._options
        limits = {"upload_bytes": options.upload_bytes, "pixels": options.pixels}
        return {**self._space.state(), "tray": len(self._service.unlabelled()), "limits": limits}


def _hash(text: Any) -> str:
    """The hash of an image, as a client wrote it."""
    if not isinstance(text, str) or not _HASH.fullmatch(text):
        raise RequestError(422, "image: 64 hexadecimal digits are expected, as /api/predict gives them")
    return text
