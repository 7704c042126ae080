"""Connections with limits: not too many, and none that never sends a request.

What every request must pass: host, origin, token and header, and the headers of every answer.

A page of another site can make a browser send requests to this server, also under a host name that its owner points to
this machine (DNS rebinding). Such requests are told by their Host, Origin and Sec-Fetch-Site headers. Requests that
change something also need the header `X-DCA`, which a browser adds for another site only after asking this server,
and it never agrees.

The application, and the process that serves it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dca.core.errors import UserError
from dca.core.files import exclusive_lock
from dca.core.hints import choose_address
from dca.model.classifier import Classifier
from dca.serve.api import Api
from dca.serve.errors import RequestError
from dca.serve.metrics import Counter
from dca.serve.options import ServeOptions, is_address, is_loopback
from dca.serve.service import Service


def limited_protocol(options: ServeOptions) -> type[asyncio.Protocol]:
    """Uvicorn's protocol with a limit on open connections and on the time until a request header is complete."""

    class LimitedProtocol(H11Protocol):
        """Drops connections over the limit at once, and those that send no complete request header in time."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
            super().connection_made(transport)
            if len(self.connections) > options.connections:
                transport.abort()
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Run the timer exactly while a request header is awaited or incomplete."""
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(options.header_seconds, self.transport.abort)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return LimitedProtocol


HEADER = "X-DCA"
# Answered without a token: they hold nothing of the model.
OPEN = frozenset({"/", "/page.js", "/page.css", "/icon.svg", "/openapi.json"})
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
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets only requests through that may be answered.

    Args:
        app: The application behind it.
        options: Host, token and host names.
        refused: Counts the requests that are not let through.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions, refused: Counter) -> None:
        self._app, self._options, self._refused = app, options, refused

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
            self._refused.add(route="refused", code=str(error.status))
            await error_response(error)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, request: Request) -> None:
        """Raise a RequestError unless the request may be answered."""
        headers = request.headers
        if not self._known_host(headers.get("host", "")):
            raise RequestError(
                421, "unknown host name", "use the address that `dca serve` printed, or start it with --name HOST"
            )
        if not _same_site(headers):
            raise RequestError(403, "requests from other sites are not answered")
        if self._options.token and request.url.path not in OPEN and not self._has_token(headers):
            raise RequestError(401, "a token is needed", "send the header Authorization: Bearer TOKEN")
        if request.method not in ("GET", "HEAD") and HEADER not in headers:
            raise RequestError(403, f"the header {HEADER} is missing", f"send {HEADER}: 1")

    def _known_host(self, host: str) -> bool:
        """Whether a Host header names this server: an address, which no other site can own, or a name that is known."""
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
        known = hmac.compare_digest(token.strip().encode(), self._options.token.encode())
        return scheme.lower() == "bearer" and known


def _same_site(headers: Headers) -> bool:
    """Whether a request comes from the server's own page, or from no page at all."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def error_response(error: RequestError) -> JSONResponse:
    """The answer to a request that cannot be done."""
    headers = {"Connection": "close"} if error.close else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.to_dict(), error.status, headers=headers)


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
