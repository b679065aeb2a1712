"""An object store dies during an upload: no partial object is ever visible, and every acknowledged one exists."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctvr.orchestrator.errors import MissingObject, StoreError
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store import remote
from ctvr.orchestrator.store.store import Store
from tests.chaos.lifecycle import digest_of_run

pytestmark = pytest.mark.slow
LARGE = {"x": np.random.default_rng(0).integers(0, 256, 300_000).astype(np.uint8)}


class Server:
    """moto's S3 server in a separate process; its objects are lost when it dies."""

    def __init__(self, port: int) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{self.url}/bucket", method="PUT"), timeout=10)
                return
            except OSError:
                assert time.monotonic() < until, "the server does not start"
                time.sleep(0.2)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Wire:
    """A connection to the server that breaks after some bytes of an upload, for a given number of times."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.breaks: list[int] = []  # bytes after which each of the next long requests is cut
        self.broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.server))
            threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_upload: bool) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                if is_upload and self.breaks and sent + len(data) > self.breaks[0]:
                    target.sendall(data[: max(0, self.breaks.pop(0) - sent)])
                    self.broken += 1
                    break
                target.sendall(data)
                sent += len(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server(free_port: int) -> Iterator[Server]:
    made = Server(free_port)
    made.start()
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "canary", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a client that gives up after seconds and not after a minute."""
    make = remote.S3Store

    def quick(*words: Any, retry_config: Any, **named: Any) -> Any:
        return make(*words, retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=2)}, **named)

    monkeypatch.setattr(remote, "S3Store", quick)


def test_an_upload_that_is_cut_anywhere_leaves_nothing_or_the_whole_object(server, monkeypatch, tmp_path, impatient):
    wire = Wire(server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{wire.port}")
    store = Store.open("s3://bucket/a", cache=tmp_path / "cache")
    rng = np.random.default_rng(3)
    acknowledged, refused = [], []
    for number in range(30):
        wire.breaks = [int(rng.integers(2000, 300_000)) for _ in range(int(rng.integers(1, 4)))]
        try:
            store.put("k", f"{number}", LARGE, {"n": number})
            acknowledged.append(number)
        except StoreError as error:
            refused.append(str(error))
    assert wire.broken > 30
    assert refused
    for said in refused:
        assert said.startswith("s3://bucket/a/k/")
        assert ".safetensors: cannot be written" in said
        assert "\n" not in said
        assert "canary" not in said
    wire.breaks = []
    elsewhere = Store.open("s3://bucket/a", cache=tmp_path / "other node")
    assert all(problem is None for _, problem in elsewhere.verify())
    for number in range(30):
        try:
            np.testing.assert_array_equal(elsewhere.get("k", f"{number}")["x"], LARGE["x"])
        except MissingObject:
            assert number not in acknowledged
            store.put("k", f"{number}", LARGE, {"n": number})  # the wire holds: it is made again
    assert elsewhere.list("k") == sorted(map(str, range(30)))
    wire.listener.close()


def test_a_commit_over_a_breaking_wire_is_there_as_a_whole_or_not_at_all(server, monkeypatch, tmp_path, impatient):
    import torch

    from ctvr.orchestrator.learning.record.run_state import RunState

    wire = Wire(server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{wire.port}")
    rng = np.random.default_rng(5)
    state, gallery = {"w": torch.arange(40_000.0)}, torch.ones(64, 64)
    for number in range(12):
        store = Store.open("s3://bucket/b", cache=tmp_path / "cache")
        commits = Commits(store, f"run{number}")
        wire.breaks = [int(rng.integers(500, 170_000)) for _ in range(3)]
        try:
            told = commits.publish(state, [gallery], RunState(done=1, own=[[1.0]]))
        except StoreError:
            told = False
        wire.breaks = []
        found = Commits(Store.open("s3://bucket/b", cache=tmp_path / f"node{number}"), f"run{number}")
        if told:
            assert found.finished(1) == 1
        assert commits.publish(state, [gallery], RunState(done=1, own=[[1.0]]))
        assert found.finished(1) == 1
        assert torch.equal(found.load(1)[0]["w"], state["w"])
    assert wire.broken > 12
    wire.listener.close()


def test_run_restarts_to_the_same_numbers_after_store_loss(
    server, runs, manifest, small_stream, monkeypatch, tmp_path, impatient
):
    """This server keeps no data, so all of it is lost with the server and computed again."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("CTVR_CACHE", str(tmp_path / "cache"))
    experiment = resolve({"method": "lora", "stream": manifest, "optim.epochs": 1}, small_stream.settings)
    unbroken = execute(experiment, RunPaths(runs))
    places = RunPaths(runs, "s3://bucket/c")

    def kill(task: Any, record: Any, seconds: float) -> None:
        if task.index == 0:
            server.kill()

    with pytest.raises(StoreError, match=r"s3://bucket/c/\S+: cannot be (listed|read|written)") as error:
        execute(experiment, places, report=kill)
    assert "\n" not in str(error.value)
    server.start()
    result = execute(experiment, places)
    assert result.resumed == 0
    galleries = [
        Commits(where.open_store(), run.key).galleries(3)
        for where, run in ((places, result), (RunPaths(runs), unbroken))
    ]
    assert digest_of_run(result.record, result.method, galleries[0]) == digest_of_run(
        unbroken.record, unbroken.method, galleries[1]
    )


def test_a_stopped_store_is_waited_for(server, monkeypatch, tmp_path):
    """A SIGSTOP of some seconds is not a failure: the client waits and retries."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    store = Store.open("s3://bucket/d", cache=tmp_path / "cache")
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    threading.Timer(4, os.kill, (server.process.pid, signal.SIGCONT)).start()
    store.put("k", "a", LARGE, {})
    np.testing.assert_array_equal(store.get("k", "a")["x"], LARGE["x"])
    assert Path(tmp_path / "cache").is_dir()
