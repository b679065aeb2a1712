"""The store in a bucket, against a real S3 server process (moto) on the loopback."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from orchestrator.config import ConfigError
from orchestrator.store import MissingObject, Store

pytestmark = pytest.mark.slow
X = {"frames": np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)}


@pytest.fixture(scope="module")
def endpoint():
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def environment(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return endpoint


@pytest.fixture
def bucket(environment, request):
    import urllib.request

    name = f"bucket{abs(hash(request.node.name)) % 10**9}"
    urllib.request.urlopen(urllib.request.Request(f"{environment}/{name}", method="PUT"), timeout=60)
    return name


@pytest.fixture
def store(bucket, tmp_path):
    return Store.open(f"s3://{bucket}/a/prefix", cache=tmp_path / "cache")


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
    assert elsewhere.size().objects == 2
    assert all(problem is None for _, problem in elsewhere.verify())
    elsewhere.delete("frames", "ab/c")
    assert not store.has("frames", "ab/c")


def test_the_server_decides_who_takes_a_key(store):
    assert store.conditional_put
    won = []
    threads = [
        threading.Thread(target=lambda i=i: won.append(i) if store.put_new_json("lease", "a", i) else None)
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.get_json("lease", "a")] == won


def test_a_server_that_ignores_conditions_is_found_out(store, monkeypatch):
    import obstore

    put = obstore.put
    monkeypatch.setattr("obstore.put", lambda s, name, data, **kw: put(s, name, data))
    again = Store.open(store.uri, cache=store._given[0])
    assert not again.conditional_put
    assert again.put_new_json("lease", "b", 1)
    assert not again.put_new_json("lease", "b", 2)


def test_a_damaged_object_in_the_bucket_is_removed(store, tmp_path):
    import obstore

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


def test_a_missing_bucket_is_one_line_without_secrets(environment, tmp_path):
    with pytest.raises(ConfigError, match=r"store s3://no-such-bucket/x: cannot be used") as caught:
        Store.open("s3://no-such-bucket/x", cache=tmp_path)
    assert "\n" not in str(caught.value)
    assert "canary" not in str(caught.value)
