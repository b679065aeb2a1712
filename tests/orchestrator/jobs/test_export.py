"""Streams are exported and imported again: frames and features in files of other programs, runs on features alone."""

import csv
import io
import os
import re
import signal
import tarfile
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml

import ctvr
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.data.arrays import FORMS, read_arrays, write_arrays
from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.importers.features import import_features as features_importer
from ctvr.orchestrator.jobs.export import export_stream
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.feature_stream import write_features
from tests.in_subprocess import in_subprocess
from tests.refusing import missing_from, refuses


@pytest.fixture(scope="module")
def exported(few, tmp_path_factory):
    """Make a runs folder, and next to it the small stream's table, frames and features."""
    root = tmp_path_factory.mktemp("exported")
    execution = ExecutionConfig(runs=root / "runs")
    text = export_stream(few, {}, execution, root / "out", "npz", ["frames", "features"])
    assert "features of 8 videos" in text
    return root


def measured(root, stream, **settings):
    found = load_stream(stream, root / "runs")
    given = {"method": "zero_shot", "stream": str(stream), **{k.replace("__", "."): v for k, v in settings.items()}}
    return execute(resolve(given, found.settings), RunPaths(root / "runs"), stream=found).record


def import_features(root, *words, name="made"):
    return main(["streams", "import", "features", *words, "--name", name, "--runs", str(root / "runs")])


@pytest.mark.slow
def test_a_stream_of_exported_features_gives_the_numbers_of_its_videos(few, exported, capsys):
    out = exported / "out"
    table, vectors, texts = f"table={out / 'table.csv'}", f"features={out / 'features.npz'}", out / "text_features.npy"
    assert import_features(exported, table, vectors, f"text={texts}", name="both") == 0
    assert import_features(exported, table, vectors, name="videos") == 0
    assert re.search(r"features of \d+ numbers, 4 to 4 a video", capsys.readouterr().out)
    of_frames = measured(exported, few)
    of_both = measured(exported, "both")
    own = {"backbone__name": "tiny-clip", "backbone__weights": "shipped"}
    of_videos = measured(exported, "videos", **own)
    for record in (of_both, of_videos):
        assert (record.own, record.union, record.ranks) == (of_frames.own, of_frames.union, of_frames.ranks)
    trained = {"method": "framefusion_moe", "method__use_ffa": False, "optim__epochs": 1, "data__batch_size": 4}
    trained |= {"method__num_experts": 2, "method__rank": 2, "method__dropout": 0.0, **own}
    on_frames, on_features = measured(exported, few, **trained), measured(exported, "videos", **trained)
    assert on_features.ranks == on_frames.ranks
    for stream, method, message in (
        (
            "videos",
            {"method": "clip4clip"},
            "clip4clip changes its vision tower, but stream videos has features",
        ),
        ("both", own, "backbone.name=tiny-clip: is not used: stream both has features of its videos and captions"),
        ("both", {"method": "prompt"}, "prompt works inside CLIP's towers"),
        (
            "videos",
            {**own, "data__augment": "crop_flip"},
            "data.augment: crop_flip is for videos, but stream videos has features",
        ),
        (
            "videos",
            {"backbone__name": "ViT-B-32", "backbone__weights": "random"},
            "its text features 512. Use the",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            measured(exported, stream, **{**(own if stream == "videos" else {}), **method})


def test_the_exported_manifest_and_frames_are_the_streams(few, exported):
    stream, again = load_stream(few, exported), load_stream(exported / "out" / "manifest.json", exported)
    assert again.digest == stream.digest
    assert again.tasks[0].train[0] == stream.tasks[0].train[0]
    frames = read_arrays(exported / "out" / "frames.npz")
    assert [array.shape for array in frames.values()] == [(4, 64, 64, 3)] * 8
    assert {array.dtype for array in frames.values()} == {np.dtype("uint8")}


def test_exported_files_are_imported_as_the_same_stream(few, tmp_path, capsys):
    out, runs = tmp_path / "sample", ["--runs", str(tmp_path / "runs")]
    assert main(["streams", "export", str(few), str(out), "--files", *runs]) == 0
    said = capsys.readouterr().out
    (command,) = re.findall(r"ctvr (streams import csv .*) --name NAME", said)
    assert main([*command.split(), "--name", "again", *runs]) == 0
    once, again = load_stream(few, tmp_path / "runs"), load_stream("again", tmp_path / "runs")
    for first, second in zip(once.tasks, again.tasks, strict=True):
        for split in ("train", "val", "test"):
            pairs = zip(getattr(first, split), getattr(second, split), strict=True)
            for ours, theirs in pairs:
                assert (ours.captions, ours.category) == (theirs.captions, theirs.category)
                assert digest_file(Path(ours.path)) == digest_file(Path(theirs.path))


@pytest.mark.slow
def test_features_in_half_precision_come_back_from_an_export(exported, tmp_path):
    out, runs = exported / "out", ["--runs", str(exported / "runs")]
    half = {video: array.astype(np.float16) for video, array in read_arrays(out / "features.npz").items()}
    np.savez(tmp_path / "half.npz", **half)
    words = f"table={out / 'table.csv'}", f"features={tmp_path / 'half.npz'}"
    assert import_features(exported, *words, name="half") == 0
    own = ["backbone.name=tiny-clip", "backbone.weights=shipped"]
    assert main(["streams", "export", "half", str(tmp_path / "made"), "--features", *own, *runs]) == 0
    found = read_arrays(tmp_path / "made" / "features.npz")
    assert found.keys() == half.keys()
    assert all(np.array_equal(found[video], half[video].astype(np.float32)) for video in half)


def test_exported_features_have_the_card_of_their_backbone(exported):
    card = yaml.safe_load((exported / "out" / "features.yaml").read_text())
    assert (card["embedder"], card["revision"], card["normalisation"]) == ("tiny-clip", "shipped", "none")
    (width,) = {array.shape[1] for array in read_arrays(exported / "out" / "features.npz").values()}
    assert card["width"] == width


def test_captions_of_several_vectors_are_exported_as_parquet_only(tmp_path, capsys):
    write_features(tmp_path)
    with (tmp_path / "table.csv").open() as file:
        texts = {row["caption"]: np.ones((1 + number % 2, 5)) for number, row in enumerate(csv.DictReader(file))}
    np.savez(tmp_path / "texts.npz", **texts)
    parts = (tmp_path / "table.csv", tmp_path / "videos.npz", tmp_path / "texts.npz")
    features_importer(*parts, tmp_path / "runs/streams/mine.json", "mine")
    words = ["--features", "--runs", str(tmp_path / "runs")]
    assert main(["streams", "export", "mine", str(tmp_path / "no"), *words]) == 2
    assert not missing_from(capsys.readouterr().err, "--form", "npz", "parquet")
    assert main(["streams", "export", "mine", str(tmp_path / "out"), "--form", "parquet", *words]) == 0
    again = [
        "streams",
        "import",
        "features",
        str(tmp_path / "out"),
        "--name",
        "again",
        "--runs",
        str(tmp_path / "runs"),
    ]
    assert main(again) == 0
    assert load_stream("again", tmp_path / "runs").digest == load_stream("mine", tmp_path / "runs").digest


def test_files_of_a_stream_of_features_are_refused(exported, capsys):
    made = exported / "out"
    words = f"table={made / 'table.csv'}", f"features={made / 'features.npz'}"
    assert import_features(exported, *words, name="bare") == 0
    capsys.readouterr()
    assert main(["streams", "export", "bare", str(exported / "no"), "--files", "--runs", str(exported / "runs")]) == 2
    assert not missing_from(capsys.readouterr().err, "--files", "bare", "features")
    assert not (exported / "no").exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_arrays_come_back_from_every_form(form, tmp_path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "file": np.ones((1, 3), np.float32)}
    if form == "h5" and find_spec("h5py") is None:
        with pytest.raises(ConfigError, match=r"\.h5 needs h5py: pip install h5py"):
            write_arrays(tmp_path / "f.h5", arrays.items())
        return
    found = read_arrays(write_arrays(tmp_path / f"f.{form}", iter(arrays.items())))
    assert list(found) == list(arrays)
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


def test_a_foreign_shard_is_read_by_its_keys_or_refused_in_one_line(tmp_path):
    def shard(name, *members):
        with tarfile.open(tmp_path / name, "w") as archive:
            for member, data in members:
                entry = tarfile.TarInfo(member)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return tmp_path / name

    np.save(file := io.BytesIO(), np.arange(3.0))
    found = read_arrays(
        shard("a.tar", ("x/red_1.npy", file.getvalue()), ("x/red_1.json", b"{}"), ("x/red_1.txt", b"a caption"))
    )
    assert list(found) == ["x/red_1"]
    np.save(objects := io.BytesIO(), np.array([{}]), allow_pickle=True)
    one = file.getvalue()
    for path in (
        shard("b.tar", ("a.npy", objects.getvalue())),
        shard("c.tar", ("a.cls", b"1")),
        shard("d.tar", ("0.npy", one), ("1.npy", one), ("0.name.txt", b"red"), ("1.name.txt", b"red")),
    ):
        with refuses(path.name):
            read_arrays(path)


def test_a_name_that_leads_out_of_the_folder_is_no_name_of_a_file(tmp_path):
    with refuses("../../up"):
        write_arrays(tmp_path / "f.npy", [("../../up", np.ones(3))])
    assert not list(tmp_path.parent.rglob("up.npy"))


@pytest.mark.slow
def test_wrong_features_are_refused_in_one_line(exported, tmp_path, capsys):
    out = exported / "out"
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    videos = list(dict.fromkeys(row["video"] for row in rows))
    good = {video: np.ones((2, 3)) for video in videos}
    (tmp_path / "evil.pt").write_bytes(b"\x80\x04c__builtin__\neval\n.")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "rows.npy", np.ones((3, 4)))
    np.save(tmp_path / "texts.npy", np.ones((len(rows), 5)))
    for name, arrays in (
        ("missing", {videos[0]: np.ones(3)}),
        ("wide", {**good, videos[-1]: np.ones((2, 4))}),
        ("nan", {**good, videos[1]: np.full(3, np.nan)}),
        ("huge", {**good, videos[1]: np.full(3, 1e300)}),
        ("cube", {**good, videos[0]: np.ones((2, 3, 4))}),
        ("good", good),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    for word, message in (
        ("missing.npz", f"lacks features of {len(videos) - 1} of {len(videos)} videos, the first"),
        ("wide.npz", "has features of 4 dimensions, others have 3"),
        ("nan.npz", "NaN or infinite"),
        ("huge.npz", "or values outside the float32 range"),
        ("cube.npz", "shape (2, 3, 4) of float64, not (frames, d) or (d,)"),
        ("rows.npy", f"has 3 rows for {len(videos)} videos"),
        ("objects.npy", "cannot be read as an array"),
        ("evil.pt", "refused, because it holds global"),
        ("none.npz", "no such file"),
        ("good.csv", "no such file"),
    ):
        assert import_features(exported, f"table={out / 'table.csv'}", f"features={tmp_path / word}", name="w") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line, word
    np.savez(tmp_path / "mixed.npz", **{row["caption"]: np.ones(5 + (not i)) for i, row in enumerate(rows)})
    texts = f"text={tmp_path / 'mixed.npz'}"
    assert import_features(exported, f"table={out / 'table.csv'}", f"features={tmp_path / 'good.npz'}", texts) == 2
    assert "has features of 6 dimensions" in capsys.readouterr().err
    for folder, words, message in (
        (out, (), "already exists and is not empty"),
        (Path("/proc/x"), (), "/proc/x: cannot be written (No such file or directory)"),
        (tmp_path / "e", ("data.num_frames=0", "--features"), "num_frames must be >= 1, got 0"),
        (tmp_path / "e", ("--features", "data.num_frames=0"), "num_frames must be >= 1, got 0"),
    ):  # before anything is rendered
        assert main(["streams", "export", "shapes-5", str(folder), *words, "--runs", str(exported / "runs")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "e").exists()
    assert not list((exported / "runs").glob("shapes-*"))


@pytest.mark.slow
def test_an_exported_model_ranks_as_the_run_and_its_card_has_metrics(learned, tmp_path, capsys):
    out, runs = tmp_path / "model", ["--runs", str(learned)]
    assert main(["export", "hf", str(out), "--model", "framefusion_moe", *runs]) == 0
    (run,) = ExecutionConfig(runs=learned).tracker().find_runs(tags={"ctvr.method": "framefusion_moe"})
    trained, again = ctvr.load("framefusion_moe", runs=learned), ctvr.load(out, runs=tmp_path / "none")
    videos = learned / "small" / "videos"
    hits = [model.search("a red star on the test", 3, videos) for model in (trained, again)]
    assert [hit.video for hit in hits[0]] == [hit.video for hit in hits[1]]
    assert [hit.score for hit in hits[0]] == pytest.approx([hit.score for hit in hits[1]])
    _, head, body = (out / "README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(head)
    (result,) = card["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == pytest.approx(run.last("stream/t2v/r1")[1], abs=1e-4)
    assert (card["license"], result["dataset"]["split"]) == ("apache-2.0", "test")
    for digest in (run.tags["ctvr.stream_digest"], run.tags["ctvr.result"], digest_file(out / "model.safetensors")):
        assert digest in body
    assert "Seed 0." in body
    written = "".join((out / name).read_text() for name in ("README.md", "model.json", "provenance.json"))
    assert str(learned) not in written
    capsys.readouterr()
    for words, message in (
        ([str(out), "--model", "framefusion_moe"], "already exists and is not empty. Use another folder"),
        ([str(tmp_path / "b"), "--model", "framefusion"], "Did you mean 'framefusion_moe'"),
    ):
        assert main(["export", "hf", *words, *runs]) == 2
        assert message in capsys.readouterr().err


def export_and_die(stream, root, out, function):
    owner, _, name = function.rpartition(".")
    setattr({"np": np, "Path": Path}[owner], name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    export_stream(stream, {}, ExecutionConfig(runs=root / "runs"), out, "npz", ["features"])


@pytest.mark.slow
@pytest.mark.parametrize("function", ["Path.write_text", "np.save", "Path.rename"])
def test_the_export_of_a_killed_process_is_repeated_by_the_same_command(few, exported, tmp_path, function):
    out = tmp_path / "out"
    with pytest.raises(BrokenProcessPool):
        in_subprocess(export_and_die, few, exported, out, function)
    assert not out.exists()
    assert main(["streams", "export", str(few), str(out), "--features", "--runs", str(exported / "runs")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(read_arrays(out / "features.npz")) == 8
