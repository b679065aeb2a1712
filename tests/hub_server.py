"""A stand-in of the Hugging Face Hub on this machine: the few routes that huggingface_hub's snapshot download uses."""

import hashlib
import http.server
import json
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

OF_LFS = (".safetensors", ".parquet")  # the Hub keeps large files by their SHA-256, others as blobs of Git


def digest_of(name: str, data: bytes) -> str:
    """Return the identity of a file on the Hub."""
    if name.endswith(OF_LFS):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    """One repository with commits, at every address of a model or a data set.

    Attributes:
        commits: commit -> name -> content.
        main: the newest commit.
        asked: method and path of every request.
        also: paths that each listing has in addition.
        sizes: name -> size that listings state instead of the true one.
        moves: whether downloads are served from the newest commit, whichever was requested.
    """

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.main = ""
        self.asked: list[str] = []
        self.also: list[str] = []
        self.sizes: dict[str, int] = {}
        self.moves = False
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def upload(self, files: Path | dict[str, bytes]) -> str:
        """Add the newest commit, with the files of a folder, and return its name."""
        if isinstance(files, Path):
            files = {path.name: path.read_bytes() for path in files.iterdir() if path.is_file()}
        self.main = hashlib.sha1(repr((self.main, sorted(files.items()))).encode()).hexdigest()
        self.commits[self.main] = files
        return self.main

    def listing(self, commit: str) -> list[dict[str, object]]:
        found = {**self.commits[commit], **dict.fromkeys(self.also, b"")}
        return [self._entry(name, data) for name, data in found.items()]

    def _entry(self, name: str, data: bytes) -> dict[str, object]:
        size, digest = self.sizes.get(name, len(data)), digest_of(name, data)
        lfs = {"lfs": {"oid": digest, "size": size, "pointerSize": 134}} if name.endswith(OF_LFS) else {}
        return {"type": "file", "path": name, "size": size, "oid": digest, **lfs}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        part = next((each for each in ("/revision/", "/tree/", "/resolve/") if each in path), "?")
        revision, _, name = path.partition(part)[2].partition("/")
        commit = hub.main if revision == "main" or (hub.moves and part == "/resolve/") else revision
        found = hub.commits.get(commit)
        if found is None or (part == "/resolve/" and name not in found):
            self.answer(404, b"{}", {})
        elif part == "/resolve/":
            tag = digest_of(name, found[name])
            self.answer(200, found[name], {"X-Repo-Commit": commit, "ETag": f'"{tag}"'})
        else:
            about = {"id": "owner/name", "sha": commit} if part == "/revision/" else hub.listing(commit)
            self.answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    do_HEAD = do_GET

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *words: object) -> None: ...


def use_hub(hub: Hub, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub download from the stand-in into an empty cache."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    address = f"http://127.0.0.1:{hub.server_port}"
    patch.setenv("HF_ENDPOINT", address)
    patch.setattr(constants, "ENDPOINT", address)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
