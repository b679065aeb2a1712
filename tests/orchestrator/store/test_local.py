"""A store's folder that holds foreign files or cannot be written: only the object concerned is affected."""

import os
import stat

import numpy as np
import pytest

from ctvr.orchestrator.errors import MissingObject, StoreError
from ctvr.orchestrator.store.gc import find_garbage
from ctvr.orchestrator.store.packs import Member
from ctvr.orchestrator.store.store import Store
from tests.read_only import read_only
from tests.refusing import refuses

X = {"frames": np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3), "times": np.array([0.0, 0.5])}


def object_file(store, name):
    return store._objects.path(name)


def damage(path):
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def _in_its_place(path, kind):
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    else:  # a socket: its path would be too long for one that is bound here
        os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize("kind", ["pipe", "loop", "folder", "socket"])
def test_what_is_no_file_counts_as_a_damaged_object_and_hides_no_other(tmp_path, kind):
    store = Store.open(tmp_path / "store")
    for key in ("a", "b"):
        store.put("frames", key, {"x": np.arange(3)})
        store.put_json("commits", key, {"n": 1})
    _in_its_place(object_file(store, "frames/a.safetensors"), kind)
    _in_its_place(object_file(store, "commits/a.json"), kind)
    fresh = Store.open(tmp_path / "store")
    assert "b" in fresh.list("frames")
    assert fresh.filter_existing("frames", ["a", "b"]) >= {"b"}
    problems = dict(fresh.verify())
    assert problems["frames/b.safetensors"] is None
    assert problems.get("frames/a.safetensors", "none") is not None
    for read, kind_of in ((fresh.get, "frames"), (fresh.get_json, "commits")):
        with pytest.raises(MissingObject):
            read(kind_of, "a")
        assert read(kind_of, "b")
    if kind != "folder":
        fresh.put("frames", "a", {"x": np.arange(3)})
        assert fresh.get("frames", "a")["x"].tolist() == [0, 1, 2]


def test_read_only_store_is_read_and_a_write_is_one_line(tmp_path, caplog):
    root = tmp_path / "store"
    store = Store.open(root)
    store.put("frames", "a", X)
    store.put("frames", "bad", X)
    store.put_json("commits", "a", {"n": 1})
    store.packs.put("frames", [Member(key, X, {}) for key in ("p", "q")])
    damage(object_file(store, "frames/bad.safetensors"))
    with read_only(root):
        reader = Store.open(root)
        assert reader.list("frames") == ["a", "bad", "p", "q"]
        for key in ("a", "p"):
            np.testing.assert_array_equal(reader.get("frames", key)["frames"], X["frames"])
        assert reader.get_json("commits", "a") == {"n": 1}
        for _ in range(2):
            with pytest.raises(MissingObject):
                reader.get("frames", "bad")
        assert "frames/bad.safetensors is damaged (its SHA-256 differs) and remains" in caplog.text
        assert dict(reader.verify(remove=True))["frames/bad.safetensors"] == "its SHA-256 differs"
        assert not find_garbage(reader).entries
        for write in (lambda: reader.put("frames", "c", X), lambda: reader.put_json("commits", "c", 1)):
            with pytest.raises(StoreError, match=r"^.*store/\w+/c\.\w+: cannot be written \(Permission denied\)\.$"):
                write()
        with refuses(where="store"):
            reader.check_writable()
        with refuses(remedy=True):
            Store.open(root / "new")
    reader.check_writable()


@pytest.mark.parametrize("kind", ["folder with a file", "link to a folder", "link to nothing"])
def test_a_folder_in_the_place_of_an_object_is_never_lost_and_a_link_is(tmp_path, kind, caplog):
    store = Store.open(tmp_path / "store")
    store.put("frames", "a", X)
    path, other = object_file(store, "frames/a.safetensors"), tmp_path / "other"
    other.mkdir()
    (other / "mine").write_text("text")
    path.unlink()
    if kind == "folder with a file":
        other.rename(path)
        other = path
    else:
        path.symlink_to(other if kind == "link to a folder" else tmp_path / "nowhere")
    with pytest.raises(MissingObject):
        store.get("frames", "a")
    if kind == "folder with a file":
        assert "frames/a.safetensors is damaged (is not a file) and remains" in caplog.text
        with pytest.raises(StoreError, match=r"a\.safetensors: cannot be written"):
            store.put("frames", "a", X)
    else:
        store.put("frames", "a", X)
        assert store.get("frames", "a").keys() == X.keys()
        assert path.is_file()
        assert not path.is_symlink()
    if kind != "link to nothing":
        assert (other / "mine").read_text() == "text"


def test_a_file_where_a_folder_of_objects_belongs_hides_nothing_else(tmp_path):
    store = Store.open(tmp_path / "store")
    store.put("frames", "a", X)
    (tmp_path / "store" / "packs").write_text("text")
    (tmp_path / "store" / "features").write_text("text")
    fresh = Store.open(tmp_path / "store")
    assert fresh.list("frames") == ["a"] == sorted(fresh.filter_existing("frames", ["a", "b"]))
    with pytest.raises(MissingObject):
        fresh.get("features", "a")
    with pytest.raises(StoreError, match=r"features/a\.safetensors: cannot be written"):
        fresh.put("features", "a", X)


def test_foreign_folder_among_temporary_files_is_ignored(tmp_path):
    Store.open(tmp_path / "store")
    old = tmp_path / "store" / ".tmp"
    (old / "folder").mkdir()
    (old / "loop").symlink_to("loop")
    os.utime(old / "folder", (1, 1))
    os.utime(old / "loop", (1, 1), follow_symlinks=False)
    Store.open(tmp_path / "store").put("frames", "a", X)
    assert not os.path.lexists(old / "loop")


def test_a_copy_that_is_changed_in_place_is_not_served(tmp_path):
    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache")
    store.put("frames", "a", X)
    copy = next((tmp_path / "cache").rglob("a.safetensors"))
    first = store.get("frames", "a")
    os.utime(copy, ns=(1, copy.stat().st_mtime_ns))
    assert store.get("frames", "a").keys() == first.keys()
    assert copy.stat().st_atime > 1000
    del first
    damage(copy)
    np.testing.assert_array_equal(store.get("frames", "a")["frames"], X["frames"])
    assert store.counters["damaged"] == 1


def test_a_pipe_where_the_cache_of_copies_counts_is_not_waited_for(tmp_path):
    for name in (".written", ".evicting"):
        (tmp_path / name / "objects").mkdir(parents=True)
        os.mkfifo(tmp_path / name / "objects" / name)
        store = Store.open(f"memory://{tmp_path / name}", cache=tmp_path / name)
        store.put("frames", "a", X)
        np.testing.assert_array_equal(store.get("frames", "a")["frames"], X["frames"])
