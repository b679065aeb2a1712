"""Two benchmarks as published, with a few videos each."""

import collections
import pickle
from pathlib import Path

import pytest

from tests.orchestrator.importers.benchmark_files import (
    SENTENCES,
    SPLIT,
    as_sentences,
    touch,
    write_json,
    write_rows,
)


@pytest.fixture
def msrvtt(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "MSRVTT_02_dataset.pkl").write_bytes(pickle.dumps(SPLIT))
    rows = [("video7010", "a boy"), ("video7011", "a cat  "), ("video7012", "a bus")]
    touch(tmp_path / "videos" / "video0.mp4")
    return {
        "split_pkl": tmp_path / "MSRVTT_02_dataset.pkl",
        "annotations": write_json(tmp_path / "MSRVTT_data.json", as_sentences(SENTENCES)),
        "test_csv": write_rows(
            tmp_path / "val.csv",
            ("key", "vid_key", "video_id", "sentence"),
            *((f"ret{n}", video.replace("video", "msr"), video, text) for n, (video, text) in enumerate(rows)),
        ),
        "videos": tmp_path / "videos",
        "out": tmp_path / "streams" / "msrvtt-2.json",
    }


@pytest.fixture
def words(msrvtt: dict[str, Path]) -> dict[str, str]:
    return {
        "split": str(msrvtt["split_pkl"]),
        "annotations": str(msrvtt["annotations"]),
        "captions": str(msrvtt["test_csv"]),
    }


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """Return the five data sets as published, with two or three videos each."""
    for split, name in (
        ("training_v1.0", "same"),
        ("validation_v1.0", "val"),
        ("public_test_english_v1.1", "test"),
    ):
        entries = [{"videoID": name, "enCap": ["one", " two "], "chCap": ["x"]}]
        write_json(tmp_path / "vatex" / f"vatex_{split}.json", entries)
    for file, video in (("train", "v_a"), ("val_1", "v_b")):
        entry = {"duration": 5, "timestamps": [[0, 1], [1, 5]], "sentences": [" First this.", "Then that. "]}
        write_json(tmp_path / "activitynet" / f"{file}.json", {video: entry})
        write_json(tmp_path / "activitynet" / f"{file}_ids.json", [video])
    write_json(tmp_path / "msrvtt" / "MSRVTT_data.json", as_sentences([*SENTENCES, ("video9", "not used")]))
    write_rows(
        tmp_path / "msrvtt" / "MSRVTT_JSFUSION_test.csv",
        ("key", "vid_key", "video_id", "sentence"),
        ("ret0", "msr9", "video9", "a test"),
    )
    for split, video in (("train", "d1.avi"), ("test", "d2.mov")):
        entries = [{"video": video, "description": text, "times": [[0, 0]]} for text in ("left ", "right")]
        write_json(tmp_path / "didemo" / f"{split}_data.json", entries)
    words = {"same": [["a", "cat"]], "val": [["a", "dog"]], "test": [["a", "car"], ["a", "bus"]]}
    (tmp_path / "msvd").mkdir()
    (tmp_path / "msvd" / "raw-captions.pkl").write_bytes(pickle.dumps(words, 0))
    for split, video in (("train", "same"), ("val", "val"), ("test", "test")):
        (tmp_path / "msvd" / f"{split}_list.txt").write_text(f"{video}\n\n")
    touch(tmp_path / "didemo" / "videos" / "d1.mp4", tmp_path / "vatex" / "same.mp4")
    return tmp_path


@pytest.fixture
def actnet(tmp_path: Path) -> dict[str, Path]:
    split = {
        "train": {1: collections.defaultdict(list, {"Zumba": ["v_a"]})},
        "val": {1: collections.defaultdict(list, {"Zumba": ["v_b"]})},
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(split))
    train = {"v_a": {"duration": 9, "timestamps": [[1, 4.5]], "sentences": ["  They dance. "]}}
    val = {"v_b": {"duration": 9, "timestamps": [[0, 3]], "sentences": ["She dances."]}}
    (tmp_path / "videos").mkdir()
    return {
        "split_pkl": tmp_path / "a.pkl",
        "train_queries": write_json(tmp_path / "train_queries.json", train),
        "val_queries": write_json(tmp_path / "val_queries.json", val),
        "videos": tmp_path / "videos",
        "out": tmp_path / "streams" / "actnet.json",
    }
