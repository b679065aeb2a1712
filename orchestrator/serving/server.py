"""Socket, web server and signals of the service."""

from __future__ import annotations

import errno
import signal
import socket
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.serving.connections import Connection

if TYPE_CHECKING:
    from starlette.types import ASGIApp


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
