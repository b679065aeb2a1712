"""A service of this process on a free port of the loopback interface, and single requests to it."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from ctvr.orchestrator.serving.app import Service
from ctvr.orchestrator.serving.server import Server, bind
from ctvr.orchestrator.serving.snapshot import Snapshot


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Client:
    """Requests to one port of this machine, each on its own connection."""

    port: int
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, method: str = "GET", headers: dict[str, str] | None = None, **query: object) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            target = f"{path}?{urlencode(query)}" if query else path
            connection.request(method, target, headers={**self.headers, **(headers or {})})
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()


@contextmanager
def served(current: Callable[[], Snapshot], token: str = "") -> Iterator[Client]:
    """Serve in a thread of this process."""
    service = Service(current, token)
    server = Server(service.app)
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        try:
            yield Client(port)
        finally:
            server.handle_exit(2, None)
            thread.join(10)
            service.close()
    assert not thread.is_alive()
