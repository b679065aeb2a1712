"""Connections that send nothing, little or too much do not lock others out, although no token is needed to connect."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from ctvr.orchestrator.serving import server
from ctvr.orchestrator.serving.server import MAX_HEAD, PER_CLIENT
from ctvr.orchestrator.serving.snapshot import Snapshot
from tests.orchestrator.serving.client import served

REQUEST = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@contextlib.contextmanager
def opened(port: int, count: int, first: bytes = b"", source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            made = socket.create_connection(("127.0.0.1", port), 30, (source, 0))
            found.append(stack.enter_context(made))
            with contextlib.suppress(OSError):
                made.sendall(first)
        yield found


def is_closed(each: socket.socket, seconds: float = 0.5) -> bool:
    """Return whether the server ends a connection within a time."""
    each.settimeout(seconds)
    try:
        return each.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("first", [b"", b"G", REQUEST, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"])
def test_105_unfinished_requests_lock_nobody_out(client, first):
    with opened(client.port, 105, first) as found:
        found[-1].settimeout(10)
        if first.startswith(b"POST"):  # its headers are whole: while the server answers it, the request is not waiting
            with contextlib.suppress(ConnectionResetError):  # it ends unanswered if all others are being answered
                assert found[-1].recv(1)
        for _ in range(3):
            assert client.get("/health").status == 200


def test_an_address_has_few_connections_and_the_oldest_that_waits_ends(client):
    with opened(client.port, 1, source="127.0.0.2") as (other,), opened(client.port, PER_CLIENT + 3) as found:
        assert client.get("/health").status == 200
        assert [is_closed(each) for each in found[:4]] == [True] * 4
        assert not is_closed(found[-1])
        assert not is_closed(other)


def test_many_addresses_together_lock_nobody_out(client):
    with contextlib.ExitStack() as stack:
        for number in range(2, 9):
            stack.enter_context(opened(client.port, PER_CLIENT, b"G", f"127.0.0.{number}"))
        assert client.get("/health").status == 200


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_connection_ends_if_its_headers_are_too_slow(client, monkeypatch, is_answered):
    monkeypatch.setattr(server, "SECONDS", 0.5)
    with opened(client.port, 1, REQUEST + b"\r\n" if is_answered else b"") as (each,):
        end = time.monotonic() + 60
        with contextlib.suppress(OSError):
            while time.monotonic() < end:  # a byte at a time, which never ends the headers
                each.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() < end


def test_a_request_that_is_answered_slowly_keeps_its_connection(snapshot, monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.3)

    def slowly() -> Snapshot:
        time.sleep(1)
        return snapshot

    with served(slowly) as client:
        assert client.get("/health").status == 200


@pytest.mark.parametrize("head", [b"x: y\r\n" * 10_000, b"x: " + b"y" * 3 * MAX_HEAD + b"\r\n"])
def test_long_headers_are_refused_before_they_are_parsed(client, head):
    with opened(client.port, 1) as (each,), contextlib.suppress(ConnectionError):
        each.sendall(REQUEST + head + b"\r\n")
        assert each.recv(64) in (b"", b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"[:64])
    assert client.get("/health").status == 200


def test_a_long_body_is_not_a_long_header(client):
    with opened(client.port, 1) as (each,):
        each.sendall(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20000\r\n\r\n" + b"x" * 20_000)
        assert each.recv(64).startswith(b"HTTP/1.1 405")
