"""Every video is decoded once; what cannot be is named, and stops nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator import digests
from orchestrator.data.frames import FrameSource
from orchestrator.data.prepare import prepare_stream
from orchestrator.data.settings import DataConfig
from orchestrator.errors import ConfigError
from orchestrator.learning.run import Places
from orchestrator.store import store
from orchestrator.store.garbage import USES
from orchestrator.streams.load import load_stream
from orchestrator.streams.stream import walk


def test_a_second_preparation_decodes_nothing(runs, small_stream):
    source = FrameSource(Places(runs).open_store(), DataConfig(num_frames=4), 64)
    _, decoded = prepare_stream(small_stream, source, ("train", "val", "test"), progress=False)
    assert decoded == 0


def test_a_stream_that_is_ready_asks_the_file_system_three_times_for_a_video(runs, small_stream, monkeypatch):
    monkeypatch.setattr(digests, "_FRESH_NS", -(10**15))  # digests of files that were just made are remembered, too
    source = FrameSource(Places(runs).open_store(), DataConfig(num_frames=4), 64)
    prepare_stream(small_stream, source, ("train", "val", "test"), progress=False)
    source, asked, real = FrameSource(source.store, DataConfig(num_frames=4), 64), [], os.stat
    monkeypatch.setattr(store, "_LISTED_HERE", 1)
    monkeypatch.setattr(
        os, "stat", lambda path, *more, **named: (asked.append(str(path)), real(path, *more, **named))[1]
    )
    prepare_stream(small_stream, source, ("train", "val", "test"), progress=False)
    videos = sum(1 for _ in walk(small_stream))
    assert len([path for path in asked if path.endswith(".mp4")]) <= 3 * videos
    assert len(asked) < 3 * videos + 20  # and the store's folder is listed


def spoil(manifest: str, change) -> None:
    """Do something to the first training video of the stream."""
    folder = Path(manifest).parent / "videos"
    change(folder / json.loads(Path(manifest).read_text())["tasks"][0]["train"][0]["path"])


def test_missing_videos_are_listed_and_left_out_only_on_demand(manifest, runs):
    spoil(manifest, Path.unlink)
    stream = load_stream(manifest, runs)
    source = FrameSource(Places(runs).open_store(), DataConfig(num_frames=4), 64)
    with pytest.raises(ConfigError, match=r"1 videos are missing: .*red_train_0.*data.skip_missing=true") as error:
        prepare_stream(stream, source, ("train", "test"), progress=False)
    assert "\n" not in str(error.value)
    left, _ = prepare_stream(stream, source, ("train", "test"), skip_missing=True, progress=False)
    assert len(left.items(0, "train")) == 3
    assert left.digest != stream.digest
    assert "missing" in left.settings_mark


def test_a_stream_says_in_the_store_which_frames_it_uses(manifest, runs):
    stream, store = load_stream(manifest, runs), Places(runs).open_store()
    for use in store.list(USES):
        store.delete(USES, use)
    source = FrameSource(store, DataConfig(num_frames=4), 64)
    prepare_stream(stream, source, ("test",), progress=False)
    (use,) = store.list(USES)
    assert use.startswith("small-")
    assert store.get_json(USES, use)["frames"] == sorted(
        source.key(i) for t in range(3) for i in stream.items(t, "test")
    )


def test_a_broken_video_is_named_and_the_good_ones_are_decoded_all_the_same(manifest, runs):
    spoil(manifest, lambda path: path.write_bytes(b"no video at all"))
    stream = load_stream(manifest, runs)
    store = Places(runs).open_store()
    source = FrameSource(store, DataConfig(num_frames=3), 64)  # another sampling: nothing is there yet
    with pytest.raises(ConfigError, match=r"1 videos are broken: .*red_train_0"):
        prepare_stream(stream, source, ("train",), progress=False)
    good = [item for index in range(3) for item in stream.items(index, "train")][1:]
    assert all(store.has("frames", source.key(item)) for item in good)
