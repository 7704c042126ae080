"""The JSON API: predict, correct, refit, undo, the tray, and the state of the model."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dca.core.errors import UserError
from dca.serve.bodies import BodyReader
from dca.serve.errors import RequestError
from dca.serve.metrics import CONTENT_TYPE
from dca.serve.service import RefitSide, Service
from dca.serve.workspace import CorrectedImage, LoadedImage, ServedPrediction

_HASH = re.compile("[0-9a-f]{64}")
_SEND_AGAIN = "send it to /api/predict again"
Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The endpoints over one service."""

    def __init__(self, service: Service) -> None:
        self._service, self._workspace, self._options = service, service.workspace, service.options
        self._bodies = BodyReader(service.options)

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
        body = await self._bodies.read_json(request)
        label = self._workspace.resolve_label(body.get("label"))
        correction = await self._workspace.correct(self._find_image(body.get("image")), label)
        saved = correction.path.relative_to(self._workspace.folder).as_posix()
        return JSONResponse({"image": correction.sha256, "label": label, "saved": saved, "state": self._state()})

    async def refit(self, request: Request) -> Response:
        """Fit the model with all corrections; returns what changed, also for an image that the client names."""
        body = await self._bodies.read_json(request)
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
        body = await self._bodies.read_json(request)
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
        async with self._bodies.read_image(request) as data, self._service.uploads:
            return await self._service.load_image(data, hashlib.sha256(data).hexdigest(), data)

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
        limits = {
            "upload_bytes": options.upload_bytes,
            "pixels": options.pixels,
            "undo_steps": options.undo_steps,
        }
        tray = len(self._service.unlabelled_images())
        return {**self._workspace.state().to_dict(), "tray": tray, "limits": limits}


def _check_hash(value: Any) -> str:
    """Return the hash of an image as a client wrote it; raises if it is none."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise RequestError("invalid-hash", "image: 64 hexadecimal digits are expected, as /api/predict gives them")
    return value
