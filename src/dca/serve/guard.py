"""What every request must pass: host, origin, token and header, and the headers of every answer.

A page of another site can make a browser send requests to this server, also under a host name that its owner points to
this machine (DNS rebinding). Such requests are told by their Host, Origin and Sec-Fetch-Site headers. Requests that
change something also need the header `X-DCA`, which a browser adds for another site only after asking this server,
and it never agrees.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dca.serve.errors import RequestError
from dca.serve.metrics import Counter
from dca.serve.options import ServeOptions, is_address, is_loopback

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
