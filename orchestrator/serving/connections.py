"""Limits of connections without a complete request, for every client, because connecting requires no token."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0  # longest time until the headers of a request are complete
MAX_CONNECTIONS = 100
PER_CLIENT = 20  # connections of one address
MAX_HEAD = 16 * 1024  # bytes of a request's first line and headers


class Connection(H11Protocol):
    """A connection that is closed if its headers are too slow or too long.

    If its address or all addresses together have as many connections as permitted, a new connection closes the
    connection that has waited longest for a request. So connections that do not send a request cannot lock out other
    clients.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit, and close the oldest waiting connection if there are too many."""
        super().connection_made(transport)
        self._await_request()
        mine = [each for each in self._others() if each.client and self.client and each.client[0] == self.client[0]]
        for group, most in ((mine, PER_CLIENT), (self._others(), MAX_CONNECTIONS)):
            if len(group) >= most:
                waiting = [each for each in group if each._deadline is not None]
                oldest = min(waiting, key=lambda each: each._deadline.when() if each._deadline else 0.0, default=self)
                oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Refuse headers that are too long, before they are parsed."""
        head = self.conn.trailing_data[0] + data if self.conn.their_state is h11.IDLE else b""
        if len(head) > MAX_HEAD and not re.search(rb"\n\r?\n", head[:MAX_HEAD]):
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
            self.transport.close()
            return
        super().data_received(data)

    def handle_events(self) -> None:
        """Parse the request, and end the time limit when its headers are complete."""
        super().handle_events()
        if self.conn.their_state is not h11.IDLE and self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Start the time limit of the next request."""
        self._await_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _others(self) -> list[Connection]:
        found = (each for each in self.connections if isinstance(each, Connection) and each is not self)
        return [each for each in found if not each.transport.is_closing()]

    def _await_request(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
