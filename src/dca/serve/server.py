"""The application, and the process that serves it."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dca.core.actions import choose_address
from dca.core.errors import UserError
from dca.core.files import exclusive_lock
from dca.model.classifier import Classifier
from dca.serve.api import Api
from dca.serve.errors import RequestError
from dca.serve.guard import Guard, error_response
from dca.serve.options import ServeOptions
from dca.serve.protocol import limited_protocol
from dca.serve.service import Service

log = logging.getLogger(__name__)
# Path of each static file, its name in the package, and its type.
STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/openapi.json": ("openapi.json", "application/json"),
}
KEEP_ALIVE, LARGEST_HEADER, SHUTDOWN_SECONDS = 15, 16 * 1024, 3


def make_app(service: Service) -> ASGIApp:
    """The application of a service: page, API and everything that protects them."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(
        routes=[*Api(service).routes(), *(_static(path) for path in STATIC)],
        exception_handlers={RequestError: _refused, HTTPException: _not_found, Exception: _failed},
        lifespan=lifespan,
    )
    return Guard(app, service.options, service.metrics.requests)


def _static(path: str) -> Route:
    """A route to a file of this package, read once."""
    name, kind = STATIC[path]
    content = files("dca.serve").joinpath("static", name).read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(path, endpoint, methods=["GET"])


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(RequestError(error.status_code, error.detail, "see /openapi.json", close=True))


async def _failed(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(RequestError(500, "this is an error of the server; its log says more"))


def with_token(options: ServeOptions) -> ServeOptions:
    """The options with a random token, if other machines can connect and none was given."""
    return options if options.local or options.token else replace(options, token=secrets.token_urlsafe(24))


def bound_socket(options: ServeOptions) -> socket.socket:
    """A socket that listens on the host and port of the options.

    Raises:
        UserError: If it cannot.
    """
    found = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        if found is not None:
            found.close()
        problem = f"cannot listen on {options.host} port {options.port}: {error.strerror or error}"
        raise UserError(problem, hint=choose_address()) from None
    return found


def address_of(listening: socket.socket, options: ServeOptions) -> str:
    """The address of the page; a token is in its last part, which browsers do not send."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    token = f"#token={options.token}" if options.token else ""
    return f"http://{host}:{listening.getsockname()[1]}/{token}"


def serve(
    folder: Path,
    model: Classifier,
    options: ServeOptions,
    *,
    tray: Path | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a model until the process is interrupted.

    Args:
        folder: The model folder, which no other process may change meanwhile.
        model: Its model.
        options: How it is served.
        tray: A folder of unlabelled images to put into the tray.
        ready: Called with the address of the page when the server listens.

    Raises:
        UserError: If the address cannot be used, or another process is changing the model folder.
    """
    options = with_token(options)
    with exclusive_lock(folder), bound_socket(options) as listening:
        service = Service(folder, model, options, tray)
        make_server(service, lambda: ready(address_of(listening, options))).run(sockets=[listening])


def make_server(service: Service, ready: Callable[[], None]) -> uvicorn.Server:
    """The server of a service. ready: called when it listens."""
    options = service.options
    config = uvicorn.Config(
        make_app(service),
        http=limited_protocol(options),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=LARGEST_HEADER,
    )
    return _Server(config, ready)


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()
