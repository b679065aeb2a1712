"""Objects in a pack are found, copied, damaged and removed like single objects, except as files."""

import logging
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ctvr.orchestrator.errors import MissingObject, StoreError
from ctvr.orchestrator.store import packer
from ctvr.orchestrator.store.gc import DAY, find_garbage, note_use, remove_garbage
from ctvr.orchestrator.store.local import Entry
from ctvr.orchestrator.store.packer import Packer
from ctvr.orchestrator.store.packs import KIND, Member
from ctvr.orchestrator.store.store import Store

KEYS = [letter * 64 for letter in "abcde"]


def arrays_of(key: str) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(ord(key[0])).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    return {"frames": numbers, "timestamps": np.array([ord(key[0]), 0.5])}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make objects of 96 + 16 bytes: packs of three, and two single objects at the end."""
    monkeypatch.setattr(packer, "FULL", 300)
    monkeypatch.setattr(packer, "LEAST", 250)


def fill(store: Store, keys: list[str] = KEYS) -> None:
    with Packer(store, "frames") as collected:
        for key in keys:
            collected.add(key, arrays_of(key), {"video": key[0]})


@pytest.fixture(params=["folder", "memory", "cached"])
def store(request, tmp_path):
    if request.param == "folder":
        return Store.open(tmp_path / "store")
    return Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache" if request.param == "cached" else None)


@pytest.fixture
def local(tmp_path):
    return Store.open(tmp_path / "store")


def other(store: Store) -> Store:
    """Return the same store as another process opens it, before any listing."""
    return pickle.loads(pickle.dumps(store))


def files(store: Store) -> list[str]:
    """Return the objects, without the digests of packs."""
    return sorted(f"{e.name[:13]}{e.name[-5:]}" if e.name.startswith(KIND) else e.name for e in store.entries())


def packs(store: Store) -> list[Entry]:
    return [entry for entry in store.entries() if entry.name.startswith(KIND)]


def check(store: Store, keys: list[str]) -> None:
    for key in keys:
        found = store.get("frames", key)
        assert found.meta == {"video": key[0]}
        assert found.keys() == {"frames", "timestamps"}
        for name, array in arrays_of(key).items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
            assert not found[name].flags.writeable


def test_objects_of_a_pack_are_objects_like_others(store):
    fill(store)
    alone = [f"frames/{key}.safetensors" for key in KEYS[3:]]
    assert files(store) == [*alone, "packs/frames/.json", "packs/frames/nsors"]
    for each in (store, other(store)):
        check(each, KEYS)
        assert each.list("frames") == KEYS
        assert each.list("frames", "aa") == KEYS[:1]
        assert all(each.has("frames", key) for key in KEYS)
        many = [*KEYS, *(f"{number:064}" for number in range(60))]
        assert each.filter_existing("frames", many) == set(KEYS) == each.filter_existing("frames", [*KEYS, "0" * 64])
        with pytest.raises(MissingObject):
            each.get("frames", "0" * 64)
        assert all(problem is None for _, problem in each.verify())


def test_packs_that_others_write_are_found_by_who_has_looked_before(store, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.store.packs._PATIENCE", 0.0)
    reader = other(store)
    with pytest.raises(MissingObject):
        reader.get("frames", KEYS[0])
    fill(store)
    assert reader.has("frames", KEYS[1])
    check(reader, KEYS)


def test_a_bucket_is_not_listed_for_every_object_that_is_missing(tmp_path, monkeypatch):
    store = Store.open(f"memory://{tmp_path}")
    listed = []
    monkeypatch.setattr(store._objects, "listed", lambda folder: listed.append(folder) or ())
    for key in KEYS:
        assert not store.has("frames", key)
    assert listed == ["packs/frames"]


def test_a_damaged_pack_is_removed_and_its_objects_are_made_again(store, caplog):
    fill(store)
    entry = next(e for e in packs(store) if e.name.endswith(".safetensors"))
    data = bytearray(store._objects.read(entry.name))
    data[-3] ^= 1
    store._objects.write(entry.name, [bytes(data)])
    if store._cache is not None:
        store._cache.delete(entry.name)
    reader = other(store)
    with caplog.at_level(logging.WARNING), pytest.raises(MissingObject) as missing:
        reader.get("frames", KEYS[1])
    assert (missing.value.kind, missing.value.key) == ("frames", KEYS[1])
    assert "is damaged (its SHA-256 differs) and has been removed" in caplog.text
    assert not packs(store)
    assert other(store).filter_existing("frames", KEYS) == set(KEYS[3:])
    assert reader.filter_existing("frames", KEYS) == set(KEYS[3:])
    for key in KEYS[:3]:
        reader.put("frames", key, arrays_of(key), {"video": key[0]})
    check(other(store), KEYS)


@pytest.mark.parametrize("gone", [".json", ".safetensors"])
def test_half_a_pack_is_none(local, gone):
    """A writer or a removal was killed halfway."""
    fill(local)
    local.remove([entry.name for entry in packs(local) if entry.name.endswith(gone)])
    assert other(local).filter_existing("frames", KEYS) == set(KEYS[3:])
    assert not other(local).has("frames", KEYS[0])
    with pytest.raises(MissingObject):
        other(local).get("frames", KEYS[0])
    fill(local, KEYS[:3])  # the same pack again
    check(other(local), KEYS)


def test_an_object_can_be_taken_out_of_its_pack(store):
    fill(store)
    other(store).delete("frames", KEYS[1])
    for each in (store, other(store)):
        assert each.list("frames") == [KEYS[0], *KEYS[2:]]
        check(each, [KEYS[0], *KEYS[2:]])
    for key in KEYS:
        store.delete("frames", key)
    assert not store.entries()


def test_collected_objects_are_stored_after_an_exception(local):
    def work() -> None:
        with Packer(local, "frames") as collected:
            collected.add(KEYS[0], arrays_of(KEYS[0]), {"video": "a"})
            assert KEYS[0] in collected
            assert not local.has("frames", KEYS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    check(local, KEYS[:1])


def test_a_pack_that_cannot_be_stored_is_an_error_and_no_half(local, monkeypatch):
    def refuse(*given, **named):
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(local._objects, "write", refuse)
        with pytest.raises(StoreError, match="disk full"):
            fill(local)
    assert not local.entries()
    fill(local)
    check(local, KEYS)


def test_at_the_end_a_little_less_is_a_pack_too_and_one_object_is_never(local, monkeypatch):
    monkeypatch.setattr(packer, "LEAST", 200)
    fill(local)
    assert len(packs(local)) == len(local.entries()) == 4
    monkeypatch.setattr(packer, "FULL", 50)
    fill(local, ["f" * 64])
    assert local.entries()[0].name == f"frames/{'f' * 64}.safetensors"
    check(other(local), KEYS)


def test_a_pack_is_opened_once(local, monkeypatch):
    fill(local)
    reader = other(local)
    check(reader, KEYS)
    monkeypatch.setattr(reader, "get", None)  # who read a file would fail
    for key in KEYS[:3]:
        assert reader.packs.get("frames", key).meta == {"video": key[0]}


def test_no_more_packs_stay_open_than_are_allowed(local, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.store.packs._OPEN", 2)
    keys = [letter * 64 for letter in "abcdefgh"]
    for first in range(0, 8, 2):
        local.packs.put("frames", [Member(key, arrays_of(key), {"video": key[0]}) for key in keys[first : first + 2]])
    reader = other(local)
    reader.packs.keys("frames")
    check(reader, keys)
    assert len(reader.packs._open) == 2
    check(reader, [keys[4], keys[0]])
    opened = {name.removeprefix("frames/") for name in reader.packs._open}
    assert opened == {reader.packs._places["frames"][key][0][0] for key in (keys[4], keys[0])}


def _change(path, how):
    size, times = path.stat().st_size, path.stat()
    with path.open("rb+") as file:
        if how == "truncated":
            file.truncate(size // 2)
        elif how == "emptied":
            file.truncate(0)
        else:
            file.seek(size - 3)
            last = file.read(1)[0]
            file.seek(size - 3)
            file.write(bytes([last ^ 1]))
    if how == "changed, its time set back":
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("how", ["changed", "changed, its time set back", "truncated", "emptied"])
def test_a_pack_that_is_changed_in_place_is_not_served_again(local, how):
    """The change is detected although the pack is open; a truncation once ended the process."""
    fill(local)
    reader = other(local)
    check(reader, KEYS)
    file = local._objects.path(next(e.name for e in packs(local) if e.name.endswith(".safetensors")))
    _change(file, how)
    for key in KEYS[:3]:
        with pytest.raises(MissingObject):
            reader.get("frames", key)
    check(reader, KEYS[3:])
    assert not packs(local)


def _overlapping(store):
    """Return two packs, made by concurrent writers, which both contain `b` and `c`."""
    for group in (KEYS[:3], KEYS[1:4]):
        store.packs.put("frames", [Member(key, arrays_of(key), {"video": key[0]}) for key in group])
    return [entry.name for entry in packs(store) if entry.name.endswith(".safetensors")]


@pytest.mark.parametrize("which", [0, 1])
def test_the_intact_one_of_two_packs_with_a_key_is_read(store, which):
    names = _overlapping(store)
    data = bytearray(store._objects.read(names[which]))
    data[-3] ^= 1
    store._objects.write(names[which], [bytes(data)])
    if store._cache is not None:
        store._cache.delete(names[which])
    for each in (other(store), store):
        check(each, KEYS[1:3])
    assert other(store).filter_existing("frames", KEYS) >= set(KEYS[1:3])


@pytest.mark.parametrize("makes", [False, True])
def test_a_deleted_object_is_removed_from_every_pack(store, makes):
    _overlapping(store)
    if makes:  # and from a separate file
        store.put("frames", KEYS[1], arrays_of(KEYS[1]), {"video": "b"})
    deleter = other(store)
    deleter.delete("frames", KEYS[1])
    for each in (deleter, other(store)):
        assert each.list("frames") == [KEYS[0], *KEYS[2:4]]
        check(each, [KEYS[0], *KEYS[2:4]])
        with pytest.raises(MissingObject):
            each.get("frames", KEYS[1])


def test_other_kinds_are_never_looked_for_in_packs(local, monkeypatch):
    monkeypatch.setattr(local._objects, "state_of", None)  # a request would fail
    with pytest.raises(MissingObject):
        local.get("gallery", "a")
    assert not local.has("commits", "a")


def test_a_pack_is_garbage_when_none_of_its_objects_is_needed(local, monkeypatch):
    local.packs.put("frames", [Member(key, arrays_of(key), {"video": key[0]}) for key in KEYS[:3]])
    local.packs.put("frames", [Member(key, arrays_of(key), {"video": key[0]}) for key in KEYS[3:]])
    local.packs.put("features", [Member(f"{key}/b32", arrays_of(key), {}) for key in KEYS[3:]])
    note_use(local, "shapes", [KEYS[1]])
    now = Store.clock
    assert not find_garbage(local).entries
    monkeypatch.setattr(Store, "clock", lambda self: now(self) + 1.1 * DAY)
    found = find_garbage(local)
    assert len(found.entries) == 4
    assert [entry.name.endswith(".json") for entry in found.entries] == [True, True, False, False]
    note_use(local, "a stream that came meanwhile", [KEYS[4]])
    assert remove_garbage(local, found).objects == 0
    local.delete("uses", next(key for key in local.list("uses") if key.startswith("a-stream")))
    assert remove_garbage(local, find_garbage(local)).objects == 4
    check(other(local), KEYS[:3])
    assert other(local).filter_existing("frames", KEYS) == set(KEYS[:3])
    assert not other(local).list("features")
    orphan = next(entry.name for entry in packs(local) if entry.name.endswith(".json"))
    local.remove([orphan])  # a writer that was killed: its arrays go a day later
    assert [entry.name.endswith(".safetensors") for entry in find_garbage(local).entries] == [True]


@pytest.mark.parametrize("first", ["get", "has", "filter_existing"])
def test_threads_that_read_first_wait_for_the_first_listing(store, first, monkeypatch):
    fill(store, KEYS[:3])
    new = other(store)
    listed = new._objects.listed

    def slow(*given):
        time.sleep(0.2)
        return listed(*given)

    monkeypatch.setattr(new._objects, "listed", slow)

    def begin(key):
        getattr(new, first)("frames", [key] if first == "filter_existing" else key)

    with ThreadPoolExecutor(4) as pool:
        started = pool.submit(begin, KEYS[0])
        time.sleep(0.05)
        found = list(pool.map(lambda key: new.get("frames", key)["frames"], KEYS[:3]))
        started.result()
    for key, frames in zip(KEYS, found):
        np.testing.assert_array_equal(frames, arrays_of(key)["frames"])
