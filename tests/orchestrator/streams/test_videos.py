"""Pages take pictures from a stream's videos, also where the stream has features instead of them."""

from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.streams.videos import VideoPlaces, picture_of


@pytest.fixture
def videos(tmp_path):
    folder = tmp_path / "videos"
    (folder / "below").mkdir(parents=True)
    for name in ("v0.mp4", "below/v1.MKV"):
        (folder / name).write_bytes(b"")
    return folder


def test_the_picture_of_a_video_is_its_file_and_segment(videos):
    item = Item("v0", str(videos / "v0.webm"), (1.0, 2.0), "", ())
    assert picture_of(item) == (str(videos / "v0.mp4"), (1.0, 2.0))
    assert picture_of(Item("v0", "", None, "", ())) == ("", None)  # in a saved gallery


def test_the_picture_of_features_is_the_video_of_that_id_in_the_folder(videos):
    places = VideoPlaces(videos)
    for video, file in (("v0", "v0.mp4"), ("below/v1", "below/v1.MKV")):
        item = Item(video, "/features/000000.npy", None, "", ())
        assert picture_of(item, places) == (str(videos / file), None)
        assert picture_of(item) == ("", None)
    assert picture_of(Item("gone", "/features/000000.npy", None, "", ()), places) == ("", None)


def test_a_folder_of_videos_does_not_replace_the_arrays_of_a_stream_of_features(videos, tmp_path):
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays/000000.npy", np.ones(3))
    items = [{"video": f"v{n}", "path": f"00000{n}.npy", "category": "c", "captions": ["a"]} for n in (0, 1)]
    task = {"name": "one", "categories": ["c"], "train": items[:1], "test": items[1:]}
    manifest = {"format": 1, "name": "mine", "protocol": "ctvr", "videos": "arrays", "features": "d", "tasks": [task]}
    found = parse_manifest(manifest, "mine.json", tmp_path, videos)
    assert Path(found.tasks[0].train[0].path) == tmp_path / "arrays/000000.npy"
    del manifest["features"]  # video files
    assert Path(parse_manifest(manifest, "mine.json", tmp_path, videos).tasks[0].train[0].path).parent == videos
