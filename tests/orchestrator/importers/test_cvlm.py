"""The five data sets of CVLM become five tasks, and each can be used alone."""

import json

import pytest

from ctvr.orchestrator.importers.cvlm import import_cvlm
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.importers.benchmark_files import (
    SENTENCES,
    as_sentences,
    captions,
    touch,
    write_json,
    write_rows,
)
from tests.refusing import refuses


def test_five_data_sets_become_five_tasks_in_the_papers_order(five):
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
def test_msvd_ids_may_have_the_ending_of_a_video_on_one_side(five, side):
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
def test_msvd_captions_may_be_text(five, name):
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


def test_lists_of_ids_keep_the_videos_of_didemo_that_a_paper_uses(five):
    entries = [{"video": f"d{n}.{end}", "description": f"text {n}"} for n, end in enumerate(("mov", "avi", "3gp"))]
    write_json(five / "didemo" / "test_data.json", entries)
    listed = five / "didemo" / "test_list.txt"
    listed.write_text("d2.3gp\n\nd0\n")  # with its ending, and without
    manifest, _ = import_cvlm(five, None, ["didemo"])
    assert [item["video"] for item in manifest["tasks"][0]["test"]] == ["didemo/d2.3gp", "didemo/d0.mov"]
    assert [item["video"] for item in manifest["tasks"][0]["train"]] == ["didemo/d1.avi"]
    for text, values in (("d0\nd7\n", ("2", "'d7'")), ("\n", ())):
        listed.write_text(text)
        with refuses("test_list.txt", *values):
            import_cvlm(five, None, ["didemo"])
    write_json(five / "didemo" / "test_data.json", [*entries, {"video": "d0.mp4", "description": "x"}])
    listed.write_text("d0\n")
    with refuses("'d0'", "d0.mov", "d0.mp4"):
        import_cvlm(five, None, ["didemo"])


def test_videos_without_text_are_left_out_and_counted(five):
    entries = json.loads((five / "didemo" / "train_data.json").read_text())
    write_json(five / "didemo" / "train_data.json", [*entries, {"video": "d9.avi", "description": " ", "times": []}])
    manifest, report = import_cvlm(five, None, ["didemo"])
    assert [item["video"] for item in manifest["tasks"][0]["train"]] == ["didemo/d1.avi"]
    assert "didemo: 1 train videos without caption text are left out, first 'd9.avi'." in report


def test_two_more_data_sets_stand_alone(five):
    """LSMDC's lines have six cells between tabs; MSR-VTT has its publishers' split with all captions of its tests."""
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

    of = {"video0": "train", "video1": "validate", "video2": "test"}
    videos = [{"video_id": video, "split": split} for video, split in of.items()]
    whole = write_json(five / "msrvtt-full" / "MSRVTT_data.json", as_sentences(SENTENCES) | {"videos": videos})
    import_cvlm(five, five / "full.json", ["msrvtt-full"])
    stream = load_stream(five / "full.json", five)
    assert set(captions(stream, "train")) == {"msrvtt-full/video0", "msrvtt-full/video1"}
    assert captions(stream, "test") == {"msrvtt-full/video2": ("a car",)}
    whole.write_text(whole.read_text().replace('"validate"', '"val"'))
    with refuses("videos[1]", "video_id", "split"):
        import_cvlm(five, None, ["msrvtt-full"])
    assert set(import_cvlm(five, None)[0]["sources"]) & {"LSMDC16_annos_val.csv"} == set()


def test_the_order_of_data_sets_can_be_chosen(five):
    manifest, _ = import_cvlm(five, None, ["didemo", "vatex"])
    assert [task["categories"] for task in manifest["tasks"]] == [["didemo"], ["vatex"]]
    with refuses("vatx", "vatex", where="datasets"):
        import_cvlm(five, None, ["vatx"])


def write_vatex(folder, **files: list[str]) -> None:
    """Write VATEX with these IDs in each file; the text of a caption is its ID."""
    for name, videos in files.items():
        entries = [{"videoID": video, "enCap": [video]} for video in videos]
        write_json(folder / "vatex" / f"vatex_{name}.json", entries)


def ids(manifest) -> dict[str, list[str]]:
    (task,) = manifest["tasks"]
    return {split: [item["video"].removeprefix("vatex/") for item in task[split]] for split in ("train", "val", "test")}


def test_lists_may_take_test_videos_from_another_splits_file(tmp_path):
    """Papers on VATEX test on 1,500 of the videos that are published for validation."""
    write_vatex(tmp_path, training=["a"], validation=["b", "c", "d"])
    write_json(tmp_path / "vatex" / "vatex_private_test_without_annotations.json", [{"videoID": "e"}])
    with refuses("vatex_private_test_without_annotations.json", where="vatex", remedy=True):
        import_cvlm(tmp_path, None, ["vatex"])
    (tmp_path / "vatex" / "test_list.txt").write_text("d\nc\n")
    manifest, _ = import_cvlm(tmp_path, None, ["vatex"])
    assert ids(manifest) == {"train": ["a"], "val": ["b"], "test": ["d", "c"]}
    assert "test_list.txt" in manifest["sources"]
    write_vatex(tmp_path, public_test_english=["d", "f"])  # its own file comes first
    manifest, _ = import_cvlm(tmp_path, None, ["vatex"])
    assert ids(manifest)["test"] == ["d", "c"]


def test_vatex_may_be_one_file_of_captions_with_lists(tmp_path):
    write_json(tmp_path / "vatex" / "ref_captions.json", {video: [video] for video in "abcd"})
    with refuses("test_list.txt", where="vatex", remedy=True):
        import_cvlm(tmp_path, None, ["vatex"])
    for split, text in (("train", "a\nb"), ("test", "c.mp4")):
        (tmp_path / "vatex" / f"{split}_list.txt").write_text(text)
    assert ids(import_cvlm(tmp_path, None, ["vatex"])[0]) == {"train": ["a", "b"], "val": [], "test": ["c"]}


def test_a_report_names_every_file_of_text_that_was_not_read(five):
    (five / "vatex" / "notes.TXT").touch()
    (five / "vatex" / "picture.png").touch()
    _, report = import_cvlm(five, None, ["vatex", "activitynet"])
    line = report.splitlines()[-1]
    assert all(name in line for name in ("vatex/notes.TXT", "activitynet/train_ids.json", "activitynet/val_1_ids.json"))
    assert "picture" not in report
    assert ".json" not in import_cvlm(five, None, ["msvd"])[1].splitlines()[-1]


def test_the_blind_test_of_lsmdc_is_not_its_test_and_clips_may_lack_a_sentence(five):
    for name, text in {"annos_training": "x", "annos_val": "", "annos_blindtest": ""}.items():
        file = five / "lsmdc" / f"LSMDC16_{name}.csv"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{name}_{n}\t0\t1\t0\t1\t{text if n else 'y'}\n" for n in range(2)))
    with refuses("LSMDC16_annos_blindtest.csv", where="lsmdc", remedy=True):
        import_cvlm(five, None, ["lsmdc"])
    (five / "lsmdc" / "LSMDC16_annos_test_someone.csv").write_text("t\t0\t1\t0\t1\ty\n")
    manifest, report = import_cvlm(five, None, ["lsmdc"])
    assert [len(manifest["tasks"][0][split]) for split in ("train", "val", "test")] == [2, 1, 1]
    assert "1 val videos" in report
    assert "annos_val_1" in report
