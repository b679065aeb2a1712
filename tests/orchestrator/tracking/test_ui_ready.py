"""The addresses of `ctvr ui` are printed when its server answers, and never after its end."""

import http.server
import os
import threading
from collections.abc import Iterator

import pytest

from ctvr.orchestrator.tracking import ui_ready

PAGES = [("shapes-5", "#/experiments/1"), ("all", "#/experiments")]


@pytest.fixture
def health(free_port: int) -> Iterator[int]:
    """Serve a health check on a free port."""

    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", free_port), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield free_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("opens", [False, True])
def test_a_server_that_answers_is_announced_and_opened_on_request(health, opens, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(ui_ready.webbrowser, "open", lambda address: opened.append(address) or True)
    ui_ready.announce(0, "127.0.0.1", health, PAGES, opens)
    said = capsys.readouterr().err
    for label, page in PAGES:
        assert f"{label}: http://127.0.0.1:{health}/{page}" in said
    assert opened == [f"http://127.0.0.1:{health}/{PAGES[0][1]}"] * opens


def test_nothing_is_announced_after_the_server_has_ended(free_port, capsys):
    ui_ready.announce(os.getppid() + 1, "127.0.0.1", free_port, PAGES, True)
    assert capsys.readouterr().err == ""
