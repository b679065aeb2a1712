"""Download of weights and tokenizers: the cache is used first, and a failed connection is reported in one line."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ctvr.methods.settings import SettingError

SECONDS = 4.0  # time limit of the connection test; the attempts of a library take a minute
HUB = "https://huggingface.co"
FAILURES = (OSError, RuntimeError, ValueError)  # errors of the libraries that download
Found = TypeVar("Found")


def why_unreachable() -> str:
    """Return the reason why the Hugging Face hub or its proxy cannot be reached; "" if it can be reached."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return "HF_HUB_OFFLINE is set"
    address = urlsplit(os.environ.get("HF_ENDPOINT") or HUB)
    proxies, end = getproxies(), time.monotonic() + SECONDS
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(address.hostname or ""):
        address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        places = socket.getaddrinfo(address.hostname, port, type=socket.SOCK_STREAM)
        _connect([str(where[0]) for *_, where in places], port, end)
    except (OSError, ValueError) as error:
        return f"{address.hostname or address.geturl()} cannot be reached ({getattr(error, 'strerror', None) or error})"
    return ""


def _connect(addresses: list[str], port: int, end: float) -> None:
    """Try a host's addresses until one accepts a connection or the time `end` is reached; then raise the last error."""
    for number, address in enumerate(addresses, 1):
        try:
            socket.create_connection((address, port), max(end - time.monotonic(), 0.1)).close()
            return
        except OSError:
            if number == len(addresses) or time.monotonic() >= end:
                raise


def fetch(call: Callable[[], Found], what: str, remedy: str) -> Found:
    """Return the result of a library's function: first call it offline with its cache; if this fails, with downloads.

    Args:
        call: the function.
        what: description of the result for the message; settings are named as in `SettingError`.
        remedy: sentence that explains how to obtain the result without a network.

    Raises:
        SettingError: if the result is not in the cache and cannot be downloaded.
    """
    with suppress(*FAILURES), offline():
        return call()
    if reason := why_unreachable():
        raise SettingError(f"{what} could not be fetched: {reason}", remedy)
    try:
        return call()
    except FAILURES as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SettingError(f"{what} could not be fetched: {reason}", remedy) from error


@contextmanager
def offline() -> Iterator[None]:
    """Context manager: let huggingface_hub read only its cache and not connect."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def fetch_weights(name: str, tag: str, remedy: str) -> Path:
    """Return the cached file with the weights of an open_clip tag; download it if it is missing.

    Raises:
        SettingError: with the given `remedy`, if the file cannot be downloaded.
    """
    from open_clip.pretrained import download_pretrained, get_pretrained_cfg

    return fetch(lambda: Path(download_pretrained(get_pretrained_cfg(name, tag))), f"<weights>={tag}", remedy)
