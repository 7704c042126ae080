"""The JSON API: predict, correct, refit, undo, the tray, and the state of the model.

Requests are read with limits on their size and time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dca.core.errors import UserError
from dca.serve.errors import RequestError
from dca.serve.metrics import CONTENT_TYPE
from dca.serve.service import RefitSide, Service
from dca.serve.workspace import CorrectedImage, LoadedImage, ServedPrediction

# Largest JSON body, in bytes.
JSON_BYTES = 64 * 1024
# Content types of an image in the body itself; for others, such as forms, the error says how to send the image.
_IMAGE_TYPES = ("image/", "application/octet-stream")
_HASH = re.compile("[0-9a-f]{64}")
_SEND_AGAIN = "send it to /api/predict again"
Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The endpoints over one service."""

    def __init__(self, service: Service) -> None:
        self._service, self._workspace, self._options = service, service.workspace, service.options

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
        return [Route(path, self._wrap_endpoint(path, endpoint), methods=[method]) for method, path, endpoint in table]

    def _wrap_endpoint(self, path: str, endpoint: Endpoint) -> Endpoint:
        """Wrap an endpoint: count its requests and their time, and turn user errors into responses."""
        metrics = self._service.metrics

        async def measured(request: Request) -> Response:
            start, code = time.monotonic(), 500
            try:
                response = await endpoint(request)
                code = response.status_code
                return response
            except UserError as error:
                response_error = RequestError.from_user_error(error, "refused")
                code = response_error.status
                raise response_error from None
            except RequestError as error:
                code = error.status
                raise
            finally:
                metrics.requests.add(route=path, code=str(code))
                metrics.seconds.observe(time.monotonic() - start)

        return measured

    async def model(self, request: Request) -> Response:
        """The model, its classes and corrections."""
        return JSONResponse(self._state())

    async def predict(self, request: Request) -> Response:
        """Predict the image in the body."""
        image, prediction = await self._load_image(request)
        self._service.images.keep_recent(image)
        return JSONResponse(self._prediction(image, prediction))

    async def correct(self, request: Request) -> Response:
        """Keep an image under the right label."""
        body = await read_json(request, self._options.body_seconds)
        label = self._workspace.resolve_label(body.get("label"))
        correction = await self._workspace.correct(self._find_image(body.get("image")), label)
        saved = correction.path.relative_to(self._workspace.folder).as_posix()
        return JSONResponse({"image": correction.sha256, "label": label, "saved": saved, "state": self._state()})

    async def refit(self, request: Request) -> Response:
        """Fit the model with all corrections; returns what changed, also for an image that the client names."""
        body = await read_json(request, self._options.body_seconds)
        viewed = None if body.get("image") is None else self._find_image(body["image"])
        result = await self._service.refit(viewed)
        return JSONResponse(
            {
                "seconds": round(result.seconds, 3),
                "tray_changed": result.tray_changed,
                "state": self._state(),
                "before": self._side(result.before),
                "after": self._side(result.after),
            }
        )

    async def undo(self, request: Request) -> Response:
        """Take back the last correction or refit."""
        body = await read_json(request, self._options.body_seconds)
        revision = body.get("revision")
        if revision is not None and type(revision) is not int:
            raise RequestError("invalid-revision", "revision: a whole number is expected")
        undone = await self._workspace.undo(revision)
        return JSONResponse({"undone": undone, "state": self._state()})

    async def tray(self, request: Request) -> Response:
        """The unlabelled images, the most useful to label first."""
        rows = await asyncio.to_thread(self._service.rank_tray)
        images = [{**self._prediction(row.image, row.prediction), "doubt": row.doubt} for row in rows]
        return JSONResponse({"revision": self._workspace.revision, "images": images})

    async def add_to_tray(self, request: Request) -> Response:
        """Put the image in the body into the tray."""
        image, prediction = await self._load_image(request)
        if image.sha256 not in self._workspace.corrections:
            self._service.images.put_in_tray(image)
            self._workspace.revision += 1
        return JSONResponse(self._prediction(image, prediction), 201)

    async def remove_from_tray(self, request: Request) -> Response:
        """Remove an image from the tray."""
        if not self._service.images.remove_from_tray(_check_hash(request.path_params["image"])):
            raise RequestError("not-in-tray", "the tray does not hold this image")
        self._workspace.revision += 1
        return JSONResponse(self._state())

    async def image(self, request: Request) -> Response:
        """A small JPEG of an image that is in memory, corrected or a training image."""
        thumbnail = self._service.find_thumbnail(_check_hash(request.path_params["image"]))
        if thumbnail is None:
            raise RequestError("image-unknown", "the server does not hold this image", _SEND_AGAIN)
        return Response(thumbnail, media_type="image/jpeg")

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(self._service.render_metrics(), media_type=CONTENT_TYPE)

    async def _load_image(self, request: Request) -> tuple[LoadedImage, ServedPrediction]:
        """Read, decode, encode and predict the image in the body of a request."""
        service, options = self._service, self._options
        async with service.uploads:
            data = await read_image(request, options.upload_bytes, options.body_seconds)
            return await service.load_image(data, hashlib.sha256(data).hexdigest(), data)

    def _find_image(self, sha256: Any) -> LoadedImage | CorrectedImage:
        """The image that a client names by its hash."""
        image = self._service.find_image(_check_hash(sha256))
        if image is None:
            raise RequestError("image-unknown", "the server does not hold this image", _SEND_AGAIN)
        return image

    def _prediction(self, image: LoadedImage, prediction: ServedPrediction) -> dict[str, Any]:
        """The JSON value of a prediction."""
        return {
            "image": image.sha256,
            "width": image.width,
            "height": image.height,
            "revision": self._workspace.revision,
            "corrected": self._workspace.corrections.get(image.sha256),
            **prediction.to_dict(),
        }

    def _side(self, side: RefitSide) -> dict[str, Any]:
        """The JSON value of a model before or after a refit."""
        prediction = side.prediction.to_dict() if side.prediction else None
        return {"accuracy": asdict(side.accuracy) if side.accuracy else None, "answer": prediction}

    def _state(self) -> dict[str, Any]:
        """The JSON value of the state."""
        options = self._options
        limits = {"upload_bytes": options.upload_bytes, "pixels": options.pixels}
        tray = len(self._service.unlabelled_images())
        return {**self._workspace.state().to_dict(), "tray": tray, "limits": limits}


async def read_image(request: Request, limit: int, seconds: float) -> bytes:
    """Read the image file in the body of a request.

    Raises:
        RequestError: If the content type is that of something else, or the body is empty, too large or too slow.
    """
    kind = request.headers.get("content-type", "").lower()
    if kind and not kind.startswith(_IMAGE_TYPES):
        raise RequestError(
            "content-type", f"an image is expected in the body, not {kind.partition(';')[0]}",
            "send the file itself with Content-Type: application/octet-stream", close=True,
        )  # fmt: skip
    data = await read_body(request, limit, seconds)
    if not data:
        raise RequestError("body-empty", "the body is empty", "send an image file")
    return data


async def read_json(request: Request, seconds: float) -> dict[str, Any]:
    """Read the JSON object in the body of a request; an empty body is an empty object.

    Raises:
        RequestError: If it is something else, too large or too slow.
    """
    data = await read_body(request, JSON_BYTES, seconds)
    if not data:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError("not-json", "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise RequestError("not-json", "a JSON object is expected")
    return value


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Read the body of a request.

    Raises:
        RequestError: If it has more than `limit` bytes, or does not arrive within `seconds`.
    """
    stated = request.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated) > limit:
        raise _too_large(limit)
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise RequestError("body-slow", f"the body did not arrive within {seconds:g} s", close=True) from None
    except ClientDisconnect:
        raise RequestError("body-incomplete", "the connection ended before the body did", close=True) from None
    return b"".join(chunks)


def _too_large(limit: int) -> RequestError:
    size = f"{limit / 1e6:g} MB" if limit >= 10**5 else f"{limit:,} bytes"
    return RequestError("body-large", f"the body has more than {size}", close=True)


def _check_hash(value: Any) -> str:
    """Return the hash of an image as a client wrote it; raises if it is none."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise RequestError("invalid-hash", "image: 64 hexadecimal digits are expected, as /api/predict gives them")
    return value
