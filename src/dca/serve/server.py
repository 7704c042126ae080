"""The server: the process, the ASGI application, and the guard that checks every request.

A page of another site can make a browser send requests to this server, also under a host name that its owner points to
this machine (DNS rebinding). Such requests are recognised by their Host, Origin and Sec-Fetch-Site headers. Requests
that change something also need the header `X-DCA`: for another site a browser adds it only after a preflight request,
which this server never allows.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dca.core.errors import UserError
from dca.core.files import exclusive_lock
from dca.core.hints import choose_address
from dca.model.classifier import Classifier
from dca.serve.api import Api
from dca.serve.bodies import BodyReader
from dca.serve.connections import ADMITTED, create_protocol
from dca.serve.errors import RETRY_SECONDS, RequestError
from dca.serve.metrics import CONTENT_TYPE, Counter
from dca.serve.options import ServeOptions, is_address, is_loopback
from dca.serve.project_api import ProjectApi
from dca.serve.projects_service import ProjectsService
from dca.serve.service import ModelService, Served, Service
from dca.training.session import Session

log = logging.getLogger(__name__)
# Path of each static file -> (name in the package, content type).
SCRIPTS = ("page", "server", "elements", "predict", "project", "photos", "files", "camera", "checks", "downloads")
STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/openapi.json": ("openapi.json", "application/json"),
}
# Largest request header in bytes, and seconds for open requests at the end.
LARGEST_HEADER, SHUTDOWN_SECONDS = 16 * 1024, 3
# Header of requests that change something.
HEADER = "X-DCA"
TOKEN_HINT = "send the header Authorization: Bearer TOKEN, with the token of the address that `dca serve` printed"
# Paths that need no token: they tell nothing about the model.
OPEN = frozenset(STATIC)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def serve(
    folder: Path,
    model: Classifier,
    options: ServeOptions,
    *,
    tray: Path | None = None,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a model until the process is interrupted.

    Args:
        folder: The model folder, which no other process may change meanwhile.
        model: The model of the folder.
        options: How it is served.
        tray: A folder of unlabelled images to put into the tray.
        on_ready: Called with the address of the page when the server listens.

    Raises:
        UserError: If the address cannot be used, another process is changing the model folder, or its corrections or
            decoding processes are out of reach.
    """
    with exclusive_lock(folder):
        _run(ModelService(folder, model, options, tray), on_ready)


def serve_projects(
    workspace: Path,
    session: Session,
    backbone: str,
    options: ServeOptions,
    *,
    precision: str = "auto",
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the projects of a workspace until the process is interrupted.

    Args:
        workspace: The folder of the projects.
        session: Loads the backbone.
        backbone: Its name.
        options: How they are served.
        precision: "auto", "fp32" or "bf16".
        on_ready: Called with the address of the page when the server listens.

    Raises:
        UserError: If the address cannot be used, or workspace, backbone or decoding processes are out of reach.
    """
    _run(ProjectsService(workspace, session, backbone, options, precision), on_ready)


def _run(service: Served, on_ready: Callable[[str], None]) -> None:
    """Run a server until the process is interrupted."""
    options = service.options
    with open_socket(options) as listening:
        create_server(service, lambda: on_ready(page_address(listening, options))).run(sockets=[listening])
    if service.failure is not None:
        raise service.failure


def open_socket(options: ServeOptions) -> socket.socket:
    """Open a socket on the host and port of the options.

    Raises:
        UserError: If it cannot.
    """
    opened = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        if opened is not None:
            opened.close()
        problem = f"cannot listen on {options.host} port {options.port}: {error.strerror or error}"
        raise UserError(problem, hint=choose_address()) from None
    return opened


def page_address(listening: socket.socket, options: ServeOptions) -> str:
    """The address of the page; the token is in its fragment, which browsers do not send."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    token = f"#token={options.token}" if options.token else ""
    return f"http://{host}:{listening.getsockname()[1]}/{token}"


def create_server(service: Served, on_ready: Callable[[], None]) -> uvicorn.Server:
    """Create the server of a service. on_ready: called when it listens."""
    options = service.options
    config = uvicorn.Config(
        create_app(service),
        http=create_protocol(options),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(options.keep_alive_seconds),
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=LARGEST_HEADER,
    )
    return _Server(config, service, on_ready)


class _Server(uvicorn.Server):
    """uvicorn's server with a callback when it listens."""

    def __init__(self, config: uvicorn.Config, service: Served, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_ready = service, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._service.failure is not None:
            self.should_exit = True
        elif self.started:
            self._on_ready()


def create_app(service: Served) -> ASGIApp:
    """Create the ASGI application of a service: page, API and guard."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            await service.start()
        except UserError as error:  # raised by `serve`: uvicorn would print a traceback, and end the process
            service.failure = error
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(
        routes=[*api_routes(service), *map(_static_route, STATIC)],
        exception_handlers={
            RequestError: _handle_request_error,
            HTTPException: _handle_http_error,
            Exception: _handle_bug,
        },
        lifespan=lifespan,
    )
    return Guard(app, service.options, service.metrics.requests)


def api_routes(service: Served) -> list[Route]:
    """The routes of the API: those of a model, or of a workspace and its projects."""
    bodies, metrics = BodyReader(service.options), service.metrics

    async def workspace(request: Request) -> Response:
        """What this server has: one model, or projects."""
        if not isinstance(service, ProjectsService):
            return JSONResponse({"projects": None, "folder": ""})
        names = await asyncio.to_thread(service.list_names)
        return JSONResponse({"projects": names, "folder": str(service.workspace)})

    async def render(request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.render(service.gauges()), media_type=CONTENT_TYPE)

    if isinstance(service, ProjectsService):
        own = ProjectApi(service, bodies, metrics).routes()
    else:
        assert isinstance(service, ModelService)
        own = Api(_always(service), bodies, metrics).routes()
    return [
        *own,
        Route("/api/workspace", workspace, methods=["GET"]),
        Route("/metrics", render, methods=["GET"]),
    ]


def _always(service: Service) -> Callable[[Request], Awaitable[Service]]:
    """Finds the same model for every request."""

    async def find(request: Request) -> Service:
        return service

    return find


def _static_route(path: str) -> Route:
    """A route to a file of this package, read once."""
    name, kind = STATIC[path]
    content = files("dca.serve").joinpath("static", name).read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(path, endpoint, methods=["GET"])


async def _handle_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "no-such-page" if error.status_code == 404 else "method-not-allowed"
    return error_response(RequestError(code, error.detail, "see /openapi.json", close=True))


async def _handle_bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(RequestError("bug", "this is an error of the server; its log says more"))


class Guard:
    """ASGI middleware that refuses requests by host, origin, token and header, and adds the security headers.

    Args:
        app: The application behind it.
        options: Host, token and host names.
        requests: Counts the requests that are refused.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions, requests: Counter) -> None:
        self._app, self._options, self._requests = app, options, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check(Request(scope))
        except RequestError as error:
            self._requests.add(route="refused", code=str(error.status))
            await error_response(error)(scope, receive, send_guarded)
            return
        scope[ADMITTED] = True
        await self._app(scope, receive, send_guarded)

    def _check(self, request: Request) -> None:
        """Raise a RequestError unless the request may be answered."""
        headers = request.headers
        if not self._known_host(headers.get("host", "")):
            raise RequestError(
                "unknown-host",
                "unknown host name",
                "use the address that `dca serve` printed, or start it with --name HOST",
            )
        if not _same_site(headers):
            raise RequestError("other-site", "requests from other sites are not answered")
        if self._options.token and request.url.path not in OPEN and not self._has_token(headers):
            raise RequestError("token-needed", "a token is needed", TOKEN_HINT)
        if request.method not in ("GET", "HEAD") and HEADER not in headers:
            raise RequestError("header-missing", f"the header {HEADER} is missing", f"send {HEADER}: 1")

    def _known_host(self, host: str) -> bool:
        """Whether a Host header names this server: an IP address, which no other site can own, or a known name."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in {known.lower() for known in self._options.names} or is_loopback(name):
            return True
        if self._options.local:
            return False
        return is_address(name) or name == self._options.host.lower()

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        equal = hmac.compare_digest(token.strip().encode(), self._options.token.encode("utf-8", "surrogateescape"))
        return scheme.lower() == "bearer" and equal


def _same_site(headers: Headers) -> bool:
    """Whether a request comes from the server's own page, or from no page at all."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def error_response(error: RequestError) -> JSONResponse:
    """The response to a request that is refused."""
    headers = {"Connection": "close"} if error.close else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 503:
        headers["Retry-After"] = str(RETRY_SECONDS)
    return JSONResponse(error.to_dict(), error.status, headers=headers)
