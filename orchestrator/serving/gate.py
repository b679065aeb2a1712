"""Access control: every request needs the token or, on loopback without a token, a Host header of this machine."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.proxies import is_loopback
from ctvr.orchestrator.text_files import MIB, read_bytes

TOKEN = "CTVR_SERVE_TOKEN"
LEAST = 16  # smallest number of characters of a token
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::\d+)?")
HEADERS = {  # headers of every response; the page adds its own Content-Security-Policy
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def read_token(host: str, file: Path | None) -> str:
    """Return the token in `file` or, if no file is given, in the environment; "" if no token is needed or given.

    Raises:
        ConfigError: if the token is too short, or is missing although other machines can reach the host.
    """
    place, token = TOKEN, os.environ.get(TOKEN, "")
    if file is not None:
        try:
            place, token = f"--token-file {file}", read_bytes(file.expanduser(), most=MIB).decode("ascii")
        except UnicodeDecodeError as error:
            raise ConfigError(f"--token-file {file}: cannot be read (it is not ASCII). Use another file.") from error
        except ConfigError as error:  # absent, a FIFO or a device
            raise ConfigError(f"--token-file {error}") from error
    token = token.strip()
    if (token or file is not None) and not (len(token) >= LEAST and token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{place}: a token has at least {LEAST} printable ASCII characters (got {len(token)} characters). Make "
            "one: openssl rand -hex 24"
        )
    address, _, port = host.rpartition(":")
    if port.isdecimal() and ":" not in address:
        raise ConfigError(f"--host {host}: is an address with a port. Use --host {address} --port {port}.")
    if not token and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: others can reach this address, so a token is needed. Set {TOKEN}, or add --token-file "
            "FILE."
        )
    return token


class Gate:
    """ASGI middleware that refuses requests without the token (401) or, if there is no token, for other hosts (400)."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, hashlib.sha256(token.encode()).digest() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        if self.token:
            if hmac.compare_digest(hashlib.sha256(_parse_token(headers.get("authorization", ""))).digest(), self.token):
                return None
            text = "the token is missing or wrong. Send the header Authorization: Bearer TOKEN."
            asks = {"WWW-Authenticate": 'Basic realm="ctvr: any name, the token as password", charset="UTF-8"'}
            return JSONResponse({"error": text}, 401, asks)
        host = _HOST.fullmatch(headers.get("host", ""))
        if host is not None and is_loopback(host[1] or host[2]):
            return None
        return JSONResponse({"error": "Host: is not this machine. Open the URL that ctvr serve printed."}, 400)


def _parse_token(authorization: str) -> bytes:
    """Return the token of a header: `Bearer TOKEN`, or the password of `Basic`, which browsers send."""
    kind, _, value = authorization.strip().partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return value.strip().encode("utf-8", "replace") if kind.lower() == "bearer" else b""
