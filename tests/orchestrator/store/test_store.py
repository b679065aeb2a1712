"""The store never serves a wrong byte, never shows a partial object, and reports errors in one line."""

import errno
import multiprocessing
import os
import pickle
import threading
import time

import numpy as np
import pytest

from ctvr.orchestrator.errors import MissingObject, StoreError
from ctvr.orchestrator.store import local as store_local
from ctvr.orchestrator.store import store as store_store
from ctvr.orchestrator.store.store import Store
from tests.refusing import refuses

X = {"frames": np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3), "times": np.array([0.0, 0.5])}


@pytest.fixture(params=["folder", "memory", "cached"])
def store(request, tmp_path):
    """Return a local store, a remote one without copies on disk, and a remote one with them."""
    if request.param == "folder":
        return Store.open(tmp_path / "store")
    cache = tmp_path / "cache" if request.param == "cached" else None
    return Store.open(f"memory://{tmp_path}", cache=cache)


@pytest.fixture
def local(tmp_path):
    return Store.open(tmp_path / "store")


def object_file(store, name):
    return store._objects.path(name)


def test_arrays_come_back_equal_and_read_only(store):
    store.put("frames", "ab/cdef", X, {"decoder": "pyav"})
    for _ in range(2):
        arrays = store.get("frames", "ab/cdef")
        assert arrays.meta == {"decoder": "pyav"}
        for name, array in X.items():
            np.testing.assert_array_equal(arrays[name], array)
            with pytest.raises(ValueError, match="read-only"):
                arrays[name][0] = 0
    assert store.has("frames", "ab/cdef")
    many = ["ab/cdef", "ab", *(f"no{i}" for i in range(store_store._LISTED_HERE))]  # answered by a listing
    assert store.filter_existing("frames", many) == store.filter_existing("frames", many[:9]) == {"ab/cdef"}


def test_local_arrays_are_memory_maps(local):
    local.put("frames", "a", X, {})
    base = local.get("frames", "a")["frames"]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert type(base.base).__name__ == "mmap"


def test_missing_objects_are_missing(store):
    for get in (store.get, store.get_json):
        with pytest.raises(MissingObject, match="frames/nothing: no such object"):
            get("frames", "nothing")
    assert not store.has("frames", "nothing")
    error = pickle.loads(pickle.dumps(MissingObject("frames", "a")))
    assert (error.kind, error.key) == ("frames", "a")
    assert isinstance(error, KeyError)


def test_json_is_replaced_as_a_whole(store):
    store.put_json("runs", "a", {"step": 1})
    store.put_json("runs", "a", {"step": 2, "list": [1.5, None]})
    assert store.get_json("runs", "a") == {"step": 2, "list": [1.5, None]}


def test_a_key_can_be_created_only_once(store):
    assert store.create_json("lease", "a", {"owner": 1})
    assert not store.create_json("lease", "a", {"owner": 2})
    assert store.get_json("lease", "a") == {"owner": 1}


def test_exactly_one_of_many_writers_creates_a_key(store):
    won = []
    start = threading.Barrier(8)

    def take(owner):
        start.wait()
        if store.create_json("lease", "a", owner):
            won.append(owner)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.get_json("lease", "a")] == won


def test_keys_are_listed_by_prefix_in_order(store):
    for key in ("b", "a/x", "a/y.z", "ab"):
        store.put_json("k", key, 1)
    store.put("k", "a/x", X, {})
    store.put_json("other", "a", 1)
    assert store.list("k") == ["a/x", "a/y.z", "ab", "b"]
    assert store.list("k", "a") == ["a/x", "a/y.z", "ab"]
    assert store.list("k", "a/") == ["a/x", "a/y.z"]
    assert store.list("nothing") == []
    assert store.size().objects == 6


def test_deleting_is_final_and_may_be_repeated(store):
    store.put("k", "a", X, {})
    store.put_json("k", "a", 1)
    store.delete("k", "a")
    store.delete("k", "a")
    assert not store.has("k", "a")
    with pytest.raises(MissingObject):
        store.get("k", "a")


def hostile_keys() -> list[str]:
    """Return three hundred keys that name a place outside the store, a foreign file, or no object."""
    parts = [
        "..",
        ".",
        "",
        "~",
        "-",
        "~root",
        "..;",
        "...",
        "%2e%2e",
        "..%2f",
        "..\\",
        "\u2025",
        "\uff0e\uff0e",
        "con",
        "a b",
    ]
    parts += [
        "a\0",
        "a\n",
        "\t",
        "a\r\nHost: evil",
        "A",
        "é",
        "\u202e",
        "*",
        "?",
        "a:b",
        "$HOME",
        "`id`",
        "$(id)",
        ";id",
        "|id",
    ]
    bad = [part for part in parts if part not in ("-", "con")]  # these two are names like others
    made = [
        each for part in bad for each in (part, f"{part}/a", f"a/{part}/b", f"a/{part}", f"/{part}", f"{part}{part}")
    ]
    made += [f"{'../' * depth}etc/passwd" for depth in range(1, 40)]
    made += [f"frames/{'a/' * depth}{'../' * (depth + 2)}etc/shadow" for depth in range(30)]
    made += [f"{scheme}://x/a" for scheme in ("s3", "file", "http", "memory", "ftp", "gs", "az")]
    made += ["a" * length for length in (129, 600, 5000, 70_000)] + ["a/" * length + "a" for length in (300, 5000)]
    made += [f"{chr(code)}a" for code in (*range(45), *range(58, 95), 96, *range(123, 161))]
    made += [".tmp/x", "a/.x", "a..b", "a\0b"]
    return list(dict.fromkeys(made))


def test_hostile_keys_reach_no_file(tmp_path):
    keys = hostile_keys()
    assert len(keys) >= 300
    stores = [
        Store.open(tmp_path / "in" / "store"),
        Store.open(f"memory://{tmp_path}", cache=tmp_path / "in" / "cache"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for store in stores:
        for key in (*keys, 7, None):
            calls = [
                lambda: store.put("k", key, X, {}),  # noqa: B023 (called at once)
                lambda: store.put_json("k", key, 1),  # noqa: B023
                lambda: store.create_json("k", key, 1),  # noqa: B023
                lambda: store.get("k", key),  # noqa: B023
                lambda: store.get_json("k", key),  # noqa: B023
                lambda: store.has("k", key),  # noqa: B023
                lambda: store.delete("k", key),  # noqa: B023
            ]
            for call in calls:
                with pytest.raises(ValueError, match="is not a key") as caught:
                    call()
                assert "\n" not in str(caught.value)
                assert len(str(caught.value)) < 300
            for call in (lambda: store.put(key, "a", X, {}), lambda: store.list(key)):  # noqa: B023
                with pytest.raises(ValueError, match="is not a kind") as caught:
                    call()
                assert len(str(caught.value)) < 300
        assert store.size().objects == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_foreign_objects_of_the_store_are_ignored(local, tmp_path):
    local.put("k", "good", X, {})
    root = object_file(local, "k")
    (root / "Bad Name.safetensors").write_bytes(b"x")
    (root / "a..b.json").write_bytes(b"{}")
    (root / "note.txt").write_bytes(b"x")
    (root / "link.json").symlink_to("/etc/passwd")
    (root / "copied.safetensors").write_bytes(object_file(local, "k/good.safetensors").read_bytes())
    assert local.list("k") == ["copied", "good", "link"]
    for key in ("copied", "link"):  # under another name, or no object
        with pytest.raises(MissingObject):
            local.get("k", key) if key == "copied" else local.get_json("k", key)
    assert {name for name, problem in local.verify() if problem} >= {"k/Bad Name.safetensors", "k/note.txt"}
    assert {name for name, problem in local.verify() if not problem} == {"k/good.safetensors"}


def test_damaged_object_is_removed_and_can_be_written_again(local):
    rng = np.random.default_rng(0)
    local.put("k", "a", X, {})
    file = object_file(local, "k/a.safetensors")
    good = file.read_bytes()
    for n, position in enumerate(rng.integers(0, len(good), 20)):
        flipped = bytearray(good)
        flipped[position] ^= 1 << int(rng.integers(8))
        file.unlink()
        file.write_bytes(flipped if n % 2 else good[:position])
        with pytest.raises(MissingObject):
            local.get("k", "a")
        assert not file.exists()
        assert local.counters["damaged"] == n + 1
        local.put("k", "a", X, {})
        np.testing.assert_array_equal(local.get("k", "a")["frames"], X["frames"])
    assert not list((local._objects.root / ".tmp").iterdir())


def test_damaged_json_is_removed_and_its_key_is_free_again(local):
    local.put_json("k", "a", {"x": 1})
    file = object_file(local, "k/a.json")
    file.write_bytes(file.read_bytes().replace(b'"x":1', b'"x":2'))
    with pytest.raises(MissingObject):
        local.get_json("k", "a")
    file.write_bytes(b"half")
    assert local.create_json("k", "a", {"x": 3})
    assert local.get_json("k", "a") == {"x": 3}


def test_a_damaged_remote_object_is_removed(tmp_path):
    import obstore

    store = Store.open(f"memory://{tmp_path}")
    store.put("k", "a", X, {})
    obstore.put(store._objects._objects, "k/a.safetensors", b"rubbish")
    with pytest.raises(MissingObject):
        store.get("k", "a")
    assert store.counters["damaged"] == 1
    assert not store.has("k", "a")


def test_a_damaged_copy_is_fetched_again(tmp_path):
    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache")
    store.put("k", "a", X, {})
    copy = store._cache.path("k/a.safetensors")
    copy.write_bytes(copy.read_bytes()[:-1] + b"\x99")
    np.testing.assert_array_equal(store.get("k", "a")["frames"], X["frames"])
    assert store.counters["damaged"] == 1
    assert store.has("k", "a")


def test_an_object_that_was_replaced_while_it_was_judged_is_kept(local):
    from ctvr.orchestrator.errors import CorruptObject

    local.put("k", "a", X, {})
    local._remove_damaged(local._objects, "k/a.safetensors", CorruptObject("as seen a moment ago"))
    np.testing.assert_array_equal(local.get("k", "a")["frames"], X["frames"])


def test_verify_reads_everything_and_reports_the_damaged(store):
    store.put("k", "a", X, {})
    store.put_json("k", "b", 1)
    assert list(store.verify()) == [("k/a.safetensors", None), ("k/b.json", None)]


def test_verify_removes_on_request(local):
    local.put("k", "a", X, {})
    local.put("k", "b", X, {})
    file = object_file(local, "k/a.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    assert {n: p is None for n, p in local.verify(remove=True)} == {"k/a.safetensors": False, "k/b.safetensors": True}
    assert local.list("k") == ["b"]


def test_copies_stay_below_their_limit_and_the_least_used_go_first(tmp_path):
    big = {"x": np.zeros(1000, np.uint8)}
    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache", cache_bytes=5000)
    for i in range(10):
        store.put("k", f"{i}", big, {})
        os.utime(store._cache.path(f"k/{i}.safetensors"), (i, i))
    copies = [entry.name for entry in store._cache.names()]
    assert sum(entry.bytes for entry in store._cache.names()) <= 5000
    assert "k/9.safetensors" in copies
    assert "k/0.safetensors" not in copies
    np.testing.assert_array_equal(store.get("k", "0")["x"], big["x"])  # fetched again
    assert store.counters["cache_miss"] == 1
    assert store.counters["evicted"] > 0


def test_the_limit_holds_for_the_copies_of_all_stores_together(tmp_path):
    big = {"x": np.zeros(1000, np.uint8)}
    stores = [Store.open(f"memory://{tmp_path}/{n}", cache=tmp_path / "cache", cache_bytes=5000) for n in range(2)]
    for i in range(6):
        for store in stores:
            store.put("k", f"{i}", big, {})
    folder, size, limit = stores[0].copies()
    assert size.bytes == sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    assert 0 < size.bytes <= limit == 5000
    assert stores[0].copies() == stores[1].copies()


def fill(cache, me):
    store = Store.open("memory://s", cache=cache, cache_bytes=40_000_000)
    for i in range(60):
        store.put("k", f"{me}-{i}", {"x": np.full(500_000, i, np.uint8)}, {})
        assert store.get("k", f"{me}-{i}")["x"][0] == i


def test_processes_share_one_limit(tmp_path):
    crowd = [multiprocessing.get_context("fork").Process(target=fill, args=(tmp_path, me)) for me in range(3)]
    for process in crowd:
        process.start()
    everything = store_local.LocalFiles(tmp_path / "objects")
    sizes = []
    while any(process.is_alive() for process in crowd):
        sizes.append(sum(entry.bytes for entry in everything.names()))
        time.sleep(0.02)
    assert [process.exitcode for process in crowd] == [0] * 3
    # While one process evicts, the others continue to write, the more the longer it takes. The store is incomplete
    # meanwhile, and the next undisturbed write keeps the limit
    assert 20_000_000 < max(sizes) < 3 * 60 * 500_000
    last = Store.open("memory://s", cache=tmp_path, cache_bytes=40_000_000)
    last.put("k", "last", {"x": np.zeros(500_000, np.uint8)}, {})
    assert 20_000_000 < last.copies()[1].bytes <= 40_000_000


def test_a_copy_that_is_mapped_may_be_evicted(tmp_path):
    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache", cache_bytes=5000)
    store.put("frames", "a", X, {})
    os.utime(store._cache.path("frames/a.safetensors"), (1, 1))
    arrays = store.get("frames", "a")
    os.utime(store._cache.path("frames/a.safetensors"), (1, 1))
    for i in range(8):
        store.put("k", f"{i}", {"x": np.zeros(1000, np.uint8)}, {})
    assert not store._cache.exists("frames/a.safetensors")
    np.testing.assert_array_equal(arrays["frames"], X["frames"])


def test_copies_leave_space_on_the_disk(tmp_path, monkeypatch):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(store_local.shutil, "disk_usage", lambda path: usage(100_000, 97_000, 3_000))
    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache", cache_bytes=10**9)
    for i in range(4):
        store.put("k", f"{i}", {"x": np.zeros(1000, np.uint8)}, {})
        store._cache._is_measured = False  # as a process that starts
    assert store.copies()[1].objects == 1  # the newest: 2000 bytes too few are free


def test_a_cache_of_no_bytes_keeps_nothing(tmp_path):
    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache", cache_bytes=0)
    store.put("frames", "a", X, {})
    np.testing.assert_array_equal(store.get("frames", "a")["frames"], X["frames"])
    assert store.copies()[1].objects == 0


def test_full_disk_is_one_line_and_leaves_nothing_behind(local, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    local.put("k", "old", X, {})
    monkeypatch.setattr(store_local.os, "fsync", full)
    with pytest.raises(
        StoreError, match=r"k/a\.safetensors: disk full, \d+ bytes needed, \d+ bytes are free"
    ) as caught:
        local.put("k", "a", X, {})
    with pytest.raises(StoreError, match="disk full"):
        local.put_json("k", "old", 1)
    monkeypatch.undo()
    assert "\n" not in str(pickle.loads(pickle.dumps(caught.value)))
    assert local.list("k") == ["old"]
    assert not list((local._objects.root / ".tmp").iterdir())


def test_a_full_disk_of_copies_does_not_matter(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache")
    monkeypatch.setattr(store_local.os, "fsync", full)
    store.put("k", "a", X, {})
    np.testing.assert_array_equal(store.get("k", "a")["frames"], X["frames"])


def test_without_hard_links_a_key_is_still_taken_once(local, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(store_local.os, "link", no_links)
    assert local.create_json("k", "a", 1)
    assert not local.create_json("k", "a", 2)
    assert local.get_json("k", "a") == 1


@pytest.mark.parametrize(
    ("uri", "values", "variables"),
    [
        ("", "''", {}),
        ("ftp://host/x", "'ftp://host/x'", {}),
        ("s3://", "s3:// ''", {}),
        ("s3://UPPER/x", "s3://UPPER/x 'UPPER'", {}),
        ("s3://key:secret@bucket/x", "AWS_*", {}),
        ("s3://bucket/prefix", "AWS_ACCESS_KEY_ID", None),  # the machine is not asked for its role
        ("memory://a", "CTVR_CACHE_GB 'lots'", {"CTVR_CACHE_GB": "lots"}),
        ("memory://a", "CTVR_CACHE {file}", {}),
        ("{file}/store", "{file}/store", {}),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line_without_secrets(tmp_path, monkeypatch, uri, values, variables):
    (file := tmp_path / "file").touch()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    if variables is not None:
        for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", **variables}.items():
            monkeypatch.setenv(name, value)
    with refuses(*values.format(file=file).split()) as caught:
        Store.open(uri.format(file=file), cache=file)
    assert "secret" not in str(caught.value)


def test_a_store_travels_to_other_processes(store):
    store.put("k", "a", X, {})
    again = pickle.loads(pickle.dumps(store))
    assert again.uri == store.uri
    np.testing.assert_array_equal(again.get("k", "a")["times"], X["times"])
