"""Options of a server: where it listens, who may connect, and limits that hold for every client."""

from __future__ import annotations

import ipaddress
import os
import secrets
from dataclasses import dataclass, field

from dca.core.errors import UserError
from dca.core.hints import omit

MEGABYTE = 10**6
# The environment variable that may hold the token.
TOKEN = "DCA_TOKEN"


def create_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How a model is served.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes any free one.
        token: Token that clients must send, by default a random one; "" for none, where only this machine can connect.
        names: Further host names under which clients may address the server, such as that of a proxy.
        reject: Images whose p-value is at most this are "none of these"; None lets the model decide
            (`choose_rate`).
        upload_bytes: Largest image file.
        pixels: Most pixels of an image.
        batch: Most images per batch of the encoder; 1 switches batching off.
        decoders: Processes that decode images.
        decode_seconds: Longest time for decoding one image.
        header_seconds: Longest time for receiving a request header.
        body_seconds: Longest time for receiving a request body.
        body_rate: Least bytes per second of a body on average, after `body_grace` seconds.
        body_grace: Seconds after which `body_rate` counts.
        body_bytes: Memory for the bodies of all requests; the one that has been on its way longest gives way.
        response_seconds: Longest time for a client to read a response.
        keep_alive_seconds: How long a connection stays open between two requests.
        linger_seconds: How long a client that was refused may go on sending; it could not read its response otherwise.
        connections: Most open connections; of those that wait for their client, the oldest gives way to a new one.
        client_connections: The same for one client address.
        uploads: Most images that are decoded and encoded at a time; further ones wait.
        recent_bytes: Memory for images that were predicted and may be corrected.
        tray_bytes: Memory for the unlabelled images of the tray.
        tray_images: Most images in the tray.
        corrections: Most corrected images.
        correction_bytes: Most bytes of their files.
        undo_steps: How many labels and refits can be undone.
        project_photos: Most photos of a project.
        project_bytes: Most bytes of their files.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str = field(default_factory=create_token, repr=False)
    names: tuple[str, ...] = ()
    reject: float | None = None
    upload_bytes: int = 20 * MEGABYTE
    pixels: int = 50 * MEGABYTE
    batch: int = 32
    decoders: int = field(default_factory=lambda: min(os.cpu_count() or 1, 4))
    decode_seconds: float = 10.0
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    body_rate: int = 50_000
    body_grace: float = 5.0
    body_bytes: int = 256 * MEGABYTE
    response_seconds: float = 20.0
    keep_alive_seconds: float = 15.0
    linger_seconds: float = 2.0
    connections: int = 256
    client_connections: int = 128
    uploads: int = 32
    recent_bytes: int = 64 * MEGABYTE
    tray_bytes: int = 256 * MEGABYTE
    tray_images: int = 1000
    corrections: int = 5000
    correction_bytes: int = 2000 * MEGABYTE
    undo_steps: int = 20
    project_photos: int = 20_000
    project_bytes: int = 20_000 * MEGABYTE

    def __post_init__(self) -> None:
        if not self.token and not self.local:
            problem = f"other machines can connect to {self.host}, so a token is needed"
            raise UserError(problem, hint=omit("no_token"))

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def decode_memory(self) -> int:
        """Bytes that a decoding process may use beyond those at its start: a few copies of the largest image."""
        return 2**28 + 16 * self.pixels


def is_loopback(host: str) -> bool:
    """Whether an address or host name means this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is given by its IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
