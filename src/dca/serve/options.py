"""Options of a server: where it listens, who may connect, and limits that hold for every client."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field

MEGABYTE = 10**6
# The environment variable that may hold the token.
TOKEN = "DCA_TOKEN"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How a model is served.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes any free one.
        token: Token that clients must send; "" for none.
        names: Further host names under which clients may address the server, such as that of a proxy.
        reject: Images whose p-value is at most this are "none of these"; None lets the model decide
            (`choose_rate`).
        upload_bytes: Largest image file.
        pixels: Most pixels of an image.
        batch: Most images per batch of the encoder; 1 switches batching off.
        decoders: Processes that decode images.
        decode_seconds: Longest time for decoding one image.
        body_seconds: Longest time for receiving one request.
        header_seconds: Longest time from a connection to a complete request header.
        connections: Most open connections; further ones are dropped.
        uploads: Most images that are received and decoded at a time; further ones wait.
        recent_bytes: Memory for images that were predicted and may be corrected.
        tray_bytes: Memory for the unlabelled images of the tray.
        tray_images: Most images in the tray.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str = ""
    names: tuple[str, ...] = ()
    reject: float | None = None
    upload_bytes: int = 20 * MEGABYTE
    pixels: int = 50 * MEGABYTE
    batch: int = 32
    decoders: int = field(default_factory=lambda: min(os.cpu_count() or 1, 4))
    decode_seconds: float = 10.0
    body_seconds: float = 20.0
    header_seconds: float = 10.0
    connections: int = 256
    uploads: int = 32
    recent_bytes: int = 64 * MEGABYTE
    tray_bytes: int = 256 * MEGABYTE
    tray_images: int = 1000

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
