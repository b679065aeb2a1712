"""A user's table becomes a stream."""

import json

from ctvr.orchestrator.importers.csv_table import import_csv
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.importers.benchmark_files import captions, touch, write_rows
from tests.refusing import missing_from

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
    assert "task_01 is '2', task_02 is '10'" in report


def test_json_lines_are_a_table_and_tasks_keep_the_order_of_their_names(tmp_path):
    rows: list[dict[str, object]] = [
        {"video": " a", "caption": ["x", "y"], "split": "train", "task": 1, "start": None},
        {"caption": "z [b]", "video": "b", "split": "test", "task": 1, "start": 0.5, "end": 2, "more": {}},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    touch(tmp_path / " a.mp4", tmp_path / "b.mp4")
    manifest, report = import_csv(tmp_path / "t.jsonl", tmp_path, None)
    (task,) = manifest["tasks"]
    found = [(item["path"], item["captions"], item["segment"]) for item in (*task["train"], *task["test"])]
    assert found == [(" a.mp4", ["x", "y"], None), ("b.mp4", ["z [b]"], [0.5, 2.0])]
    assert "missing" not in report
    assert "Tasks:" not in report


def test_names_with_our_numbers_are_not_explained(tmp_path):
    rows = [(f"x{i}{split}", "a", "c", split, f"task_0{i}") for i in (1, 2) for split in ("train", "test")]
    table = write_rows(tmp_path / "own.csv", HEADER, *rows)
    touch(*(tmp_path / "videos" / f"{row[0]}.mov" for row in rows))
    assert "Tasks:" not in import_csv(table, tmp_path / "videos", tmp_path / "own.json")[1]


def test_the_name_of_a_task_may_have_more_digits_than_int_reads(tmp_path):
    rows = (("x", "a", "c", "train", "9" * 5000), ("y", "b", "c", "test", "9" * 5000))
    table = write_rows(tmp_path / "own.csv", HEADER, *rows)
    touch(tmp_path / "videos" / "x.mov", tmp_path / "videos" / "y.mov")
    _, report = import_csv(table, tmp_path / "videos", tmp_path / "own.json")
    assert "task_01 is '999" in report


def test_a_name_of_files_in_two_folders_is_reported_and_a_path_is_not(tmp_path):
    touch(tmp_path / "a" / "1.mp4", tmp_path / "b" / "1.mp4", tmp_path / "b" / "1.webm", tmp_path / "2.mp4")
    rows = [("1", "a dog", "c", "train", "1"), ("2", "a cat", "c", "test", "1")]
    table = write_rows(tmp_path / "t.csv", HEADER, *rows)
    manifest, report = import_csv(table, tmp_path, None)
    assert manifest["tasks"][0]["train"][0]["path"] == "a/1.mp4"
    assert missing_from(report, "a/1.mp4", "b/1.mp4") == []
    write_rows(table, HEADER, ("b/1.mp4", *rows[0][1:]), rows[1])
    manifest, report = import_csv(table, tmp_path, None)
    assert manifest["tasks"][0]["train"][0]["path"] == "b/1.mp4"
    assert "several folders" not in report
