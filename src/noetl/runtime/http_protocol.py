"""The HTTP protocol of a server, with limits that hold before a request is read whole.

The parser has no limit for the head of a request, and a client may send half a request and nothing
more. Without limits, both would cost the server memory and connections of callers it does not know.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from noetl.server.workers.presence import Presence

MAX_HEAD_BYTES = 64 * 1024  # bytes of the request line and the headers
MAX_REQUEST_S = 60.0  # seconds from the first byte of a request to its last
HEAD_TOO_LARGE = f"The request line and the headers may have at most {MAX_HEAD_BYTES} bytes."


class HeadTooLarge(Exception):
    """Ends the parsing of a request."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses large heads, and closes connections on which a request does not become complete."""

    _head_bytes = 0  # received before the end of the headers
    _is_in_head = True
    _is_complete = False  # the request that was received last
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response(HEAD_TOO_LARGE)
        if not self._is_complete and self._deadline is None:
            self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():
            return
        is_large = self._is_in_head and self._head_bytes > MAX_HEAD_BYTES
        super().send_400_response(HEAD_TOO_LARGE if is_large else msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    # -- the parser --

    def on_message_begin(self) -> None:
        self._is_complete = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise HeadTooLarge
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._is_in_head = True
        self._head_bytes = 0
        self._clear_deadline()
        super().on_message_complete()

    # -- the deadline --

    def _set_deadline(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(MAX_REQUEST_S, self._close)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


def make_protocol(presence: Presence) -> type[BoundedProtocol]:
    """A protocol that tells `presence` of ended connections, so that a dead worker is detected at
    once, even if it has no request under way."""

    class WatchedProtocol(BoundedProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            presence.forget_connection(self.client)
            super().connection_lost(exc)

    return WatchedProtocol
