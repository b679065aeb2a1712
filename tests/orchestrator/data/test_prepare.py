"""Every video is decoded once; videos that cannot be decoded are named and do not stop the others."""

import json
import os
import time
from pathlib import Path

from ctvr.orchestrator import digests
from ctvr.orchestrator.data import file_digests
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.data.prepare import prepare_stream
from ctvr.orchestrator.learning.run.execute import RunPaths
from ctvr.orchestrator.store import store
from ctvr.orchestrator.store.gc import FILES, USES
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import iter_items
from ctvr.orchestrator.streams.videos import scan_videos
from tests.refusing import refuses


def test_a_second_preparation_decodes_nothing(runs, small_stream):
    source = FrameSource(RunPaths(runs).open_store(), DataConfig(num_frames=4), 64)
    _, decoded = prepare_stream(small_stream, source, ("train", "val", "test"), progress=False)
    assert decoded == 0


def asked_for(monkeypatch, do) -> list[str]:
    """Return the paths for which `do` queries the file system."""
    asked: list[str] = []
    real = os.stat
    with monkeypatch.context() as patched:
        patched.setattr(
            os, "stat", lambda path, *more, **named: (asked.append(str(path)), real(path, *more, **named))[1]
        )
        do()
    return asked


def test_a_stream_that_is_ready_asks_the_file_system_once_for_a_video(runs, small_stream, monkeypatch):
    monkeypatch.setattr(digests, "_FRESH_NS", -(10**15))  # digests of files that were just made are remembered, too
    monkeypatch.setattr(store, "_LISTED_HERE", 1)
    monkeypatch.setattr(file_digests, "LEAST", 1)

    def prepare() -> FrameSource:
        source = FrameSource(RunPaths(runs).open_store(), DataConfig(num_frames=4), 64)
        prepare_stream(small_stream, source, ("train", "val", "test"), progress=False)
        return source

    keys = prepare()._keys
    monkeypatch.setattr(file_digests, "digest_file", None)  # the index of another machine will do
    videos = sum(1 for _ in iter_items(small_stream))
    asked = asked_for(monkeypatch, prepare)
    assert len([path for path in asked if path.endswith(".mp4")]) == videos
    assert len(asked) < videos + 20  # and the store's folder is listed
    assert prepare()._keys == keys


def test_the_cache_of_digests_is_checked_against_the_files(manifest, runs, tmp_path, monkeypatch):
    """For any change of a file or of the index, the keys are those of a store without an index."""
    stream, there = load_stream(manifest, runs), Store.open(tmp_path / "store")
    items = [item for _, _, item in iter_items(stream)]
    files = [Path(item.path) for item in items]

    def keys(least: int = 1) -> dict:
        monkeypatch.setattr(file_digests, "LEAST", least)
        return FrameSource(there, DataConfig(num_frames=4), 64).keys(items, scan_videos(stream))[0]

    def index() -> dict:
        """Return the stored index of all files, after checking it."""
        assert keys() == keys(least=10**9)
        return there.get_json(FILES, name)

    newest = max(file.stat().st_ctime_ns for file in files)
    monkeypatch.setattr(digests.time, "time_ns", lambda: newest)
    before = keys()
    assert not there.list(FILES)  # files this young may change unseen
    monkeypatch.setattr(digests.time, "time_ns", lambda: newest + 10**13)
    assert keys() == before
    (name,) = there.list(FILES)
    first, status = index(), files[0].stat()
    time.sleep(0.02)  # the clock of file systems ticks every few milliseconds
    files[0].write_bytes(files[0].read_bytes()[::-1])  # the same size, and its time set back
    os.utime(files[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(keys().items() - before.items()) == 1
    second = index()
    assert second != first
    there.put_json(FILES, name, first)  # another writer, who is late
    assert index() == second
    files[1].unlink()  # a shorter list is another index
    assert len(keys()) == len(items) - 1
    assert len(there.list(FILES)) == 2
    files[1].write_bytes(b"other")
    for wrong in ({}, [], {"identities": "?", "digests": 3}, {"identities": "AAAA", "digests": "AAAA"}):
        there.put_json(FILES, name, wrong)
        assert index() not in (wrong, second)
    (tmp_path / "store" / FILES / f"{name}.json").write_text("{")
    assert index()


def spoil(manifest: str, change) -> None:
    """Damage the first training video of the stream."""
    folder = Path(manifest).parent / "videos"
    change(folder / json.loads(Path(manifest).read_text())["tasks"][0]["train"][0]["path"])


def test_missing_videos_are_listed_and_left_out_only_on_demand(manifest, runs):
    spoil(manifest, Path.unlink)
    stream = load_stream(manifest, runs)
    source = FrameSource(RunPaths(runs).open_store(), DataConfig(num_frames=4), 64)
    with refuses("1", "red_train_0", "data.skip_missing=true"):
        prepare_stream(stream, source, ("train", "test"), progress=False)
    left, _ = prepare_stream(stream, source, ("train", "test"), skip_missing=True, progress=False)
    assert len(left.items(0, "train")) == 3
    assert left.digest != stream.digest
    assert "missing" in left.table_caveat


def test_a_stream_says_in_the_store_which_frames_it_uses(manifest, runs):
    stream, store = load_stream(manifest, runs), RunPaths(runs).open_store()
    for use in store.list(USES):
        store.delete(USES, use)
    source = FrameSource(store, DataConfig(num_frames=4), 64)
    prepare_stream(stream, source, ("test",), progress=False)
    (use,) = store.list(USES)
    assert use.startswith("small-")
    assert store.get_json(USES, use)["frames"] == sorted(
        source.key(i) for t in range(3) for i in stream.items(t, "test")
    )


def test_broken_video_is_named_and_good_ones_are_decoded(manifest, runs):
    spoil(manifest, lambda path: path.write_bytes(b"no video at all"))
    stream = load_stream(manifest, runs)
    store = RunPaths(runs).open_store()
    source = FrameSource(store, DataConfig(num_frames=3), 64)  # another sampling: its frames are not stored
    with refuses("1", "red_train_0"):
        prepare_stream(stream, source, ("train",), progress=False)
    good = [item for index in range(3) for item in stream.items(index, "train")][1:]
    assert all(store.has("frames", source.key(item)) for item in good)
