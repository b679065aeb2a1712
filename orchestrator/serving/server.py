"""Socket, web server and signals of the service."""

from __future__ import annotations

import asyncio
import errno
import re
import signal
import socket
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ctvr.orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp
SECONDS = 10.0  # longest time until the headers of a request are complete
MAX_CONNECTIONS = 100
PER_CLIENT = 20  # connections of one address
MAX_HEAD = 16 * 1024  # bytes of a request's first line and headers


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet, so that a wrong address is refused before a model is loaded.

    Raises:
        ConfigError: for an unknown host, or a port that is in use or not permitted.
    """
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port}: is not a port. Use a number from 1 to 65535, or 0 for a free one.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError("is not an address of this machine", f"--host {host}", remedy="Use 127.0.0.1.") from error
    found = socket.socket(family, kind, protocol)  # without `protocol` asyncio does not set TCP_NODELAY (40 ms)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            text = f"--port {port}: is in use on {host}. Use another, or 0 for a free one."
        elif error.errno == errno.EACCES:
            text = f"--port {port}: needs root privileges. Use a number above 1023, or 0 for a free one."
        else:
            text = f"--host {host}: is not an address of this machine ({error.strerror}). Use 127.0.0.1."
        raise ConfigError(text) from error
    return found


def address_of(bound: socket.socket) -> str:
    """Return the address of a bound socket for a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class Server(uvicorn.Server):
    """A server that ends at the first signal, even with open connections; `ended_by` is the signal."""

    ended_by = 0

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.ended_by = self.ended_by or sig
        self.should_exit = self.force_exit = True

    @property
    def is_terminated(self) -> bool:
        """Return whether SIGTERM, not Ctrl-C, ended the server."""
        return self.ended_by == signal.SIGTERM


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
