"""A user's table becomes a stream."""

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
