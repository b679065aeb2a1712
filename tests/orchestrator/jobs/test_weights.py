"""`ctvr cache weights` fetches from the hub, and writes a folder that needs no further settings."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from ctvr.methods.backbone.weight_settings import weight_settings
from ctvr.orchestrator.cli.main import main

CONTENT = b"weights" * 1000


class Hub(BaseHTTPRequestHandler):
    """Answers for every file, as the hub does for one of 7000 bytes."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        for name, value in (("ETag", '"e"'), ("X-Repo-Commit", "c" * 40), ("Content-Length", str(len(CONTENT)))):
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(CONTENT)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "tag"), [("ViT-B-32-quickgelu", "openai"), ("ViT-H-14", "laion2b_s32b_b79k"), ("ViT-B-16-SigLIP", "webli")]
)
def test_the_written_folder_has_the_weights_and_the_settings_of_the_tag(hub, tmp_path: Path, capsys, name, tag):
    folder = tmp_path / "carried"
    assert main(["cache", "weights", name, tag, "--out", str(folder)]) == 0
    shown = capsys.readouterr().out
    (file,) = folder.glob("open_clip*model.*")
    assert file.read_bytes() == CONTENT
    assert weight_settings(name, str(folder), folder) == weight_settings(name, tag)
    assert f"backbone.name={name} backbone.weights={folder}" in shown
    assert ("backbone.sha256=" in shown) == (file.suffix == ".bin")
    assert main(["cache", "weights", name, tag, "--out", str(folder)]) == 2, "nothing is replaced"


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("ViT-B-99", "openai"),
        ("ViT-B-32", "opanai"),
        ("ViT-B-32", "x.pt"),
        ("tiny-clip", "shipped"),
        ("vectors", "imported"),
    ],
)
def test_an_unknown_name_or_tag_is_one_line(tmp_path: Path, capsys, name, tag):
    assert main(["cache", "weights", name, tag, "--out", str(tmp_path / "x")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "x").exists()
