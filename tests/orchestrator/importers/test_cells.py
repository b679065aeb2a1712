"""Tables of any program are read with complete captions; a missing or unreadable part is reported in one line."""

import csv
import io
import json
import os
import unicodedata
from pathlib import Path

import pytest

from ctvr.orchestrator.importers.builder import VideoFolder
from ctvr.orchestrator.importers.captions import read_msrvtt_captions
from ctvr.orchestrator.importers.cells import in_order, segment_of
from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.importers.csv_table import import_csv
from ctvr.orchestrator.importers.hf_dataset import import_dataset
from ctvr.orchestrator.streams.captions import captions_of, cell_of
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.videos import VideoPlaces
from ctvr.orchestrator.video.endings import VIDEO_SUFFIXES
from tests.refusing import refuses

HEADER = "video,caption,category,split,task\n"
ODD = [
    "a\u2028b",
    "a\x85b",
    "a\x0bb",
    "a\x0cb",
    "a\nb",
    "a\r\nb",
    " a ",
    "nan",
    "['a', 'b']",
    '["a"]',
    "[x]",
    'a "b", c',
    "a\0b",
]


def captions(tmp_path: Path, content: bytes) -> list[list[str]]:
    (tmp_path / "t.csv").write_bytes(content)
    manifest, _ = import_csv(tmp_path / "t.csv", tmp_path, None)
    return [item["captions"] for item in manifest["tasks"][0]["train"]]


@pytest.mark.parametrize("caption", ODD)
def test_any_caption_comes_back_from_a_cell_and_from_json_lines(tmp_path, caption):
    assert captions_of(cell_of(caption)) == [caption]
    text = io.StringIO()
    csv.writer(text).writerows([["v0", cell_of(caption), "c", "train", "1"], ["v1", "x", "c", "test", "1"]])
    assert captions(tmp_path, (HEADER + text.getvalue()).encode()) == [[caption]]
    for split, told in (("train", [caption]), ("test", ["x"])):
        (tmp_path / "set" / split).mkdir(parents=True)
        line = json.dumps({"file_name": f"{split}.mp4", "captions": told}, ensure_ascii=False)
        (tmp_path / "set" / split / "metadata.jsonl").write_text(f"\n{line}\n\n", encoding="utf-8", newline="")
    manifest, _ = import_dataset(tmp_path / "set", None)
    assert manifest["tasks"][0]["train"][0]["captions"] == [caption]


@pytest.mark.parametrize("cell", ["['a dog', 'a cat']", '["a dog", "a cat"]', "['a dog' 'a cat']"])
def test_a_list_in_a_cell_is_a_list_of_captions(cell):
    assert captions_of(cell) == ["a dog", "a cat"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_and_marks_of_other_programs_are_read(tmp_path, encoding, separator):
    table = (HEADER + "v0,a dog,c,train,1\nv1,a cat,c,test,1\n,,,,\n").replace(",", separator)
    assert captions(tmp_path, table.encode(encoding)) == [["a dog"]]


def test_tasks_stand_in_the_order_of_their_numbers_however_long(tmp_path):
    assert in_order(["1.0", "10.0", "2.0"]) == ["1.0", "2.0", "10.0"]
    assert in_order(["9" * 5000, "1"]) == ["1", "9" * 5000]
    assert in_order(["b", "a"]) == ["b", "a"]


@pytest.mark.parametrize(("written", "stored"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("ending", ["mp4", "WMV"])
def test_a_name_is_found_however_its_accents_are_coded(tmp_path, written, stored, ending):
    name = unicodedata.normalize(stored, f"caf\u00e9.{ending}")
    (tmp_path / name).touch()
    (tmp_path / "v1.mp4").touch()
    asked = unicodedata.normalize(written, "caf\u00e9")
    (tmp_path / "t.csv").write_text(f"{HEADER}{asked},a dog,c,train,1\nv1,a cat,c,test,1\n", encoding="utf-8")
    manifest, _ = import_csv(tmp_path / "t.csv", tmp_path, None)
    (item,) = manifest["tasks"][0]["train"]
    assert (item["video"], item["path"]) == (asked, name)
    assert VideoPlaces(tmp_path).find(f"{asked}.mp4") == str(tmp_path / name)


def test_lines_are_captions_and_equal_names_get_path_ids(tmp_path):
    rows = {"train": ["a/clip.mp4", "b/clip.mp4", "a/clip.mp4"], "test": ["z.mp4"]}
    for split, names in rows.items():
        (tmp_path / split).mkdir()
        lines = "".join(f"{name},caption {n}\n" for n, name in enumerate(names))
        (tmp_path / split / "metadata.csv").write_text(f"file_name,caption\n{lines}")
    manifest, _ = import_dataset(tmp_path, None)
    found = {item["video"]: item["captions"] for item in manifest["tasks"][0]["train"]}
    assert found == {"a/clip": ["caption 0", "caption 2"], "b/clip": ["caption 1"]}


def test_videos_within_parquet_are_written_once(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "hub").mkdir()
    for split, names in {"train": ["a", "a"], "test": ["b"]}.items():
        videos = [{"bytes": name.encode(), "path": f"{name}.mp4"} for name in names]
        table = arrow.table({"video": videos, "caption": [f"{n} of {name}" for n, name in enumerate(names)]})
        parquet.write_table(table, tmp_path / "hub" / f"{split}-00000-of-00001.parquet")
    for _ in range(2):
        manifest, _ = import_dataset(tmp_path / "hub", tmp_path / "m.json")
    (item,) = manifest["tasks"][0]["train"]
    assert (item["video"], item["captions"]) == ("a", ["0 of a", "1 of a"])
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["2"]
    assert sorted(path.read_bytes() for path in (tmp_path / "m/2").iterdir()) == [b"a", b"b"]
    assert set(manifest["sources"]) == {"train-00000-of-00001.parquet", "test-00000-of-00001.parquet"}


def test_a_fifo_and_a_device_are_no_manifest(tmp_path):
    os.mkfifo(tmp_path / "m.json")
    for path in (tmp_path / "m.json", Path("/dev/zero")):
        with refuses(path.name):
            read_json(path)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("['a dog', nan]", "is not a list of texts"),
        ('["a dog", null]', "is not a list of texts"),
        ("{'en': 'a dog'}", "is not a list of texts"),
        ("\u200b\ufeff", "is empty"),
        ("[music]", None),
        ("('a dog') barks (loudly)", None),
    ],
)
def test_a_malformed_list_in_a_cell_is_not_a_caption(cell, reason):
    if reason is None:
        assert captions_of(cell) == [cell]
    else:
        with pytest.raises(ValueError, match=reason):
            captions_of(cell)


def test_a_tuple_in_a_cell_is_a_list_of_captions():
    assert captions_of("('a dog', \"a cat\",)") == ["a dog", "a cat"]


def test_splits_may_have_the_names_that_other_programs_give_them(tmp_path):
    (tmp_path / "t.csv").write_text(HEADER + "v0,a,c,Training,1\nv1,b,c,dev,1\nv2,b,c,TEST,1\n")
    manifest, _ = import_csv(tmp_path / "t.csv", tmp_path, None)
    found = {split: [item["video"] for item in manifest["tasks"][0][split]] for split in ("train", "val", "test")}
    assert found == {"train": ["v0"], "val": ["v1"], "test": ["v2"]}


@pytest.mark.parametrize(
    ("cells", "segment"),
    [
        (("", ""), None),
        ((None, None), None),
        (("1.5", 2), (1.5, 2.0)),
        (("0:05", "1:30"), (5.0, 90.0)),
        (("00:00:05", "01:00:00.250"), (5.0, 3600.25)),
        (("00:00:05,5", "90:00"), (5.5, 5400.0)),
        (("0 days 00:00:05", "0 days 00:00:07.500000"), (5.0, 7.5)),  # of pandas
    ],
)
def test_times_are_seconds_or_those_of_a_clock(cells, segment):
    assert segment_of("t.csv: line 2", *cells) == segment


@pytest.mark.parametrize(
    "cell", ["", "1:75", "1:60:00", "1:2:3:4", "1:", ":30", "-0:05", "1_0", "0,5", "00:00:10:12", "\u0661:30"]
)
def test_no_other_time_is_guessed(cell):
    with refuses("t.csv", "2", "hh:mm:ss"):
        segment_of("t.csv: line 2", cell, "1:30")


def test_whole_numbers_are_ids_of_msrvtt(tmp_path):
    """Some copies of MSR-VTT's files and features have 7010 for video7010."""
    (tmp_path / "captions.json").write_text(json.dumps({"annotations": [{"image_id": 7010, "caption": "a dog"}]}))
    assert read_msrvtt_captions([tmp_path / "captions.json"]) == {"video7010": ["a dog"]}
    listed = [{"video_id": 7011, "caption": ["a cat", "a pet"]}, {"video_id": "video7012", "caption": "a fish"}]
    (tmp_path / "list.json").write_text(json.dumps(listed))
    assert read_msrvtt_captions([tmp_path / "list.json"]) == {"video7011": ["a cat", "a pet"], "video7012": ["a fish"]}
    for name in ("video7010.mp4", "7011.mp4", "video7011.mp4"):
        (tmp_path / name).touch()
    find = VideoFolder(tmp_path).find
    assert [find(name)[0] for name in ("7010", "7011", "7012")] == ["video7010.mp4", "7011.mp4", "7012.mp4"]


def test_captions_are_corrected_only_if_asked(tmp_path):
    for name in ("v0.mp4", "v1.mp4"):
        (tmp_path / name).touch()
    rows = "v0,a dog &amp; a cat,c,train,1\nv1,don\u00e2\u20ac\u2122t,c,test,1\n"
    (tmp_path / "t.csv").write_text(HEADER + rows)
    files = {"table": str(tmp_path / "t.csv")}
    kept = import_stream("csv", files, tmp_path, tmp_path)
    assert "1 caption contains text in a wrong encoding" in kept
    assert load_stream("t", tmp_path).tasks[0].test[0].captions == ("don\u00e2\u20ac\u2122t",)
    corrected = import_stream("csv", files, tmp_path, tmp_path, correct=True)
    stream = load_stream("t", tmp_path)
    assert stream.tasks[0].train[0].captions == ("a dog & a cat",)
    assert stream.tasks[0].test[0].captions == ("don\u2019t",)
    assert f"digest {stream.digest}" in corrected
    assert "2 captions were corrected." in corrected
    assert "wrong encoding" not in corrected
    with refuses(where="--correct-captions"):
        import_stream("features", files | {"features": "x.npz"}, None, tmp_path, correct=True)


@pytest.mark.parametrize("suffix", [*VIDEO_SUFFIXES, "."])
def test_a_video_with_any_ending_is_found_below_the_folder(tmp_path, suffix):
    """DiDeMo's ids contain the endings of files, and some end with a dot."""
    (tmp_path / "videos/a").mkdir(parents=True)
    (tmp_path / f"videos/a/x{suffix}").touch()
    find = VideoFolder(tmp_path).find
    assert find(f"x{suffix}") == (f"videos/a/x{suffix}", False)
    if suffix != ".":
        assert find("x")[0] == f"videos/a/x{suffix}"


def test_columns_that_may_be_segments_are_named_and_not_read(tmp_path):
    rows = "start time,end_time,video,caption,split,task\n1,2,a,x,train,1\n1,2,b,x,test,1\n"
    (tmp_path / "t.csv").write_text(rows)
    manifest, report = import_csv(tmp_path / "t.csv", tmp_path, None)
    assert manifest["tasks"][0]["train"][0]["segment"] is None
    assert report.endswith(
        "Not read: start time, end_time. If they are segments of the videos, rename the columns to start and end."
    )
    (tmp_path / "t.csv").write_text(rows.replace("start time,end_time", "start,end"))
    assert "Not read" not in import_csv(tmp_path / "t.csv", tmp_path, None)[1]
