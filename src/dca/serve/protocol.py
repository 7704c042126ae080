"""Connections with limits: not too many, and none that never sends a request."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dca.serve.options import ServeOptions


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
