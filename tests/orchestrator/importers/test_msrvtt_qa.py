"""The files of MSRVTT-QA become a stream of questions that contains each of them once, with its video."""

import json
from pathlib import Path

import pytest

from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses


def write(folder: Path, **changes: object) -> Path:
    """Write two videos of every category, one of them for the test; each has two questions, the first of them twice."""
    folder.mkdir()
    for split, first in (("train", 0), ("val", 100), ("test", 200)):
        rows = []
        for category in range(20):
            row = {"category_id": category, "id": category, "video_id": first + category}
            rows += [{**row, "question": "what is it?", "answer": f"thing {category}"}] * 2
            rows += [{**row, "question": "who sings?", "answer": "man"}]
        rows[0] = {**rows[0], **(changes if split == "train" else {})}
        (folder / f"{split}_qa.json").write_text(json.dumps(rows))
    return folder


def imported(tmp_path: Path, folder: Path, **words: str) -> str:
    (tmp_path / "videos").mkdir(exist_ok=True)
    return import_stream("msrvtt-qa", {"folder": str(folder), **words}, tmp_path / "videos", tmp_path)


def test_every_question_is_in_its_split_once(tmp_path):
    report = imported(tmp_path, write(tmp_path / "qa"))
    assert "next: ctvr run --method umt_qa --stream msrvtt-qa" in report
    assert "backbone.weights=FILE backbone.vocabulary=vocab.txt" in report
    stream = load_stream("msrvtt-qa", tmp_path)
    (task,) = stream.tasks
    assert (stream.domain, stream.has_val, stream.paper) == ("questions", True, None)  # 20 videos are not the published
    assert [len(items) for items in (task.train, task.val, task.test)] == [20, 20, 20]
    item = task.test[3]
    assert (item.video, item.category, item.captions) == ("video203", "category 3", ("what is it?", "who sings?"))
    assert item.answers == ("thing 3", "man")
    assert stream.settings == {"data.image_size": 224, "backbone.name": "UMT-B-16", "preset": "paper"}


def test_categories_are_cut_into_equal_tasks(tmp_path):
    imported(tmp_path, write(tmp_path / "qa"), tasks="5")
    stream = load_stream("msrvtt-qa-5", tmp_path)
    assert [task.categories[0] for task in stream.tasks] == [f"category {n}" for n in (0, 4, 8, 12, 16)]
    assert all(len(task.train) == len(task.test) == 4 for task in stream.tasks)


@pytest.mark.parametrize(
    ("words", "fields", "values"),
    [
        ({"tasks": "3"}, {}, "3 20"),
        ({}, {"answer": 7}, "train_qa.json 0 '7'"),
        ({}, {"video_id": "abc_1_2"}, "0 video_id 'abc_1_2'"),
        ({}, {"answer": ["man", "dog"]}, "0 answer 2"),
        ({}, {"category_id": 20}, "0 category_id 20 19"),
        ({}, {"category_id": 1}, "0 1"),
    ],
)
def test_a_deviation_from_the_published_files_is_one_line(tmp_path, words, fields, values):
    with refuses(*values.split()):
        imported(tmp_path, write(tmp_path / "qa", **fields), **words)


def test_copies_of_other_projects_are_the_same_stream(tmp_path):
    """Their files are JSON lines, have other names and IDs, and lists of one answer; some lack val_qa.json."""
    folder = write(tmp_path / "qa")
    imported(tmp_path, folder)
    whole = load_stream("msrvtt-qa", tmp_path)
    for split, name in (("train", "msrvtt_qa_train.jsonl"), ("val", "val.jsonl"), ("test", "test_qa.json")):
        rows = json.loads((folder / f"{split}_qa.json").read_text())
        (folder / f"{split}_qa.json").unlink()
        rows = [row | {"video_id": f"video{row['video_id']}", "answer": [row["answer"]]} for row in rows]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported(tmp_path, folder)
    assert load_stream("msrvtt-qa", tmp_path).digest == whole.digest
    (folder / "val.jsonl").rename(folder / "answers.jsonl")
    assert "answers.jsonl" in imported(tmp_path, folder)
    assert not load_stream("msrvtt-qa", tmp_path).has_val


def test_copies_without_categories_are_one_task(tmp_path):
    folder = tmp_path / "qa"
    folder.mkdir()
    for split, video in (("train", "video1.mp4"), ("test", "video2.mp4")):
        (folder / f"{split}_qa.json").write_text(json.dumps([{"video": video, "question": "who?", "answer": "man"}]))
    imported(tmp_path, folder)
    (task,) = load_stream("msrvtt-qa", tmp_path).tasks
    assert [item.video for item in (*task.train, *task.test)] == ["video1", "video2"]
    with refuses("category_id", where="train_qa.json: entry 0", remedy=True):
        imported(tmp_path, folder, tasks="5")


def test_a_file_that_is_missing_is_one_line(tmp_path):
    folder = write(tmp_path / "qa")
    (folder / "test_qa.json").unlink()
    with refuses("test_qa.json", where="qa", remedy=True):
        imported(tmp_path, folder)
