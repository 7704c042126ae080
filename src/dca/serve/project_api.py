"""The JSON API of a workspace and its projects: photos, classes, findings, and files to take away."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from dca.projects.project import Photo
from dca.serve.api import Api, Table, check_hash, describe_state, find_image, make_routes
from dca.serve.bodies import BodyReader
from dca.serve.downloads import DOWNLOADS, make_download
from dca.serve.errors import RequestError
from dca.serve.metrics import ServerMetrics
from dca.serve.projects_service import ProjectService, ProjectsService
from dca.serve.service import Service

# Most photos of one answer.
MOST_PHOTOS = 500
# Path of a project in the API.
PREFIX = "/api/projects/{project}"


class ProjectApi:
    """The endpoints of a workspace, and those of each of its projects.

    Args:
        projects: The workspace.
        bodies: Receives bodies.
        metrics: Counters of requests.
    """

    def __init__(self, projects: ProjectsService, bodies: BodyReader, metrics: ServerMetrics) -> None:
        self._projects, self._bodies, self._metrics = projects, bodies, metrics

    def routes(self) -> list[Route]:
        """All routes."""
        own: Table[Service] = [
            ("GET", "/photos", self.photos),
            ("POST", "/photos", self.add_photo),
            ("POST", "/photos/move", self.move_photos),
            ("POST", "/photos/delete", self.delete_photos),
            ("POST", "/photos/confirm", self.confirm_photo),
            ("GET", "/photos/{photo}", self.photo),
            ("POST", "/classes", self.create_class),
            ("POST", "/classes/rename", self.rename_class),
            ("POST", "/classes/merge", self.merge_class),
            ("POST", "/classes/delete", self.delete_class),
            ("POST", "/redo", self.redo),
            ("GET", "/findings", self.findings),
            ("GET", "/similar/{image}", self.similar),
            ("GET", "/downloads/{kind}", self.download),
        ]
        return [
            *make_routes("/api", [("POST", "/projects", self.create_project)], self._find_none, self._metrics),
            *Api(self.find, self._bodies, self._metrics).routes(PREFIX),
            *make_routes(PREFIX, own, self.find, self._metrics),
        ]

    async def find(self, request: Request) -> Service:
        """The project that a request is about."""
        return await self._projects.open(request.path_params["project"])

    async def _find_none(self, request: Request) -> None:
        """Nothing: the endpoint is about the workspace."""

    async def create_project(self, request: Request, _: None) -> Response:
        """Create an empty project."""
        name = await self._projects.create(_text(await self._bodies.read_json(request), "name"))
        return JSONResponse({"project": name}, 201)

    async def photos(self, request: Request, service: Service) -> Response:
        """Photos of a class, or those that cannot be read."""
        project, query = _project(service), request.query_params
        if query.get("unreadable"):
            rows: Sequence[Photo] = project.unreadable
        else:
            rows = project.list_photos(query.get("class", ""))
        start, count = _number(query.get("start", "0")), min(_number(query.get("count", "60")), MOST_PHOTOS)
        shown = [_describe_photo(service, photo) for photo in rows[start : start + count]]
        return JSONResponse({"total": len(rows), "photos": shown})

    async def add_photo(self, request: Request, service: Service) -> Response:
        """Add the image in the body to a class."""
        project, query = _project(service), request.query_params
        label = project.resolve_label(query.get("class", ""))
        async with self._bodies.read_image(request) as data, service.uploads:
            sha256 = hashlib.sha256(data).hexdigest()
            image = service.images.get(sha256) or await service.intake.decode(data)
            drop, name = query.get("drop", "")[:64], query.get("name", "")[:255]
            photo = await project.add(image, sha256, data, label, drop, name)
        found = None if photo is None else _describe_photo(service, photo)
        return JSONResponse({"label": label, "photo": found, "revision": project.revision}, 201)

    async def move_photos(self, request: Request, service: Service) -> Response:
        """Move photos to another class."""
        body, project = await self._bodies.read_json(request), _project(service)
        keys, label = _keys(body), project.resolve_label(body.get("to"))
        await project.change(lambda own: own.move_photos(own.find(keys), label))
        return JSONResponse(describe_state(service))

    async def delete_photos(self, request: Request, service: Service) -> Response:
        """Delete photos."""
        keys = _keys(await self._bodies.read_json(request))
        await _project(service).change(lambda own: own.delete_photos(own.find(keys)))
        return JSONResponse(describe_state(service))

    async def confirm_photo(self, request: Request, service: Service) -> Response:
        """Note that the label of a photo is right."""
        keys = _keys(await self._bodies.read_json(request))
        await _project(service).change(lambda own: [own.confirm(photo) for photo in own.find(keys)])
        return JSONResponse(describe_state(service))

    async def photo(self, request: Request, service: Service) -> Response:
        """A JPEG of a photo; with large=1 one to look at."""
        project = _project(service)
        (photo,) = project.project.find([request.path_params["photo"]])
        small = None if request.query_params.get("large") else project.find_thumbnail(photo.sha256)
        return Response(small or await project.read_large(photo), media_type="image/jpeg")

    async def create_class(self, request: Request, service: Service) -> Response:
        """Create an empty class."""
        label = _text(await self._bodies.read_json(request), "label")
        await _project(service).change(lambda own: own.create_class(label))
        return JSONResponse(describe_state(service), 201)

    async def rename_class(self, request: Request, service: Service) -> Response:
        """Rename a class."""
        body = await self._bodies.read_json(request)
        label, new = _text(body, "label"), _text(body, "to")
        await _project(service).change(lambda own: own.rename_class(label, new))
        return JSONResponse(describe_state(service))

    async def merge_class(self, request: Request, service: Service) -> Response:
        """Move all photos of a class into another one, and delete it."""
        body = await self._bodies.read_json(request)
        label, into = _text(body, "label"), _text(body, "to")
        await _project(service).change(lambda own: own.merge_class(label, into))
        return JSONResponse(describe_state(service))

    async def delete_class(self, request: Request, service: Service) -> Response:
        """Delete a class with its photos."""
        label = _text(await self._bodies.read_json(request), "label")
        await _project(service).change(lambda own: own.delete_class(label))
        return JSONResponse(describe_state(service))

    async def redo(self, request: Request, service: Service) -> Response:
        """Make the change again that was undone last."""
        redone = await _project(service).redo()
        return JSONResponse({"redone": redone, "state": describe_state(service)})

    async def findings(self, request: Request, service: Service) -> Response:
        """What the last fit says of the photos."""
        project = _project(service)
        found = project.findings
        return JSONResponse(
            {
                "revision": project.revision,
                "doubtful": [
                    {
                        "photo": _describe_photo(service, row.photo),
                        "suggested": row.suggested,
                        "probability": row.probability,
                        "own": row.own,
                    }
                    for row in project.doubtful()
                ],
                "copies": [[_describe_photo(service, photo) for photo in group] for group in project.copies()],
                "confused": [{"labels": list(pair.labels), "images": pair.images} for pair in found.confused],
                "needed": [asdict(row) for row in found.needed],
                "more": None if found.more is None else asdict(found.more),
                "unmeasured": list(found.unmeasured),
                "notes": list(found.notes),
            }
        )

    async def similar(self, request: Request, service: Service) -> Response:
        """The photos that look most like a photo of the project, or like an image that was predicted."""
        project, wanted = _project(service), request.path_params["image"]
        if len(wanted) == 64:
            features, own = find_image(service, check_hash(wanted)).features, ""
        else:
            (photo,) = project.project.find([wanted])
            features, own = project.features_of(photo), photo.sha256
        rows = await asyncio.to_thread(project.find_similar, features, own)
        similar = [{"photo": _describe_photo(service, photo), "similarity": cosine} for photo, cosine in rows]
        return JSONResponse({"photos": similar})

    async def download(self, request: Request, service: Service) -> Response:
        """A file to take away: the model, a program, a page, the report."""
        kind, current = request.path_params["kind"], service.labels.current
        if kind not in DOWNLOADS:
            raise RequestError("no-such-page", f"there is no download {kind}", f"one of {', '.join(DOWNLOADS)}")
        if current is None:
            raise RequestError("no-model", "there is no model yet", "add photos of two classes")
        project = _project(service)
        made = await make_download(kind, current.model, project.project.name, project.project.model_folder)
        return FileResponse(made.path, media_type=made.media_type, filename=made.name, background=made.cleanup)


def _project(service: Service) -> Any:
    """The open project of a service."""
    assert isinstance(service, ProjectService)
    return service.project


def _describe_photo(service: Service, photo: Photo) -> dict[str, Any]:
    """The JSON value of a photo."""
    project = _project(service)
    return {
        "photo": photo.key,
        "image": photo.sha256,
        "label": photo.label,
        "name": photo.name,
        "read": project.is_read(photo),
        "fault": project.why_unreadable(photo),
    }


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise RequestError("invalid-label", f"{name}: a text is expected")
    return value


def _keys(body: dict[str, Any]) -> list[str]:
    value = body.get("photos")
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value) or not value:
        raise RequestError("photo-unknown", "photos: a list of photos is expected, as /photos gives them")
    return value


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
