"""The JSON API of a model: predict, correct, refit, undo, the tray, and its state."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dca.core.errors import UserError
from dca.serve.bodies import BodyReader
from dca.serve.errors import RequestError
from dca.serve.metrics import ServerMetrics
from dca.serve.predictions import ServedPrediction
from dca.serve.service import RefitSide, Service
from dca.serve.workspace import CorrectedImage, LoadedImage

_HASH = re.compile("[0-9a-f]{64}")
_SEND_AGAIN = "send it to /api/predict again"
S = TypeVar("S")
Endpoint = Callable[[Request, S], Awaitable[Response]]
# From a request to what it is about.
Find = Callable[[Request], Awaitable[S]]
# Method, path and endpoint of each route.
Table = Sequence[tuple[str, str, Endpoint[S]]]


def make_routes(prefix: str, table: Table[S], find: Find[S], metrics: ServerMetrics) -> list[Route]:
    """Routes of endpoints, which count requests and their time, and turn user errors into responses."""
    return [Route(prefix + path, _wrap(prefix + path, end, find, metrics), methods=[verb]) for verb, path, end in table]


def _wrap(
    path: str, endpoint: Endpoint[S], find: Find[S], metrics: ServerMetrics
) -> Callable[[Request], Awaitable[Response]]:
    async def measured(request: Request) -> Response:
        start, code = time.monotonic(), 500
        try:
            response = await endpoint(request, await find(request))
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


class Api:
    """The endpoints that a model has, alone or in a project.

    Args:
        find: From a request to the model.
        bodies: Receives bodies.
        metrics: Counters of requests.
    """

    def __init__(self, find: Find[Service], bodies: BodyReader, metrics: ServerMetrics) -> None:
        self._find, self._bodies, self._metrics = find, bodies, metrics

    def routes(self, prefix: str = "/api") -> list[Route]:
        """All routes below a path."""
        table: Table[Service] = [
            ("GET", "/model", self.model),
            ("POST", "/predict", self.predict),
            ("POST", "/correct", self.correct),
            ("POST", "/refit", self.refit),
            ("POST", "/undo", self.undo),
            ("GET", "/tray", self.tray),
            ("POST", "/tray", self.add_to_tray),
            ("DELETE", "/tray/{image}", self.remove_from_tray),
            ("GET", "/images/{image}", self.image),
        ]
        return make_routes(prefix, table, self._find, self._metrics)

    async def model(self, request: Request, service: Service) -> Response:
        """The model, its classes and corrections."""
        return JSONResponse(describe_state(service))

    async def predict(self, request: Request, service: Service) -> Response:
        """Predict the image in the body."""
        image, prediction = await load_image(request, service, self._bodies)
        service.images.keep_recent(image)
        return JSONResponse(describe_prediction(service, image, prediction))

    async def correct(self, request: Request, service: Service) -> Response:
        """Keep an image under the right label."""
        body = await self._bodies.read_json(request)
        label = service.labels.resolve_label(body.get("label"))
        image = find_image(service, body.get("image"))
        saved = await service.labels.keep_label(image, label)
        state = describe_state(service)
        return JSONResponse({"image": image.sha256, "label": label, "saved": saved, "state": state})

    async def refit(self, request: Request, service: Service) -> Response:
        """Fit the model with all corrections; returns what changed, also for an image that the client names."""
        body = await self._bodies.read_json(request)
        viewed = None if body.get("image") is None else find_image(service, body["image"])
        result = await service.refit(viewed)
        return JSONResponse(
            {
                "seconds": round(result.seconds, 3),
                "tray_changed": result.tray_changed,
                "state": describe_state(service),
                "before": _describe_side(result.before),
                "after": _describe_side(result.after),
            }
        )

    async def undo(self, request: Request, service: Service) -> Response:
        """Take back the last correction or refit."""
        body = await self._bodies.read_json(request)
        revision = body.get("revision")
        if revision is not None and type(revision) is not int:
            raise RequestError("invalid-revision", "revision: a whole number is expected")
        undone = await service.labels.undo(revision)
        return JSONResponse({"undone": undone, "state": describe_state(service)})

    async def tray(self, request: Request, service: Service) -> Response:
        """The unlabelled images, the most useful to label first."""
        rows = await asyncio.to_thread(service.rank_tray)
        images = [{**describe_prediction(service, row.image, row.prediction), "doubt": row.doubt} for row in rows]
        return JSONResponse({"revision": service.labels.revision, "images": images})

    async def add_to_tray(self, request: Request, service: Service) -> Response:
        """Put the image in the body into the tray."""
        image, prediction = await load_image(request, service, self._bodies)
        if image.sha256 not in service.labels.corrections:
            service.images.put_in_tray(image)
            service.labels.revision += 1
        return JSONResponse(describe_prediction(service, image, prediction), 201)

    async def remove_from_tray(self, request: Request, service: Service) -> Response:
        """Remove an image from the tray."""
        if not service.images.remove_from_tray(check_hash(request.path_params["image"])):
            raise RequestError("not-in-tray", "the tray does not hold this image")
        service.labels.revision += 1
        return JSONResponse(describe_state(service))

    async def image(self, request: Request, service: Service) -> Response:
        """A small JPEG of an image that is in memory, corrected or a training image."""
        thumbnail = service.find_thumbnail(check_hash(request.path_params["image"]))
        if thumbnail is None:
            raise RequestError("image-unknown", "the server does not hold this image", _SEND_AGAIN)
        return Response(thumbnail, media_type="image/jpeg")


async def load_image(request: Request, service: Service, bodies: BodyReader) -> tuple[LoadedImage, ServedPrediction]:
    """Read, decode, encode and predict the image in the body of a request."""
    async with bodies.read_image(request) as data, service.uploads:
        return await service.load_image(data, hashlib.sha256(data).hexdigest(), data)


def find_image(service: Service, sha256: Any) -> LoadedImage | CorrectedImage:
    """The image that a client names by its hash."""
    image = service.find_image(check_hash(sha256))
    if image is None:
        raise RequestError("image-unknown", "the server does not hold this image", _SEND_AGAIN)
    return image


def describe_prediction(service: Service, image: LoadedImage, prediction: ServedPrediction) -> dict[str, Any]:
    """The JSON value of a prediction."""
    return {
        "image": image.sha256,
        "width": image.width,
        "height": image.height,
        "revision": service.labels.revision,
        "corrected": service.labels.corrections.get(image.sha256),
        **prediction.to_dict(),
    }


def _describe_side(side: RefitSide) -> dict[str, Any]:
    """The JSON value of a model before or after a refit."""
    prediction = side.prediction.to_dict() if side.prediction else None
    return {"accuracy": asdict(side.accuracy) if side.accuracy else None, "answer": prediction}


def describe_state(service: Service) -> dict[str, Any]:
    """The JSON value of the state."""
    options = service.options
    limits = {
        "upload_bytes": options.upload_bytes,
        "pixels": options.pixels,
        "undo_steps": options.undo_steps,
    }
    tray = len(service.unlabelled_images())
    return {**service.labels.state().to_dict(), "tray": tray, "limits": limits}


def check_hash(value: Any) -> str:
    """Return the hash of an image as a client wrote it; raises if it is none."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise RequestError("invalid-hash", "image: 64 hexadecimal digits are expected, as /api/predict gives them")
    return value
