"""A user's table becomes a stream."""

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.csv_table import import_csv
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.importers.benchmark_files import captions, touch, write_rows

HEADER = ("video", "caption", "category", "split", "task")


def test_a_table_becomes_a_stream(tmp_path):
    table = write_rows(
        tmp_path / "own.csv",
        (*HEADER, "start", "end", "comment"),
        ("x", "a dog", "dogs", "train", "10", "", "", "hi"),
        ("x", "one dog", "dogs", "train", "10", "", "", ""),
        ("sub/y.mkv", "a hound", "dogs", "test", "10", "1", "2.5", ""),
        ("z", "first", "cats", "train", "2", "0", "1", ""),
        ("z", "second", "cats", "test", "2", "1", "2", ""),
    )
    touch(tmp_path / "videos" / "x.mov", tmp_path / "videos" / "sub" / "y.mkv")
    _, report = import_csv(table, tmp_path / "videos", tmp_path / "own.json")
    stream = load_stream(tmp_path / "own.json", tmp_path)
    assert stream.name == "own"
    assert [task.categories for task in stream.tasks] == [("cats",), ("dogs",)]  # task 2 before task 10
    assert captions(stream, "train") == {"z@0-1": ("first",), "x": ("a dog", "one dog")}
    assert [item.segment for task in (0, 1) for item in stream.items(task, "test")] == [(1.0, 2.0), (1.0, 2.5)]
    assert "2 of 4 videos are missing" in report


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("x", "a", "c", "trainset", "1", "", ""), "line 2: split is 'trainset'. Did you mean 'train'"),
        (("x", "", "c", "train", "1", "", ""), "line 2: caption is empty"),
        (("x", "a", "c", "train", "1", "0", ""), "line 2: start '0' and end '' are not two numbers"),
        (("x", "a", "c", "train", "1", "a", "b"), "are not two numbers"),
        (("x", "a", "c", "train", "1", "2", "1"), "segment: is not a time segment"),
        (("x", "a", "c", "train", "1", "nan", "1"), "segment: is not a time segment"),
        (("../x", "a", "c", "train", "1", "", ""), "is outside the videos folder"),
        (("x", "a", "c", "train", "1", "", ""), "task_01: test: has no videos"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row, message):
    table = write_rows(tmp_path / "own.csv", (*HEADER, "start", "end"), row)
    with pytest.raises(ConfigError, match=message):
        import_csv(table, tmp_path, None)


def test_a_video_in_two_splits_of_a_table_is_refused(tmp_path):
    table = write_rows(tmp_path / "own.csv", HEADER, ("x", "a", "c", "train", "1"), ("x", "a", "c", "test", "1"))
    with pytest.raises(ConfigError, match="line 3: 'x' is also in '1 train c'"):
        import_csv(table, tmp_path, None)
