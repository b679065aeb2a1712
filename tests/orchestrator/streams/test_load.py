"""Manifests become Streams; an error in one is reported in one line."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.load import available_streams, load_stream
from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.streams.survivors import survivors_note
from ctvr.orchestrator.streams.videos import check_videos, drop_videos, missing_videos
from tests.refusing import refuses


def item(video: str, category: str, *captions: str, **more: Any) -> dict[str, Any]:
    return {"video": video, "path": f"clips/{video}.mp4", "category": category, "captions": list(captions), **more}


@pytest.fixture
def manifest() -> dict[str, Any]:
    return {
        "format": 1,
        "name": "tiny",
        "protocol": "ctvr",
        "paper": "msrvtt-10",
        "settings": {"data.num_frames": 4},
        "videos": "videos",
        "tasks": [
            {
                "name": "task_01",
                "categories": ["dogs", "cats"],
                "train": [item("a", "dogs", "a dog", "one dog"), item("b", "cats", "a cat", segment=[0, 2.5])],
                "val": [],
                "test": [item("c", "dogs", "the dog"), item("d", "cats", "the cat", twin="c")],
            },
            {
                "name": "task_02",
                "categories": ["birds", "dogs"],
                "train": [item("e", "birds", "a bird")],
                "val": [],
                "test": [item("f", "birds", "the bird"), item("g", "dogs", "a hound")],
            },
        ],
    }


def write(manifest: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    return path


def with_files(stream: Stream) -> None:
    for task in stream.tasks:
        for entry in (*task.train, *task.val, *task.test):
            Path(entry.path).parent.mkdir(parents=True, exist_ok=True)
            Path(entry.path).write_bytes(b"x")


def test_categories_stand_in_the_order_of_their_first_appearance(manifest: dict[str, Any]) -> None:
    stream = parse_manifest(manifest, "m", Path("/base"))
    assert stream.categories == ("dogs", "cats", "birds")
    assert [stream.category_index(name) for name in stream.categories] == [0, 1, 2]


def test_every_caption_of_every_video_is_a_pair(manifest: dict[str, Any]) -> None:
    stream = parse_manifest(manifest, "m", Path("/base"))
    assert stream.pairs(0, "train") == [(0, 0), (0, 1), (1, 0)]
    assert [entry.video for entry in stream.items(1, "test")] == ["f", "g"]
    assert stream.items(0, "train")[1].segment == (0.0, 2.5)
    with refuses("test", where="split"):
        stream.items(0, "tset")


def test_digest_ignores_places_names_and_settings_and_nothing_else(manifest: dict[str, Any]) -> None:
    digest = parse_manifest(manifest, "m", Path("/base")).digest
    moved = copy.deepcopy(manifest) | {"name": "other", "settings": {}, "paper": None, "videos": "/elsewhere"}
    moved["tasks"][0]["train"][0]["path"] = "other/place.mkv"
    assert parse_manifest(moved, "x", Path("/other")).digest == digest

    def changed(change: Any) -> str:
        other = copy.deepcopy(manifest)
        change(other["tasks"])
        return parse_manifest(other, "m", Path("/base")).digest

    changes = [
        lambda tasks: tasks[0]["train"][0].update(video="z"),
        lambda tasks: tasks[0]["train"][0]["captions"].append("more"),
        lambda tasks: tasks[0]["train"][1].update(segment=[0, 2]),
        lambda tasks: tasks[0]["train"][0].update(category="cats"),
        lambda tasks: tasks[0]["categories"].reverse(),
        lambda tasks: tasks[0]["val"].append(tasks[0]["test"].pop(1)) or tasks[1]["val"].append(tasks[1]["test"].pop()),
        lambda tasks: tasks[0]["test"][1].update(twin=None),
        lambda tasks: tasks[0]["test"][0].update(relevant=[["c", "g"]]),
        lambda tasks: tasks[0]["test"][0].update(relevant=[["c"]]),
        lambda tasks: tasks.reverse(),
    ]
    digests = [changed(change) for change in changes]
    assert len({digest, *digests}) == len(changes) + 1


def test_relevant_videos_of_later_tasks_are_kept_and_left_out_of_the_digest_if_none_are_listed(manifest) -> None:
    plain = parse_manifest(manifest, "m", Path("/base"))
    assert plain.digest == "cf41a0e062c3ac6e31161c4c90fc202e9e31d50835aa9a50ffe53f83fe2aa8ac"
    manifest["tasks"][0]["test"][0]["relevant"] = [["c", "f"]]
    assert parse_manifest(manifest, "m", Path("/base")).items(0, "test")[0].relevant == (("c", "f"),)


def test_a_stream_survives_pickling_as_ray_needs(manifest: dict[str, Any]) -> None:
    stream = parse_manifest(manifest, "m", Path("/base"))
    again = pickle.loads(pickle.dumps(stream))
    assert again == stream
    assert again.digest == stream.digest


def test_tables_are_marked_when_there_is_no_validation_split(manifest: dict[str, Any]) -> None:
    stream = parse_manifest(manifest, "m", Path("/base"))
    assert not stream.has_val
    assert "no validation split" in stream.table_caveat
    for number, task in enumerate(manifest["tasks"]):
        task["val"] = [item(f"v{number}", task["categories"][0], "something")]
    stream = parse_manifest(manifest, "m", Path("/base"))
    assert stream.has_val
    assert stream.table_caveat == ""


def put(path: str, value: Any) -> Any:
    """Return a change of the manifest: the value at a dotted path, or its removal (`...`)."""

    def change(manifest: dict[str, Any]) -> None:
        *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
        place: Any = manifest
        for key in parents:
            place = place[key]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return change


TRAIN = "tasks.0.train.0"
# What is written, or a change of the manifest -> what is said of it
BAD: list[tuple[Any, str]] = [
    (put(f"{TRAIN}.captions", ["a", " "]), "task_01: train: video 'a': captions[1]: is empty. Add"),
    (put(f"{TRAIN}.captions", []), "task_01: train: video 'a': captions: is empty"),
    (put(f"{TRAIN}.captions", "a dog"), "captions: is text, not a list"),
    (put(f"{TRAIN}.captions", [1]), "captions[0]: is a number, not text"),
    (put(f"{TRAIN}.captions", ["\ud800"]), "half a surrogate"),
    (put(f"{TRAIN}.video", "b"), "task_01: train: video 'b': this id is also in task_01: train, of another file"),
    (put("tasks.1.test.0.video", "a"), "task_02: test: video 'a': this id is also in task_01: train, of another file"),
    (put("tasks.1.test.0.path", "clips/a.mp4"), "its file and segment are also in task_01: train"),
    (put(f"{TRAIN}.video", ""), "video: is empty"),
    (put(f"{TRAIN}.video", "a\nb"), "is not printable"),
    (put(f"{TRAIN}.video", ...), "train: item no. 1: field 'video' is missing"),
    (put(f"{TRAIN}.category", "dog"), "'dog' is not a category of its task. Did you mean 'dogs'"),
    (put(f"{TRAIN}.segment", [3, 3]), "segment: is not a time segment (got [3, 3]). Use [start, end]"),
    (put(f"{TRAIN}.segment", [-1, 3]), "is not a time segment"),
    (put(f"{TRAIN}.segment", [0, float("nan")]), "NaN is not a JSON number"),
    (put(f"{TRAIN}.segment", [0, 10**400]), "is not a time segment"),
    (put(f"{TRAIN}.segment", [0]), "not a pair of numbers"),
    (put(f"{TRAIN}.segment", [False, True]), "not a pair of numbers"),
    (put(f"{TRAIN}.path", "../x.mp4"), "is outside the videos folder"),
    (put(f"{TRAIN}.path", "/etc/passwd"), "is outside the videos folder"),
    (put(f"{TRAIN}.path", "."), "is outside the videos folder"),
    (put(f"{TRAIN}.twin", "nobody"), "twin: video 'nobody' does not exist"),
    (put(f"{TRAIN}.relevant", "a"), "relevant: is text, not a list"),
    (put(f"{TRAIN}.relevant", [["a"]]), "relevant: has 1 lists for 2 captions"),
    (put(f"{TRAIN}.relevant", [["a"], ["b"]]), "relevant[1]: lacks 'a', the caption's own video"),
    (put(f"{TRAIN}.relevant", [["a"], ["a", "b", "b"]]), "relevant[1]: 'b' occurs twice"),
    (put(f"{TRAIN}.relevant", [["a"], ["a", "nobody"]]), "relevant[1]: video 'nobody' does not exist"),
    (put(f"{TRAIN}.relevant", [["a", "c"], ["a"]]), "relevant[0]: video 'c' does not exist in the split train"),
    (put(f"{TRAIN}.caption", "x"), "unknown field 'caption'. Did you mean 'captions'"),
    (put(TRAIN, 3), "train: item no. 1: is a number, not an object"),
    (put("tasks.0.train", []), "task_01: train: has no videos. Add"),
    (put("tasks.0.test", []), "task_01: test: has no videos"),
    (put("tasks.0.categories", ["dogs", "dogs"]), "task_01: categories: is empty or repeats"),
    (put("tasks.1.name", "task_01"), "2 tasks have this name"),
    (put("tasks.0.val", [item("v", "dogs", "x")]), "task_02: val: is empty, but other tasks have videos in it"),
    (put("tasks", []), "tasks: is empty"),
    (put("tasks", {}), "tasks: is an object, not a list"),
    (put("format", 2), "format: must be 1"),
    (put("protocol", "cil"), "protocol: is 'cil'. Use 'ctvr', 'cvlm', 'ucl' or 'qa'"),
    (put("settings", {"data": {}}), "settings: data: is an object"),
    (put("name", ...), "field 'name' is missing"),
    (put("taks", []), "unknown field 'taks'. Did you mean 'tasks'"),
    ('{"format": 1,\n "name": }', "line 2: not JSON"),
    ("", "is empty"),
    ("[" * 100_000, ""),
    ('{"format": 1, "format": 1}', "key 'format' occurs twice"),
    ('{"format": ' + "9" * 5000 + "}", "not usable JSON"),
    ("[]", "is a list, not an object"),
    ('{"held_out": NaN}', "NaN is not a JSON number"),
    ('{"settings": {"a": -Infinity}}', "-Infinity is not a JSON number"),
    (f'{{"{"x" * 5000}": 1}}', "xx ... xx"),
    (b"\xff\xfe\x00", "line 1 is not UTF-16 text"),
    (None, "cannot be read"),
]


@pytest.mark.wording
@pytest.mark.parametrize(("content", "said"), BAD, ids=[said[:50] or "nested" for _, said in BAD])
def test_an_error_in_a_manifest_is_one_line(manifest: dict[str, Any], tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "m.json"
    if callable(content):
        content(manifest)
        write(manifest, path)
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as error:
        load_stream(path, tmp_path)
    assert error.value.where == str(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_streams_are_found_by_name_and_unknown_names_get_a_suggestion(manifest: dict[str, Any], tmp_path: Path) -> None:
    write(manifest, tmp_path / "streams" / "holiday.json")
    assert load_stream("holiday", tmp_path).name == "tiny"
    assert available_streams(tmp_path) == [
        "shapes-5",
        "shapes-10",
        "shapes-20",
        "shapes-cvlm",
        "shapes-images",
        "shapes-qa",
        "worlds-5",
        "worlds-10",
        "worlds-20",
        "worlds-50",
        "worlds-quick",
        "holiday",
    ]
    for name in ("holidya", "holidya@3"):
        with refuses("shapes-5", where="stream", write=("holiday",)) as error:
            load_stream(name, tmp_path)
        assert (error.value.unknown, error.value.write) == ("holidya", ("holiday",))


def test_an_order_of_the_tasks_is_a_part_of_the_digest_and_of_the_name(
    manifest: dict[str, Any], tmp_path: Path
) -> None:
    path = write(manifest, tmp_path / "streams" / "holiday.json")
    own, drawn = load_stream("holiday", tmp_path), [load_stream(f"{path}@{order}", tmp_path) for order in range(1, 9)]
    names = [[task.name for task in stream.tasks] for stream in drawn]
    assert {tuple(each) for each in names} == {("task_01", "task_02"), ("task_02", "task_01")}
    for stream, order in zip(drawn, names):
        assert (stream.digest == own.digest) == (order == ["task_01", "task_02"])
        assert (stream.content, stream.name, stream.paper) == (own.content, "tiny", None)
    assert load_stream("holiday@3", tmp_path) == drawn[2]


@pytest.mark.parametrize("name", ["shapes-5", "shapes-cvlm"])
def test_embedded_streams_are_rendered_below_the_root(
    manifest: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[Any] = []
    del manifest["videos"]
    rendered = "ctvr.orchestrator.synthetic"
    monkeypatch.setattr(f"{rendered}.stream.render_stream", lambda root, tasks, videos: asked.append(tasks) or manifest)
    monkeypatch.setattr(f"{rendered}.cvlm.render_cvlm", lambda root, videos: asked.append("cvlm") or manifest)
    stream = load_stream(name, tmp_path)
    assert asked == [{"shapes-5": 5, "shapes-cvlm": "cvlm"}[name]]
    assert stream.tasks[0].train[0].path == str(tmp_path / "clips" / "a.mp4")


def test_the_videos_folder_is_relative_to_the_manifest_or_given(manifest: dict[str, Any], tmp_path: Path) -> None:
    path = write(manifest, tmp_path / "deep" / "m.json")
    assert load_stream(path, tmp_path).items(0, "train")[0].path == str(tmp_path / "deep/videos/clips/a.mp4")
    other = load_stream(path, tmp_path, videos=tmp_path / "disk")
    assert other.items(0, "train")[0].path == str(tmp_path / "disk/clips/a.mp4")


def test_videos_are_found_with_another_extension_or_as_frames(manifest: dict[str, Any], tmp_path: Path) -> None:
    clips = tmp_path / "videos" / "clips"
    (clips / "b").mkdir(parents=True)
    (clips / "b" / "frame_1.png").touch()
    (clips / "c").mkdir()  # no frames in it
    (clips / "a.webm").touch()
    for name in "defg":
        (clips / f"{name}.mp4").touch()
    stream = parse_manifest(manifest, "m", tmp_path)
    assert [Path(entry.path).name for entry in stream.items(0, "train")] == ["a.webm", "b"]
    assert [entry.video for entry in missing_videos(stream)] == ["c"]


def test_missing_videos_are_reported_with_what_they_do_to_the_numbers(manifest: dict[str, Any], tmp_path: Path) -> None:
    stream = parse_manifest(manifest, "m", tmp_path)
    with_files(stream)
    assert check_videos(stream) == "tiny: all 7 videos are in place."
    for name in ("a", "c"):
        (tmp_path / "videos" / "clips" / f"{name}.mp4").unlink()
    report = check_videos(stream)
    assert "2 of 7 videos are missing (train 1 of 3, test 1 of 4)" in report
    assert "a (task_01 train), c (task_01 test)" in report
    assert "from 4 to 3 videos. R@k rises as the gallery shrinks" in report
    assert "not comparable with the paper" in report
    assert "data.skip_missing=true" in report


def test_leaving_videos_out_changes_the_digest_and_is_marked(manifest: dict[str, Any], tmp_path: Path) -> None:
    stream = parse_manifest(manifest, "m", tmp_path)
    assert drop_videos(stream, []) is stream
    less = drop_videos(stream, [stream.items(0, "test")[0]])
    assert [entry.video for entry in less.items(0, "test")] == ["d"]
    assert less.items(0, "test")[0].twin is None
    assert less.digest != stream.digest
    assert less.paper is None
    assert "1 missing videos left out" in less.table_caveat
    captions = [sum(len(item.captions) for task in each.tasks for item in task.test) for each in (stream, less)]
    assert survivors_note(captions[0] - captions[1], captions[1]) in less.table_caveat
    assert drop_videos(stream, [stream.items(0, "train")[0]]).table_caveat.endswith("not comparable with the paper")
    assert less.categories == stream.categories


def test_a_task_is_never_left_without_train_or_test_videos(manifest: dict[str, Any], tmp_path: Path) -> None:
    stream = parse_manifest(manifest, "m", tmp_path)
    with refuses("1", "task_02", where="data.skip_missing"):
        drop_videos(stream, stream.items(1, "train"))
