"""Foreign folders in the form of VideoFolder become streams; an error in one is reported in one line."""

import json
from pathlib import Path

import pytest

from ctvr.orchestrator.importers.hf_dataset import import_dataset
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses


def write(folder: Path, *rows: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        if "file_name" in row:
            (folder / str(row["file_name"])).touch()
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


def one(name: str, task: str = "10", **more: object) -> dict[str, object]:
    return {"file_name": f"{name}.mp4", "text": f"a {name}", "task": task, **more}


def test_another_ones_folder_is_a_stream_in_the_order_of_its_tasks(tmp_path):
    folder = write(tmp_path / "set/train", one("a"), one("b", "9"), one("e", "9", start=1, end=2.5, category="pets"))
    write(folder / "test", one("c"), one("d", "9"))
    (folder / "val").mkdir()
    (folder / "val/metadata.csv").write_text("file_name,caption,task\nf.mp4,an f,9\ng.mp4,a g,10\n")
    manifest, report = import_dataset(folder, tmp_path / "mine.json", "mine")
    stream = load_stream(tmp_path / "mine.json", tmp_path)
    assert [task.name for task in stream.tasks] == ["9", "10"]
    assert [(item.video, item.captions, item.segment) for item in stream.tasks[0].train] == [
        ("b", ("a b",), None),
        ("e", ("a e",), (1.0, 2.5)),
    ]
    assert stream.has_val
    assert stream.tasks[0].val[0].captions == ("an f",)
    assert stream.tasks[0].categories == ("9", "pets")
    assert manifest["name"] == "mine"
    assert "digest" in report


def test_a_folder_that_is_none_or_is_empty_is_refused(tmp_path):
    with refuses(where="folder"):
        import_dataset(tmp_path / "gone", None)
    (tmp_path / "empty").mkdir()
    with refuses("train/metadata.jsonl"):
        import_dataset(tmp_path / "empty", None)


def test_a_video_lists_relevant_videos_for_every_caption_or_for_none(tmp_path):
    rows = [one("a"), {**one("a"), "relevant": [["a"]]}]
    for number, order in enumerate((rows, rows[::-1])):
        folder = write(tmp_path / str(number) / "train", *order)
        with refuses("relevant", "a.mp4", remedy=True):
            import_dataset(folder, tmp_path / "out.json")


def test_names_in_parquet_start_from_its_folder(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for split, names in (("train", ["a/0.mp4", "b/1.mp4"]), ("test", ["a/2.mp4", "0/3.mp4"])):
        for name in names[:1]:
            (tmp_path / split / name).parent.mkdir(parents=True)
            (tmp_path / split / name).touch()
        (tmp_path / split / "b").mkdir(exist_ok=True)
        table = arrow.table({"file_name": names, "caption": [f"a {name}" for name in names]})
        parquet.write_table(table, tmp_path / split / "metadata.parquet")
    (tmp_path / "test/b/1.mp4").touch()  # another video, of the other split
    manifest, _ = import_dataset(tmp_path, None)
    (task,) = manifest["tasks"]
    paths = {split: [(item["path"], *item["captions"]) for item in task[split]] for split in ("train", "test")}
    assert paths == {
        "train": [("train/a/0.mp4", "a a/0.mp4"), ("train/b/1.mp4", "a b/1.mp4")],
        "test": [("test/a/2.mp4", "a a/2.mp4"), ("test/0/3.mp4", "a 0/3.mp4")],
    }


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def videos_of(folder: Path) -> dict[str, list[tuple[str, str]]]:
    (task,) = import_dataset(folder, None)[0]["tasks"]
    return {split: [(item["path"], *item["captions"]) for item in task[split]] for split in ("train", "val", "test")}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("has_column", [False, True])
def test_metadata_in_the_folder_itself_describes_all_splits(tmp_path, form, has_column):
    """The split is the video's folder or the column `split`, whatever the video's own name says."""
    train, test = ("x/a.mp4", "x/b.mp4") if has_column else ("train/a.mp4", "test/train_b.mp4")
    touch(tmp_path, train, test)
    rows = [{"file_name": train, "text": "a dog"}, {"file_name": f"./{test}", "text": "a cat"}]
    if has_column:
        rows = [row | {"split": split} for row, split in zip(rows, ("Train", "test"))]
    if form == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "metadata.parquet")
    elif form == "jsonl":
        (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        (tmp_path / "metadata.csv").write_text("".join(";".join(line) + "\n" for line in lines))
    assert videos_of(tmp_path) == {"train": [(train, "a dog")], "val": [], "test": [(test, "a cat")]}


def test_split_folders_and_columns_may_have_synonyms(tmp_path):
    for place, name in (("Training", "a"), ("dev", "b"), ("eval", "c")):
        touch(tmp_path, f"{place}/{name}.mp4")
        (tmp_path / place / "metadata.csv").write_text(f"video_file_name,text\n{name}.mp4,a {name}\n")
    assert videos_of(tmp_path) == {
        "train": [("Training/a.mp4", "a a")],
        "val": [("dev/b.mp4", "a b")],
        "test": [("eval/c.mp4", "a c")],
    }


def test_videos_without_a_row_are_counted(tmp_path):
    folder = write(tmp_path / "set/train", one("a"))
    write(folder / "test", one("b"))
    touch(folder, "train/z.mp4", "train/.z.mp4", "notes.txt")
    _, report = import_dataset(folder, None)
    assert "1 of 3 videos have no row in the metadata and are left out, first train/z.mp4." in report
    assert "notes.txt" in report.splitlines()[-1]


def test_numbers_in_parquet_name_videos_and_a_pointer_is_none(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    touch(tmp_path, "12.mp4", "13.mp4")
    for split, number in (("train", 12), ("test", 13)):
        parquet.write_table(arrow.table({"video_id": [number], "text": ["x"]}), tmp_path / f"{split}.parquet")
    assert videos_of(tmp_path) == {"train": [("12.mp4", "x")], "val": [], "test": [("13.mp4", "x")]}
    (tmp_path / "train.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    with refuses(where="train.parquet"):
        import_dataset(tmp_path, None)


def test_files_of_one_name_are_two_videos_unless_their_bytes_are_equal(tmp_path):
    touch(tmp_path, "train/c/1.mp4", "train/d/1.mp4", "test/c/1.mp4", "test/c/2.mp4")
    for split, names in (("train", "cd"), ("test", "c")):
        rows = [json.dumps({"file_name": f"{name}/1.mp4", "text": "x"}) for name in names]
        (tmp_path / split / "metadata.jsonl").write_text("\n".join(rows))
        (tmp_path / split / "c/1.mp4").write_text(split)
    (task,) = import_dataset(tmp_path, None)[0]["tasks"]
    ids = [item["video"] for split in ("train", "test") for item in task[split]]
    assert ids == ["train/c/1", "train/d/1", "test/c/1"]
    (tmp_path / "test/c/1.mp4").write_text("train")
    with refuses("train/c/1.mp4", "test/c/1.mp4", remedy=True):
        import_dataset(tmp_path, None)
