"""`ctvr streams import` turns its arguments into a manifest, or says in one line how to correct them."""

from pathlib import Path

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.importers.command import KINDS, import_stream
from ctvr.orchestrator.importers.cvlm import PUBLISHED
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.importers.benchmark_files import SENTENCES, as_sentences, captions, write_json, write_rows
from tests.refusing import refuses


def test_the_command_writes_the_manifest_and_says_what_to_type_next(words, msrvtt, tmp_path):
    text = import_stream("msrvtt", words, msrvtt["videos"], tmp_path / "runs")
    assert text.splitlines()[-2:] == [
        f"written: {tmp_path}/runs/streams/msrvtt-2.json",
        f"next: ctvr cache build --stream msrvtt-2 --runs {tmp_path}/runs",
    ]
    assert "msrvtt-2: 5 of 6 videos are missing" in text
    assert load_stream("msrvtt-2", tmp_path / "runs").digest in text


def test_a_stream_can_be_named_and_is_still_the_same(words, msrvtt, tmp_path):
    import_stream("msrvtt", words, msrvtt["videos"], tmp_path)
    text = import_stream("msrvtt", words, msrvtt["videos"], tmp_path, "mine")
    assert "mine: 5 of 6 videos are missing" in text
    mine, plain = load_stream("mine", tmp_path), load_stream("msrvtt-2", tmp_path)
    assert (mine.name, mine.digest) == ("mine", plain.digest)


def test_several_annotation_files_stand_in_one_word(words, msrvtt, tmp_path):
    parts = [write_json(tmp_path / f"{n}.json", as_sentences(SENTENCES[n : n + 3])) for n in (0, 2)]
    words["annotations"] = ", ".join(map(str, parts))
    import_stream("msrvtt", words, msrvtt["videos"], tmp_path)
    assert captions(load_stream("msrvtt-2", tmp_path), "train")["video0"] == ("a man sings", "someone sings")


def test_all_of_cvlm_is_called_so_and_a_part_is_counted(five, tmp_path):
    import_stream("cvlm", {"folder": str(five)}, None, tmp_path)
    import_stream("cvlm", {"folder": str(five), "datasets": "didemo,vatex"}, None, tmp_path)
    assert [len(load_stream(name, tmp_path).tasks) for name in ("cvlm", "cvlm-2")] == [5, 2]


def test_one_data_set_alone_is_a_benchmark_of_its_own(five, tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "msrvtt", (3, 1))  # what the small copy has
    import_stream("cvlm", {"folder": str(five), "datasets": "msrvtt"}, None, tmp_path)
    stream = load_stream("msrvtt", tmp_path)
    assert (stream.name, stream.paper, stream.protocol, len(stream.tasks)) == ("msrvtt", "msrvtt", "ctvr", 1)
    assert stream.settings["preset"] == "paper"
    assert not {"data.batch_size", "optim.epochs", "data.num_frames"} & set(stream.settings)
    import_stream("cvlm", {"folder": str(five), "datasets": "didemo"}, None, tmp_path)
    assert load_stream("didemo", tmp_path).paper is None  # not as many videos as in print


def test_a_table_gives_the_stream_its_own_name(tmp_path):
    header = ("video", "caption", "category", "split", "task")
    rows = [("a", "a cat", "x", "train", "1"), ("b", "a dog", "x", "test", "1")]
    table = write_rows(tmp_path / "cats.csv", header, *rows)
    (tmp_path / "a.mp4").touch()
    text = import_stream("csv", {"table": str(table)}, tmp_path, tmp_path)
    assert "next: ctvr cache build --stream cats" in text
    assert load_stream("cats", tmp_path).name == "cats"


def test_refused_import_keeps_the_existing_stream(tmp_path):
    rows = [("a", "a cat", "train", "1"), ("b", "a dog", "test", "1")]
    table = write_rows(tmp_path / "cats.csv", ("Video", "Caption", "Split", "Task"), *rows)
    (wrong := tmp_path / "wrong").mkdir()
    with refuses("'a'", where=f"--videos {wrong}"):
        import_stream("csv", {"table": str(table)}, wrong, tmp_path)
    assert not (tmp_path / "streams").exists()
    (tmp_path / "b.mp4").touch()
    import_stream("csv", {"table": str(table)}, tmp_path, tmp_path)
    stream = load_stream("cats", tmp_path)
    assert stream.categories == ("any",)  # the table has no column for it
    with refuses("'a'"):
        import_stream("csv", {"table": str(table)}, wrong, tmp_path)
    assert load_stream("cats", tmp_path) == stream


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_without_files_shows_what_the_kind_needs(kind, tmp_path):
    with refuses(*KINDS[kind], kind, where=f"streams import {kind}") as error:
        import_stream(kind, {}, tmp_path, tmp_path)
    assert all(f"{word}=" in str(error.value) for word in KINDS[kind])


NO_VIDEOS = {"split": "none.pkl"}  # a missing folder is named first


@pytest.mark.parametrize(
    ("kind", "change", "videos", "name", "where", "values"),
    [
        ("msrvt", {}, ".", None, "streams import", "'msrvtt' msrvtt actnet cvlm"),
        ("msrvtt", {"splits": "x"}, ".", None, "streams import msrvtt", "'split'"),
        ("msrvtt", {"captions": ""}, ".", None, "streams import msrvtt", "captions="),
        ("msrvtt", {"split": "nowhere.pkl"}, ".", None, "nowhere.pkl", ""),
        ("msrvtt", NO_VIDEOS, "none", None, "--videos none", ""),
        ("msrvtt", NO_VIDEOS, "MSRVTT_data.json", None, "--videos MSRVTT_data.json", ""),
        ("msrvtt", {}, None, None, "streams import msrvtt", "--videos"),
        ("cvlm", None, ".", None, "streams import cvlm", ""),
        ("msrvtt", {}, "videos", "shapes-5", "--name", "'shapes-5'"),
        ("msrvtt", {}, "videos", "../mine", "--name", "'../mine'"),
        ("msrvtt", {}, "videos", "a b", "--name", ""),
        ("msrvtt", {}, "videos", "", "--name", "''"),
        ("msrvtt", {"held_out": "1"}, "videos", None, "held_out=1", "0 2 held_out=0"),
        ("msrvtt", {"held_out": "-1"}, "videos", None, "held_out=-1", ""),
        ("msrvtt", {"held_out": "two"}, "videos", None, "held_out=two", ""),
    ],
)
def test_a_wrong_word_is_named(words, five, monkeypatch, kind, change, videos, name, where, values):
    monkeypatch.chdir(five)
    given = {"folder": "."} if change is None else {**words, **change}
    with refuses(where, *values.split()):
        import_stream(kind, given, None if videos is None else Path(videos), five, name)


def test_the_help_of_the_command_lists_every_kind(capsys):
    with pytest.raises(SystemExit):
        main(["streams", "import", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert set(KINDS) <= set(words)
