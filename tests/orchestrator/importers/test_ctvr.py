"""MSR-VTT and ActivityNet: the benchmark's files become manifests that load, with the counts that the papers print."""

import pickle
from pathlib import Path

import pytest

from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.importers.ctvr import hold_out, import_actnet, import_msrvtt, read_split
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.importers.benchmark_files import (
    SENTENCES,
    SPLIT,
    as_coco,
    as_sentences,
    captions,
    touch,
    write_json,
)
from tests.refusing import refuses


def test_an_msrvtt_manifest_loads_as_it_was_written(msrvtt, tmp_path):
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
    assert "task_01: 1 category; train 2 videos, 3 captions; test 1 video, 1 caption" in report


def test_a_part_of_the_benchmark_is_compared_with_no_paper(msrvtt):
    manifest, report = import_msrvtt(**msrvtt)
    assert manifest["paper"] is None
    assert "Not the published stream, which has train 320, test 2990" in report


def test_all_three_annotation_schemas_give_the_same_stream(msrvtt, tmp_path):
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


def test_numbers_for_ids_give_the_same_stream(msrvtt):
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
def test_videos_are_found_wherever_the_release_put_them(msrvtt, tmp_path, place, found):
    touch(tmp_path / "disk" / place)
    manifest, report = import_msrvtt(**{**msrvtt, "videos": tmp_path / "disk"})
    assert manifest["tasks"][0]["train"][0]["path"] == found
    assert "5 of 6 videos are missing" in report


def test_videos_below_the_manifest_move_with_it(msrvtt, tmp_path):
    manifest, _ = import_msrvtt(**{**msrvtt, "out": tmp_path / "m.json"})
    assert manifest["videos"] == "videos"
    manifest, _ = import_msrvtt(**msrvtt)
    assert manifest["videos"] == str(tmp_path / "videos")


def test_a_video_without_caption_is_named_with_its_file(msrvtt):
    write_json(msrvtt["annotations"], as_sentences(SENTENCES[:3]))
    with refuses("MSRVTT_data.json", "1", "3", "video2"):
        import_msrvtt(**msrvtt)
    assert not msrvtt["out"].exists()


def test_a_small_pickle_cannot_ask_for_endless_work(tmp_path):
    ids = ["v"] * 1_000
    category = dict.fromkeys(map(str, range(1_000)), ids)
    tasks = dict.fromkeys(range(1, 1_001), category)  # 10^9 ids by repeated reference, a few kB on disk
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"train": tasks, "val": tasks}))
    with refuses("1000000", where="x.pkl: train"):
        read_split(tmp_path / "x.pkl")


def test_the_manifest_is_written_whole_or_not_at_all(msrvtt, tmp_path):
    with refuses("x.txt", ".json"):
        import_msrvtt(**{**msrvtt, "out": tmp_path / "streams" / "x.txt"})
    (tmp_path / "file").touch()
    with refuses(tmp_path / "file"):
        import_msrvtt(**{**msrvtt, "out": tmp_path / "file" / "x.json"})
    with refuses(tmp_path / "nowhere"):
        import_msrvtt(**{**msrvtt, "videos": tmp_path / "nowhere"})
    import_msrvtt(**msrvtt)
    assert [path.name for path in msrvtt["out"].parent.iterdir()] == ["msrvtt-2.json"]


def test_actnet_items_carry_their_segment(actnet, tmp_path):
    import_actnet(**actnet)
    stream = load_stream("actnet", tmp_path)
    (item,) = stream.items(0, "train")
    assert (item.segment, item.captions) == ((1.0, 4.5), ("They dance.",))
    recommended = {"data.num_frames": 24, "data.batch_size": 16, "preset": "paper-actnet"}
    assert recommended.items() <= stream.settings.items()


def test_frames_that_are_cut_already_carry_no_segment(actnet, tmp_path):
    touch(tmp_path / "videos" / "train" / "v_a_1" / "frame_001.png", tmp_path / "videos" / "v_b.mkv")
    manifest, report = import_actnet(**actnet)
    train, test = manifest["tasks"][0]["train"][0], manifest["tasks"][0]["test"][0]
    assert (train["video"], train["path"], train["segment"]) == ("v_a", "train/v_a_1", None)
    assert (test["path"], test["segment"]) == ("v_b.mkv", [0, 3])
    assert "all 2 videos are in place" in report


@pytest.mark.parametrize(("name", "train", "test"), [("MSRVTT", 320, 2990), ("ACTNET", 3200, 4910)])
def test_the_benchmarks_splits_are_those_of_the_protocol(shared, name, train, test):
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
def test_videos_are_held_out_of_the_training_part_of_the_real_splits_alone(shared, name):
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


def test_held_out_videos_are_the_validation_split_and_tables_say_so(words, msrvtt, tmp_path):
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
    assert "selected on test videos" in plain.table_caveat
    assert stream.table_caveat in text
    assert "1 training videos of every category are held out" in stream.table_caveat


def test_the_real_actnet_imports(shared, tmp_path):
    num_tasks = 20
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
    assert tests[:3] == [237, 285, 299]
    assert all(item.segment and len(item.captions) == 1 for task in stream.tasks for item in (*task.train, *task.test))
    assert not any(text != text.strip() for text in (t for c in captions(stream, "test").values() for t in c))
    assert "8110 of 8110 videos are missing" in report
    assert len(manifest["sources"]) == 3


@pytest.mark.slow
def test_the_real_msrvtt_imports_with_twenty_captions_per_train_video(shared, tmp_path):
    num_tasks = 10
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
    assert tests[:3] == [305, 465, 211]
