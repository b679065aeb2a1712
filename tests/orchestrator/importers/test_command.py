"""The benchmarks' own files become manifests that load, with the counts the papers print."""

import collections
import csv
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.command import KINDS, import_stream
from ctvr.orchestrator.importers.csv_table import import_csv
from ctvr.orchestrator.importers.ctvr import hold_out, import_actnet, import_msrvtt, read_split
from ctvr.orchestrator.importers.cvlm import PUBLISHED, import_cvlm
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Stream

SPLIT = {
    "train": {1: {3: ["video0", "video1"]}, 2: {0: ["video2"]}},
    "val": {1: {3: ["video7010"]}, 2: {0: ["video7011", "video7012"]}},
}
SENTENCES = [
    ("video0", " a man sings "),
    ("video1", "a dog"),
    ("video0", "someone sings"),
    ("video2", "a car"),
    ("video2", " "),
]


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_rows(path: Path, *rows: tuple[Any, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def as_sentences(rows: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "videos": [{"video_id": video, "category": 3, "split": "train"} for video in dict(rows)],
        "sentences": [{"caption": text, "video_id": video, "sen_id": n} for n, (video, text) in enumerate(rows)],
    }


def as_coco(rows: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "images": [{"id": video} for video in dict(rows)],
        "annotations": [{"image_id": video, "caption": text, "id": n} for n, (video, text) in enumerate(rows)],
    }


def captions(stream: Stream, split: str) -> dict[str, tuple[str, ...]]:
    return {item.video: item.captions for task in range(len(stream.tasks)) for item in stream.items(task, split)}


# ---------------------------------------------------------------------------------------------- MSR-VTT


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


def test_an_msrvtt_manifest_loads_as_it_was_written(msrvtt: dict[str, Path], tmp_path: Path) -> None:
    manifest, report = import_msrvtt(**msrvtt)
    stream = load_stream("msrvtt-2", tmp_path)
    assert stream.protocol == "ctvr"
    assert not stream.has_val
    assert stream.categories == ("3", "0")
    assert captions(stream, "train") == {
        "video0": ("a man sings", "someone sings"),
        "video1": ("a dog",),
        "video2": ("a car",),
    }
    assert captions(stream, "test") == {"video7010": ("a boy",), "video7011": ("a cat",), "video7012": ("a bus",)}
    assert stream.settings == manifest["settings"]
    assert {"data.num_frames": 12, "data.batch_size": 8, "optim.epochs": 20}.items() <= stream.settings.items()
    assert stream.digest in report
    assert "5 of 6 videos are missing" in report
    assert "task_01: 1 category; train 2 videos, 3 captions; test 1 videos, 1 captions" in report


def test_a_part_of_the_benchmark_is_compared_with_no_paper(msrvtt: dict[str, Path]) -> None:
    manifest, report = import_msrvtt(**msrvtt)
    assert manifest["paper"] is None
    assert "Not the published stream, which has train 320, test 2990" in report


def test_all_three_annotation_schemas_give_the_same_stream(msrvtt: dict[str, Path], tmp_path: Path) -> None:
    whole, _ = import_msrvtt(**msrvtt)
    two = [SENTENCES[:2] + SENTENCES[2:3], SENTENCES[3:]]
    parts = [
        write_json(tmp_path / name, as_sentences(rows))
        for name, rows in zip(("train_val_videodatainfo.json", "test_videodatainfo.json"), two, strict=True)
    ]
    coco = write_json(tmp_path / "MSR_VTT.json", as_coco(SENTENCES))
    for files in (parts, coco, [msrvtt["annotations"], coco]):  # the last overlap: captions are not doubled
        manifest, _ = import_msrvtt(**{**msrvtt, "annotations": files})  # type: ignore[arg-type]
        assert manifest["tasks"] == whole["tasks"]


def test_numbers_for_ids_give_the_same_stream(msrvtt: dict[str, Path]) -> None:
    """Some copies of the files have 7010 for video7010."""
    whole, _ = import_msrvtt(**msrvtt)
    sentences = [(int(video.removeprefix("video")), text) for video, text in SENTENCES]
    write_json(msrvtt["annotations"], as_sentences(sentences))  # type: ignore[arg-type]
    table = msrvtt["test_csv"]
    table.write_text(table.read_text().replace(",video", ",").replace(",_id", ",video_id"))
    numbers, _ = import_msrvtt(**msrvtt)
    assert numbers["tasks"] == whole["tasks"]


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("video0.mp4", "video0.mp4"),
        ("TrainValVideo/video0.webm", "TrainValVideo/video0.webm"),
        ("videos/all/video0.avi", "videos/all/video0.avi"),
        ("MSRVTT_Frames/video0/frame_1_idx_0004.png", "MSRVTT_Frames/video0"),
    ],
)
def test_videos_are_found_wherever_the_release_put_them(
    msrvtt: dict[str, Path], tmp_path: Path, place: str, found: str
) -> None:
    touch(tmp_path / "disk" / place)
    manifest, report = import_msrvtt(**{**msrvtt, "videos": tmp_path / "disk"})
    assert manifest["tasks"][0]["train"][0]["path"] == found
    assert "5 of 6 videos are missing" in report


def test_videos_below_the_manifest_move_with_it(msrvtt: dict[str, Path], tmp_path: Path) -> None:
    manifest, _ = import_msrvtt(**{**msrvtt, "out": tmp_path / "m.json"})
    assert manifest["videos"] == "videos"
    manifest, _ = import_msrvtt(**msrvtt)
    assert manifest["videos"] == str(tmp_path / "videos")


def test_a_video_without_caption_is_named_with_its_file(msrvtt: dict[str, Path]) -> None:
    write_json(msrvtt["annotations"], as_sentences(SENTENCES[:3]))
    with pytest.raises(ConfigError, match=r"MSRVTT_data\.json: no caption for 1 of the split's 3 train .*'video2'"):
        import_msrvtt(**msrvtt)
    assert not msrvtt["out"].exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"videos": []}, "neither 'sentences' nor 'annotations'"),
        ([1], "neither 'sentences' nor 'annotations'"),
        ({"sentences": [{"caption": "x"}]}, r"sentences\[0\] lacks 'video_id'"),
        ({"sentences": ["x"]}, r"sentences\[0\] lacks"),
        ({"annotations": [{"image_id": "video0", "caption": 3}]}, r"annotations\[0\] lacks 'image_id' or 'caption'"),
    ],
)
def test_wrong_annotations_are_refused_in_one_line(msrvtt: dict[str, Path], content: Any, message: str) -> None:
    write_json(msrvtt["annotations"], content)
    with pytest.raises(ConfigError, match=message):
        import_msrvtt(**msrvtt)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key,video,sentence\n1,2,3\n", "line 1: no column 'video_id'. Did you mean 'video'"),
        ("", "is empty. Write a header with the columns video_id, sentence"),
        ("video_id,sentence\nvideo7010,\n", "line 2: sentence is empty"),
        ("video_id,sentence\nvideo7010,a\nvideo7010,b\n", "line 3: a second caption of 'video7010'"),
        ('video_id,sentence\nvideo7010,"a\n', "not a .csv file"),
        ("video_id,sentence\nvideo1,\udcff\n", "not UTF-8"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(msrvtt: dict[str, Path], text: str, message: str) -> None:
    msrvtt["test_csv"].write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError, match=message) as error:
        import_msrvtt(**msrvtt)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ([], "is not a CTVR split"),
        ({"train": {}, "test": {}}, "is not a CTVR split"),
        ({"train": {}, "val": {}}, r"train: the tasks are not numbered 1\.\.T"),
        ({"train": {2: {}}, "val": {2: {}}}, "not numbered"),
        ({"train": {1: ["a"]}, "val": {1: {}}}, "task 1 is not category -> list of ids"),
        ({"train": {1: {"a": [1]}}, "val": {1: {"a": ["b"]}}}, "contains a value that is not an id"),
        ({"train": {1: {"a": ["x"]}}, "val": {1: {"b": ["y"]}}}, "task 1: train and val list other categories"),
        ({"train": {1: {"a": []}}, "val": {1: {"a": []}, 2: {}}}, "different numbers of tasks"),
    ],
)
def test_a_pickle_that_is_no_split_is_refused(tmp_path: Path, split: Any, message: str) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(split))
    with pytest.raises(ConfigError, match=message):
        read_split(tmp_path / "x.pkl")


def test_a_small_pickle_cannot_ask_for_endless_work(tmp_path: Path) -> None:
    ids = ["v"] * 1_000
    category = dict.fromkeys(map(str, range(1_000)), ids)
    tasks = dict.fromkeys(range(1, 1_001), category)  # 10^9 ids by repeated reference, a few kB on disk
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"train": tasks, "val": tasks}))
    with pytest.raises(ConfigError, match="more than 1000000 ids"):
        read_split(tmp_path / "x.pkl")


def test_the_manifest_is_written_whole_or_not_at_all(msrvtt: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not end in \.json"):
        import_msrvtt(**{**msrvtt, "out": tmp_path / "streams" / "x.txt"})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        import_msrvtt(**{**msrvtt, "out": tmp_path / "file" / "x.json"})
    with pytest.raises(ConfigError, match=r"videos: .*nowhere is not a folder"):
        import_msrvtt(**{**msrvtt, "videos": tmp_path / "nowhere"})
    import_msrvtt(**msrvtt)
    assert [path.name for path in msrvtt["out"].parent.iterdir()] == ["msrvtt-2.json"]


# ------------------------------------------------------------------------------------------ ActivityNet


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


def test_actnet_items_carry_their_segment(actnet: dict[str, Path], tmp_path: Path) -> None:
    import_actnet(**actnet)
    stream = load_stream("actnet", tmp_path)
    (item,) = stream.items(0, "train")
    assert (item.segment, item.captions) == ((1.0, 4.5), ("They dance.",))
    recommended = {"data.num_frames": 24, "data.batch_size": 16, "preset": "paper-actnet"}
    assert recommended.items() <= stream.settings.items()


def test_frames_that_are_cut_already_carry_no_segment(actnet: dict[str, Path], tmp_path: Path) -> None:
    touch(tmp_path / "videos" / "train" / "v_a_1" / "frame_001.png", tmp_path / "videos" / "v_b.mkv")
    manifest, report = import_actnet(**actnet)
    train, test = manifest["tasks"][0]["train"][0], manifest["tasks"][0]["test"][0]
    assert (train["video"], train["path"], train["segment"]) == ("v_a", "train/v_a_1", None)
    assert (test["path"], test["segment"]) == ("v_b.mkv", [0, 3])
    assert "all 2 videos are in place" in report


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"timestamps": [[0, 1], [1, 2]], "sentences": ["a", "b"]}, "2 sentences, the benchmark one.*train_queries"),
        ({"timestamps": [[0, 1]], "sentences": []}, "'v_a': timestamps and sentences are not two equal lists"),
        ({"timestamps": [["0", 1]], "sentences": ["a"]}, "'v_a': segment: is not a pair of numbers"),
        ({"timestamps": [[2, 1]], "sentences": ["a"]}, r"'v_a': segment: is not a time segment \(got \[2, 1\]\)"),
        ({"timestamps": [7], "sentences": ["a"]}, "'v_a': timestamps and sentences"),
        ([], "timestamps and sentences"),
        ("a paragraph", "'v_a' is not timestamps and sentences. Give ActivityNet's own train.json"),
    ],
)
def test_wrong_queries_are_refused_in_one_line(actnet: dict[str, Path], entry: Any, message: str) -> None:
    write_json(actnet["train_queries"], {"v_a": entry})
    with pytest.raises(ConfigError, match=message):
        import_actnet(**actnet)


# ------------------------------------------------------------------------------- the benchmark's own files


@pytest.mark.parametrize(("name", "train", "test"), [("MSRVTT", 320, 2990), ("ACTNET", 3200, 4910)])
def test_the_benchmarks_splits_are_those_of_the_protocol(shared: Path, name: str, train: int, test: int) -> None:
    found = []
    for num_tasks in (10, 20):
        split = read_split(shared / "data" / "splits" / f"{name}_{num_tasks}_dataset.pkl")
        assert len(split["train"]) == len(split["val"]) == num_tasks
        ids = {part: [v for task in tasks for ids in task.values() for v in ids] for part, tasks in split.items()}
        assert (len(ids["train"]), len(ids["val"])) == (train, test)
        assert len(set(ids["train"]) | set(ids["val"])) == train + test  # no video twice, none in both
        assert all(len(videos) == 16 for task in split["train"] for videos in task.values())
        found.append(({part: set(videos) for part, videos in ids.items()}, [c for t in split["train"] for c in t]))
    assert found[0][0] == found[1][0]  # the 10- and 20-task streams hold the same videos


@pytest.mark.parametrize("name", ["MSRVTT", "ACTNET"])
def test_videos_are_held_out_of_the_training_part_of_the_real_splits_alone(shared: Path, name: str) -> None:
    chosen = []
    for num_tasks in (10, 20):
        whole = read_split(shared / "data" / "splits" / f"{name}_{num_tasks}_dataset.pkl")
        split = hold_out(whole, 2, Path(name))
        assert split["val"] == whole["val"]
        for before, left, held in zip(whole["train"], split["train"], split["held"], strict=True):
            assert list(before) == list(left) == list(held)
            for category, ids in before.items():
                assert sorted(left[category] + held[category]) == sorted(ids)
                assert len(held[category]) == 2
        chosen.append({video for task in split["held"] for ids in task.values() for video in ids})
    assert chosen[0] == chosen[1]  # however many tasks there are


def test_held_out_videos_are_the_validation_split_and_tables_say_so(
    words: dict[str, str], msrvtt: dict[str, Path], tmp_path: Path
) -> None:
    more = {"train": {1: {3: ["video0", "video1"]}, 2: {0: ["video2", "video3"]}}, "val": SPLIT["val"]}
    msrvtt["split_pkl"].write_bytes(pickle.dumps(more))
    write_json(tmp_path / "MSRVTT_data.json", as_sentences([*SENTENCES, ("video3", "a van")]))
    import_stream("msrvtt", words, msrvtt["videos"], tmp_path)
    text = import_stream("msrvtt", {**words, "held_out": "1"}, msrvtt["videos"], tmp_path)
    plain, stream = load_stream("msrvtt-2", tmp_path), load_stream("msrvtt-2-val1", tmp_path)
    assert (plain.has_val, stream.has_val, stream.held_out, stream.paper) == (False, True, 1, None)
    assert captions(stream, "train") | captions(stream, "val") == captions(plain, "train")
    assert captions(stream, "test") == captions(plain, "test")
    assert all(len(task.train) == len(task.val) == 1 for task in stream.tasks)
    assert "chosen on test videos" in plain.table_caveat
    assert stream.table_caveat in text
    assert "1 training videos of every category are not trained on" in stream.table_caveat


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("1", r"held_out=1: category 0 of task 2 in .*pkl has 1 training videos.* Write held_out=0 or less"),
        ("-1", r"held_out=-1: is not a number of videos per category\. Write held_out=2"),
        ("two", r"held_out=two: is not a number"),
    ],
)
def test_held_out_videos_that_cannot_be_are_refused_in_one_line(
    words: dict[str, str], msrvtt: dict[str, Path], tmp_path: Path, word: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        import_stream("msrvtt", {**words, "held_out": word}, msrvtt["videos"], tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("num_tasks", [10, 20])
def test_the_real_actnet_imports(shared: Path, tmp_path: Path, num_tasks: int) -> None:
    files = shared / "data" / "splits"
    manifest, report = import_actnet(
        files / f"ACTNET_{num_tasks}_dataset.pkl",
        files / "train_queries.json",
        files / "val_queries.json",
        tmp_path,
        tmp_path / "streams" / f"actnet-{num_tasks}.json",
    )
    stream = load_stream(f"actnet-{num_tasks}", tmp_path)
    assert (stream.name, stream.paper) == (f"actnet-{num_tasks}",) * 2
    assert len(stream.categories) == 200
    tests = [len(task.test) for task in stream.tasks]
    assert sum(tests) == 4910
    assert tests[:3] == {10: [522, 558, 512], 20: [237, 285, 299]}[num_tasks]
    assert all(item.segment and len(item.captions) == 1 for task in stream.tasks for item in (*task.train, *task.test))
    assert not any(text != text.strip() for text in (t for c in captions(stream, "test").values() for t in c))
    assert "8110 of 8110 videos are missing" in report
    assert len(manifest["sources"]) == 3


@pytest.mark.parametrize("num_tasks", [10, 20])
def test_the_real_msrvtt_imports_with_twenty_captions_per_train_video(
    shared: Path, tmp_path: Path, num_tasks: int
) -> None:
    files = shared / "data" / "splits"
    rows = [(f"video{v}", f"caption {n} of {v}") for v in range(7010) for n in range(20)]
    import_msrvtt(
        files / f"MSRVTT_{num_tasks}_dataset.pkl",
        write_json(tmp_path / "train_val_videodatainfo.json", as_sentences(rows)),
        files / "MSRVTT_CL_validation.csv",
        tmp_path,
        tmp_path / "streams" / "m.json",
    )
    stream = load_stream("m", tmp_path)
    assert (stream.name, stream.paper) == (f"msrvtt-{num_tasks}",) * 2
    assert len(stream.categories) == 20
    assert [len(stream.pairs(task, "train")) for task in range(num_tasks)] == [6400 // num_tasks] * num_tasks
    tests = [len(task.test) for task in stream.tasks]
    assert sum(tests) == 2990
    assert tests[:3] == {10: [305, 465, 211], 20: [226, 79, 141]}[num_tasks]


# ----------------------------------------------------------------------------------------- a user's table

HEADER = ("video", "caption", "category", "split", "task")


def test_a_table_becomes_a_stream(tmp_path: Path) -> None:
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
        (("../x", "a", "c", "train", "1", "", ""), "leads out of the videos folder"),
        (("x", "a", "c", "train", "1", "", ""), "task_01: test: has no videos"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: tuple[str, ...], message: str) -> None:
    table = write_rows(tmp_path / "own.csv", (*HEADER, "start", "end"), row)
    with pytest.raises(ConfigError, match=message):
        import_csv(table, tmp_path, None)


def test_a_video_in_two_splits_of_a_table_is_refused(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "own.csv", HEADER, ("x", "a", "c", "train", "1"), ("x", "a", "c", "test", "1"))
    with pytest.raises(ConfigError, match="line 3: 'x' is also in '1 train c'"):
        import_csv(table, tmp_path, None)


# ------------------------------------------------------------------------------------------------ CVLM


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """The five data sets as published, with two or three videos each."""
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


def test_five_data_sets_become_five_tasks_in_the_papers_order(five: Path) -> None:
    manifest, report = import_cvlm(five, five / "cvlm.json")
    stream = load_stream(five / "cvlm.json", five)
    assert (stream.protocol, stream.name, stream.has_val, stream.paper) == ("cvlm", "cvlm", False, None)
    assert stream.categories == ("vatex", "activitynet", "msrvtt", "didemo", "msvd")
    assert captions(stream, "train") == {
        "vatex/same": ("one", "two"),
        "activitynet/v_a": ("First this. Then that.",),
        "msrvtt/video0": ("a man sings", "someone sings"),
        "msrvtt/video1": ("a dog",),
        "msrvtt/video2": ("a car",),
        "didemo/d1.avi": ("left right",),
        "msvd/same": ("a cat",),
    }
    assert captions(stream, "val") == {"vatex/val": ("one", "two"), "msvd/val": ("a dog",)}
    assert captions(stream, "test") == {
        "vatex/test": ("one", "two"),
        "activitynet/v_b": ("First this. Then that.",),
        "msrvtt/video9": ("a test",),
        "didemo/d2.mov": ("left right",),
        "msvd/test": ("a car", "a bus"),
    }
    assert manifest["videos"] == "."
    assert manifest["tasks"][3]["train"][0]["path"] == "didemo/videos/d1.mp4"
    assert all(item.segment is None for task in stream.tasks for item in task.train)
    assert "12 of 14 videos are missing" in report


@pytest.mark.parametrize("side", ["list", "captions"])
def test_msvd_ids_may_have_the_ending_of_a_video_on_one_side(five: Path, side: str) -> None:
    whole = import_cvlm(five, None, ["msvd"])[0]["tasks"]
    (five / "msvd" / "raw-captions.pkl").unlink()
    ending = ".avi" if side == "captions" else ""
    captions = {"same": ["a cat"], "val": ["a dog"], "test": ["a car", "a bus"]}
    write_json(five / "msvd" / "captions_msvd.json", {name + ending: texts for name, texts in captions.items()})
    if side == "list":
        for split in ("train", "val", "test"):
            file = five / "msvd" / f"{split}_list.txt"
            file.write_text(f"{file.read_text().strip()}.avi\n")
    found = import_cvlm(five, None, ["msvd"])[0]["tasks"]
    for split in ("train", "val", "test"):
        assert [item["captions"] for item in found[0][split]] == [item["captions"] for item in whole[0][split]]


@pytest.mark.parametrize("name", ["captions.txt", "captions.csv", "captions_msvd.json", "video_corpus.csv"])
def test_msvd_captions_may_be_text(five: Path, name: str) -> None:
    whole, _ = import_cvlm(five, None, ["msvd"])
    (five / "msvd" / "raw-captions.pkl").unlink()
    rows = [("same", "a cat"), ("val", "a dog"), ("test", "a car"), ("test", "a bus")]
    if name == "video_corpus.csv":  # as first published; the id of a clip has its seconds
        told = [(video, "3", "9", language, text) for video, text in rows for language in ("English", "German")]
        write_rows(five / "msvd" / name, ("VideoID", "Start", "End", "Language", "Description"), *told)
        for split in ("train", "val", "test"):
            file = five / "msvd" / f"{split}_list.txt"
            file.write_text(f"{file.read_text().strip()}_3_9\n")
        found = import_cvlm(five, None, ["msvd"])[0]["tasks"][0]
        assert [item["captions"] for item in found["test"]] == [["a car", "a bus"]]
        assert found["train"][0]["video"] == "msvd/same_3_9"
        return
    if name.endswith("csv"):
        write_rows(five / "msvd" / name, ("video_id", "caption"), *rows)
    elif name.endswith("json"):  # as X-Pool has it
        write_json(five / "msvd" / name, {"same": ["a cat"], "val": ["a dog"], "test": ["a car", "a bus"], "x": ["y"]})
    else:
        (five / "msvd" / name).write_text("\n".join(" \t"[n % 2].join(row) for n, row in enumerate(rows)))
    assert import_cvlm(five, None, ["msvd"])[0]["tasks"] == whole["tasks"]


def test_lists_of_ids_keep_the_videos_of_didemo_that_a_paper_uses(five: Path) -> None:
    entries = [{"video": f"d{n}.{end}", "description": f"text {n}"} for n, end in enumerate(("mov", "avi", "3gp"))]
    write_json(five / "didemo" / "test_data.json", entries)
    listed = five / "didemo" / "test_list.txt"
    listed.write_text("d2.3gp\n\nd0\n")  # with its ending, and without
    manifest, _ = import_cvlm(five, None, ["didemo"])
    assert [item["video"] for item in manifest["tasks"][0]["test"]] == ["didemo/d2.3gp", "didemo/d0.mov"]
    assert [item["video"] for item in manifest["tasks"][0]["train"]] == ["didemo/d1.avi"]
    for text, message in (("d0\nd7\n", "line 2: 'd7' has no caption"), ("\n", "contains no id")):
        listed.write_text(text)
        with pytest.raises(ConfigError, match=f"test_list.txt: {message}"):
            import_cvlm(five, None, ["didemo"])
    write_json(five / "didemo" / "test_data.json", [*entries, {"video": "d0.mp4", "description": "x"}])
    listed.write_text("d0\n")
    with pytest.raises(ConfigError, match="'d0' stands for d0.mov and d0.mp4"):
        import_cvlm(five, None, ["didemo"])


def test_videos_without_text_are_left_out_and_counted(five: Path) -> None:
    entries = json.loads((five / "didemo" / "train_data.json").read_text())
    write_json(five / "didemo" / "train_data.json", [*entries, {"video": "d9.avi", "description": " ", "times": []}])
    manifest, report = import_cvlm(five, None, ["didemo"])
    assert [item["video"] for item in manifest["tasks"][0]["train"]] == ["didemo/d1.avi"]
    assert "didemo: 1 train videos without caption text are left out, first 'd9.avi'." in report


def test_a_line_of_headings_is_no_clip_of_lsmdc(five: Path) -> None:
    (five / "lsmdc").mkdir()
    for name in ("LSMDC16_annos_training", "LSMDC16_challenge_1000_publictect"):
        (five / "lsmdc" / f"{name}.csv").write_text("clip\tstart\tend\tfrom\tto\tsentence\nm_1\t0\t1\t0\t1\tx\n")
    with pytest.raises(ConfigError, match="LSMDC16_annos_training.csv: line 1: 'start' is not a time"):
        import_cvlm(five, None, ["lsmdc"])


def test_two_more_data_sets_stand_alone(five: Path) -> None:
    """LSMDC's lines of six cells between tabs, and MSR-VTT in its publishers' split with all captions of its tests."""
    lines = {"annos_training": ("m_1", "m_1", "m_2"), "annos_val": ("m_3",), "challenge_1000_publictect": ("m_4",)}
    (five / "lsmdc").mkdir()
    for name, clips in lines.items():
        cells = [f"{clip}\t0\t1\t0\t1\tSOMEONE walks {n}. \n" for n, clip in enumerate(clips)]
        (five / "lsmdc" / f"LSMDC16_{name}.csv").write_text("".join(cells))
    touch(five / "lsmdc" / "avi" / "m" / "m_1.avi")
    manifest, report = import_cvlm(five, five / "lsmdc.json", ["lsmdc"])
    stream = load_stream(five / "lsmdc.json", five)
    walks = {f"lsmdc/m_{n}": (f"SOMEONE walks {m}.",) for n, m in ((2, 2), (3, 0), (4, 0))}
    assert captions(stream, "train") == {
        "lsmdc/m_1": ("SOMEONE walks 0.", "SOMEONE walks 1."),
        "lsmdc/m_2": walks["lsmdc/m_2"],
    }
    assert captions(stream, "val") == {"lsmdc/m_3": walks["lsmdc/m_3"]}
    assert captions(stream, "test") == {"lsmdc/m_4": walks["lsmdc/m_4"]}
    assert manifest["tasks"][0]["train"][0]["path"] == "lsmdc/avi/m/m_1.avi"
    assert "Not the published stream, which has test 1000" in report
    (five / "lsmdc" / "LSMDC16_annos_val.csv").write_text("m_3\t0\tno\n")
    with pytest.raises(ConfigError, match=r"LSMDC16_annos_val.csv: line 1: 3 cells, not 6"):
        import_cvlm(five, None, ["lsmdc"])

    of = {"video0": "train", "video1": "validate", "video2": "test"}
    videos = [{"video_id": video, "split": split} for video, split in of.items()]
    whole = write_json(five / "msrvtt-full" / "MSRVTT_data.json", as_sentences(SENTENCES) | {"videos": videos})
    import_cvlm(five, five / "full.json", ["msrvtt-full"])
    stream = load_stream(five / "full.json", five)
    assert set(captions(stream, "train")) == {"msrvtt-full/video0", "msrvtt-full/video1"}
    assert captions(stream, "test") == {"msrvtt-full/video2": ("a car",)}
    whole.write_text(whole.read_text().replace('"validate"', '"val"'))
    with pytest.raises(ConfigError, match=r"videos\[1\] lacks 'video_id' or its 'split'"):
        import_cvlm(five, None, ["msrvtt-full"])
    assert set(import_cvlm(five, None)[0]["sources"]) & {"LSMDC16_annos_val.csv"} == set()


def test_the_order_of_data_sets_can_be_chosen(five: Path) -> None:
    manifest, _ = import_cvlm(five, None, ["didemo", "vatex"])
    assert [task["categories"] for task in manifest["tasks"]] == [["didemo"], ["vatex"]]
    with pytest.raises(ConfigError, match=r"datasets: 'vatx' is unknown\. Did you mean 'vatex'"):
        import_cvlm(five, None, ["vatx"])


@pytest.mark.parametrize(
    ("place", "content", "message"),
    [
        ("vatex/vatex_training_v1.0.json", None, r"vatex: no file fits \*train\*\.json"),
        ("vatex/old_train.json", "[]", "both fit"),
        ("vatex/vatex_training_v1.0.json", "{}", "is not a list of videos"),
        ("vatex/vatex_training_v1.0.json", '[{"videoID": "a"}]', "entry 0 lacks 'videoID' or 'enCap'"),
        ("vatex/vatex_training_v1.0.json", '[{"videoID": "a", "enCap": [3]}]', "'a' has a caption that is not text"),
        ("activitynet/val_1.json", "[", "line 1: not JSON"),
        ("didemo/test_data.json", '[{"video": "a", "description": ["x"]}]', "entry 0 lacks 'video' or 'description'"),
        ("msvd/test_list.txt", "unknown", "1 of 1 videos have no caption, first 'unknown'"),
        ("msvd/raw-captions.pkl", "cos\nsystem\n(S'true'\ntR.", r"refused: global 'os\.system'"),
        ("msvd/raw-captions.pkl", "(dp0\nS'same'\nI3\ns.", "'same' has no list of captions"),
        ("msvd/raw-captions.pkl", "version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS"),
        ("activitynet/train.json", '{"v_a": 1, "v_a": 2}', "key 'v_a' occurs twice"),
        ("msrvtt/MSRVTT_JSFUSION_test.csv", "video_id,sentence\nvideo9,nan\n", "line 2: caption is 'nan'"),
        ("msrvtt/MSRVTT_data.json", None, "no file fits train_val_videodatainfo.json"),
    ],
)
def test_a_wrong_file_of_a_data_set_is_named(five: Path, place: str, content: str | None, message: str) -> None:
    if content is None:
        (five / place).unlink()
    else:
        (five / place).write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        import_cvlm(five, None)
    assert "\n" not in str(error.value)


def test_a_missing_data_set_says_how_to_go_on_without_it(five: Path) -> None:
    (five / "msvd").rename(five / "elsewhere")
    with pytest.raises(ConfigError, match=r"msvd: no such folder. Make it, or leave 'msvd' out of datasets"):
        import_cvlm(five, None)


# ------------------------------------------------------------------------------------ the command line


@pytest.fixture
def words(msrvtt: dict[str, Path]) -> dict[str, str]:
    return {
        "split": str(msrvtt["split_pkl"]),
        "annotations": str(msrvtt["annotations"]),
        "captions": str(msrvtt["test_csv"]),
    }


def test_the_command_writes_the_manifest_and_says_what_to_type_next(
    words: dict[str, str], msrvtt: dict[str, Path], tmp_path: Path
) -> None:
    text = import_stream("msrvtt", words, msrvtt["videos"], tmp_path / "runs")
    assert text.splitlines()[-2:] == [
        f"written: {tmp_path}/runs/streams/msrvtt-2.json",
        f"next: ctvr cache build --stream msrvtt-2 --runs {tmp_path}/runs",
    ]
    assert "msrvtt-2: 5 of 6 videos are missing" in text
    assert load_stream("msrvtt-2", tmp_path / "runs").digest in text


def test_a_stream_can_be_named_and_is_still_the_same(
    words: dict[str, str], msrvtt: dict[str, Path], tmp_path: Path
) -> None:
    import_stream("msrvtt", words, msrvtt["videos"], tmp_path)
    text = import_stream("msrvtt", words, msrvtt["videos"], tmp_path, "mine")
    assert "mine: 5 of 6 videos are missing" in text
    mine, plain = load_stream("mine", tmp_path), load_stream("msrvtt-2", tmp_path)
    assert (mine.name, mine.digest) == ("mine", plain.digest)


def test_several_annotation_files_stand_in_one_word(
    words: dict[str, str], msrvtt: dict[str, Path], tmp_path: Path
) -> None:
    parts = [write_json(tmp_path / f"{n}.json", as_sentences(SENTENCES[n : n + 3])) for n in (0, 2)]
    words["annotations"] = ", ".join(map(str, parts))
    import_stream("msrvtt", words, msrvtt["videos"], tmp_path)
    assert captions(load_stream("msrvtt-2", tmp_path), "train")["video0"] == ("a man sings", "someone sings")


def test_all_of_cvlm_is_called_so_and_a_part_is_counted(five: Path, tmp_path: Path) -> None:
    import_stream("cvlm", {"folder": str(five)}, None, tmp_path)
    import_stream("cvlm", {"folder": str(five), "datasets": "didemo,vatex"}, None, tmp_path)
    assert [len(load_stream(name, tmp_path).tasks) for name in ("cvlm", "cvlm-2")] == [5, 2]


def test_one_data_set_alone_is_a_benchmark_of_its_own(
    five: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PUBLISHED, "msrvtt", (3, 1))  # what the small copy has
    import_stream("cvlm", {"folder": str(five), "datasets": "msrvtt"}, None, tmp_path)
    stream = load_stream("msrvtt", tmp_path)
    assert (stream.name, stream.paper, stream.protocol, len(stream.tasks)) == ("msrvtt", "msrvtt", "ctvr", 1)
    assert stream.settings["preset"] == "paper"
    assert not {"data.batch_size", "optim.epochs", "data.num_frames"} & set(stream.settings)
    import_stream("cvlm", {"folder": str(five), "datasets": "didemo"}, None, tmp_path)
    assert load_stream("didemo", tmp_path).paper is None  # not as many videos as in print


def test_a_table_gives_the_stream_its_own_name(tmp_path: Path) -> None:
    header = ("video", "caption", "category", "split", "task")
    rows = [("a", "a cat", "x", "train", "1"), ("b", "a dog", "x", "test", "1")]
    table = write_rows(tmp_path / "cats.csv", header, *rows)
    (tmp_path / "a.mp4").touch()
    text = import_stream("csv", {"table": str(table)}, tmp_path, tmp_path)
    assert "next: ctvr cache build --stream cats" in text
    assert load_stream("cats", tmp_path).name == "cats"


def test_refused_import_keeps_the_existing_stream(tmp_path: Path) -> None:
    rows = [("a", "a cat", "train", "1"), ("b", "a dog", "test", "1")]
    table = write_rows(tmp_path / "cats.csv", ("Video", "Caption", "Split", "Task"), *rows)
    (wrong := tmp_path / "wrong").mkdir()
    with pytest.raises(ConfigError, match=r"--videos .*wrong: has none of the table's videos \(first: 'a'\)"):
        import_stream("csv", {"table": str(table)}, wrong, tmp_path)
    assert not (tmp_path / "streams").exists()
    (tmp_path / "b.mp4").touch()
    import_stream("csv", {"table": str(table)}, tmp_path, tmp_path)
    stream = load_stream("cats", tmp_path)
    assert stream.categories == ("any",)  # the table has no column for it
    with pytest.raises(ConfigError, match="has none"):
        import_stream("csv", {"table": str(table)}, wrong, tmp_path)
    assert load_stream("cats", tmp_path) == stream


def test_a_table_with_a_category_in_some_lines_is_refused(tmp_path: Path) -> None:
    rows = [("a", "a cat", "", "train", "1"), ("b", "a dog", "x", "test", "1")]
    table = write_rows(tmp_path / "cats.csv", ("video", "caption", "category", "split", "task"), *rows)
    with pytest.raises(ConfigError, match="line 2: category is empty. Fill it in, or omit the column."):
        import_stream("csv", {"table": str(table)}, tmp_path, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_without_files_shows_what_the_kind_needs(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        import_stream(kind, {}, tmp_path, tmp_path)
    assert f"is missing. Write: ctvr streams import {kind} " in str(error.value)
    assert all(f"{word}=" in str(error.value) for word in KINDS[kind])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("msrvt", {}, r"'msrvt' is not a kind\. Did you mean 'msrvtt'\? Kinds: msrvtt, actnet, cvlm, "),
        ("msrvtt", {"splits": "x"}, r"splits= is unknown\. Did you mean 'split'\? Write: ctvr streams import msrvtt"),
        (
            "msrvtt",
            {"captions": ""},
            r"captions= is missing\. Write: .* captions=MSRVTT_CL_\S+ \[held_out=2\] --videos",
        ),
        ("msrvtt", {"split": "nowhere.pkl"}, r"nowhere\.pkl"),
    ],
)
def test_a_wrong_word_is_named(
    words: dict[str, str], tmp_path: Path, kind: str, change: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        import_stream(kind, {**words, **change}, tmp_path, tmp_path)
    assert "\n" not in str(error.value)


def test_missing_video_folder_is_named_first(words: dict[str, str], tmp_path: Path) -> None:
    for place in (tmp_path / "none", Path(words["split"])):
        with pytest.raises(ConfigError, match=f"^--videos {place}: is not a folder"):
            import_stream("msrvtt", {**words, "split": "none.pkl"}, place, tmp_path)


def test_videos_are_asked_for_where_they_are_needed_only(words: dict[str, str], five: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--videos is missing"):
        import_stream("msrvtt", words, None, tmp_path)
    with pytest.raises(ConfigError, match="is not needed: folder= contains everything"):
        import_stream("cvlm", {"folder": str(five)}, tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["shapes-5", "../mine", "a b", ""])
def test_a_name_that_could_not_be_loaded_is_refused(
    words: dict[str, str], msrvtt: dict[str, Path], tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="Choose another"):
        import_stream("msrvtt", words, msrvtt["videos"], tmp_path, name)
