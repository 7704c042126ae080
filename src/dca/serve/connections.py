"""A lifetime for every connection: the limits that uvicorn lacks.

A connection waits for its client, or works for it. It waits for a limited time; and when there are too many, in all or
of one address, the one that has waited longest for its client ends for the new one, those first whose requests were
refused. So nobody shuts others out by holding connections, and work that has begun is finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dca.serve.options import ServeOptions

# Key in the scope of a request that was not refused.
ADMITTED = "dca.admitted"


class Phase(Enum):
    """What a connection is doing."""

    HEADER = auto()  # a request header is awaited or incomplete
    BODY = auto()  # a request body is being received, within the limits of `bodies.py`
    WORKING = auto()  # a request has been received and is being answered
    WRITING = auto()  # the client does not read its response
    IDLE = auto()  # answered; open for another request
    UNREAD = auto()  # answered, but the client has not sent the rest of its request
    CLOSING = auto()  # answered for the last time; the client is still sending, or has not read its response


def create_protocol(options: ServeOptions) -> type[asyncio.Protocol]:
    """Create uvicorn's protocol class with limits on the number of connections and on the time of each phase."""
    seconds = {
        Phase.CLOSING: options.response_seconds,
        Phase.UNREAD: options.linger_seconds,
        Phase.WRITING: options.response_seconds,
        Phase.HEADER: options.header_seconds,
        Phase.IDLE: options.keep_alive_seconds,
    }
    connections: set[LimitedProtocol] = set()

    class LimitedProtocol(H11Protocol):
        """A connection that ends when one of its phases takes too long, or when others need its place."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.phase, self.since = Phase.HEADER, self.loop.time()
            self._timer: asyncio.TimerHandle | None = None
            self._closing = False

        @property
        def address(self) -> str | None:
            """Address of the client."""
            return self.client[0] if self.client else None

        @property
        def admitted(self) -> bool:
            """Whether its last request was not refused."""
            return self.scope is not None and ADMITTED in self.scope

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
            self._transport = transport
            self._wrapped = _TransportWithClose(transport, self._close)
            super().connection_made(self._wrapped)  # type: ignore[arg-type]
            same = [other for other in connections if other.address == self.address]
            if _make_room(same, options.client_connections) and _make_room(connections, options.connections):
                connections.add(self)
                self._start_timer(options.header_seconds)
            else:
                transport.abort()

        def data_received(self, data: bytes) -> None:
            if not self._closing:  # what still arrives is read, so that the client can read its response, and dropped
                super().data_received(data)
                self._update_phase()

        def send_400_response(self, msg: str) -> None:
            """Answer bytes that are no HTTP, unless a response is on its way already.

            A request whose body turns out to be such bytes has its one response here: what works for it is told that
            its client is gone.
            """
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.close()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._update_phase()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._update_phase()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._update_phase()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(self)
            self._closing, self.phase = True, Phase.CLOSING
            super().connection_lost(exc)
            self._stop_timer()
            # It refers to itself through these. Left to the garbage collector, which rarely looks at all objects,
            # hundreds of ended connections would stay in memory with what they have received.
            self._wrapped.release()
            self._unset_keepalive_if_required()  # uvicorn leaves it where the client has reset the connection
            self.cycle = None  # type: ignore[assignment] # as before the first request

        def end(self) -> None:
            """End at once."""
            connections.discard(self)
            self._transport.abort()

        def _close(self) -> None:
            """End once the response is written, and the client has had time to read it.

            A connection that is closed while its client is sending is reset, and the client may lose the response.
            """
            if self._closing:
                return
            sending = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
            self._closing = True
            self._update_phase()
            if sending and self._transport.can_write_eof():
                self.flow.resume_reading()
                self._transport.write_eof()
                self._start_timer(options.linger_seconds)
            else:
                self._transport.close()

        def _find_phase(self) -> Phase:
            if self._closing:
                return Phase.CLOSING
            if self.flow.write_paused:
                return Phase.WRITING
            if self.cycle is not None and not self.cycle.response_complete:
                return Phase.BODY if self.conn.their_state is h11.SEND_BODY else Phase.WORKING
            if self.conn.their_state is not h11.IDLE:
                return Phase.UNREAD
            return Phase.HEADER if self.cycle is None or self.conn.trailing_data[0] else Phase.IDLE

        def _update_phase(self) -> None:
            """Start the time of a phase when it begins."""
            phase = self._find_phase()
            if phase is not self.phase:
                self.phase, self.since = phase, self.loop.time()
                self._stop_timer()
                if phase in seconds:
                    self._start_timer(seconds[phase])

        def _start_timer(self, after: float) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(after, self._transport.abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _make_room(group: Iterable[LimitedProtocol], most: int) -> bool:
        """Whether there is a place for one more connection, if need be that of another one."""
        if len(others := list(group)) < most:
            return True
        waiting = [other for other in others if other.phase is not Phase.WORKING]
        if not waiting:
            return False
        min(waiting, key=lambda other: (other.admitted, other.since)).end()
        return True

    return LimitedProtocol


class _TransportWithClose:
    """A transport with another way to close it."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport, self._close, self._closed = transport, close, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._closed = True
        self._close()

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def release(self) -> None:
        """Forget how to close: the connection has ended."""
        self._close = _do_nothing


def _do_nothing() -> None:
    pass
