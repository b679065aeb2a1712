"""What is refused before anything starts, and the jobs that need no cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.importers.ctvr import ACTNET_SETTINGS
from orchestrator.jobs import deployment
from orchestrator.jobs.deployment import (
    GAIN,
    Where,
    default_presets,
    find_manifest,
    make_ready,
    search_space,
    table,
)
from orchestrator.learning.resolve import resolve


@pytest.fixture
def where(runs: Path) -> Where:
    return Where(runs=runs)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"workers": 0}, "--workers: must be >= 1, got 0"),
        ({"nodes": 0}, "--nodes: must be >= 1"),
        ({"local_cpus": -1}, "--local-cpus: must be >= 1, got -1"),
        ({"max_concurrent": 0}, "--max-concurrent: must be >= 1"),
        ({"cpus_per_worker": 0}, "--cpus-per-worker: must be > 0"),
        ({"gpus_per_trial": -0.5}, "--gpus-per-trial: must be >= 0, got -0.5"),
        ({"gpus_per_trial": 3, "workers": 2}, "3 GPUs for 2 workers are 1.5 each"),
        ({"videos": Path("/no/such")}, "--videos: /no/such is no folder"),
        ({"runs": Path("/proc/none/runs")}, "--runs /proc/none/runs: cannot be written"),
        ({"runs": Path(__file__) / "runs"}, "runs: cannot be written"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, more, message):
    with pytest.raises(ConfigError, match=message) as error:
        Where(**{"runs": tmp_path, **more}).check()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gpus", [None, 0, 0.25, 1, 2, 4])
def test_shares_and_whole_gpus_are_accepted(tmp_path, gpus):
    Where(runs=tmp_path, gpus_per_trial=gpus, workers=2).check()


def test_a_tracking_server_that_is_down_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="tracking http://127.0.0.1:9: connection refused"):
        Where(runs=tmp_path).tracker()


def test_places_do_not_depend_on_the_folder_a_process_starts_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.json").touch()
    (tmp_path / "videos").mkdir()
    places = Where(runs=Path("runs"), store="store", videos=Path("videos")).places()
    assert (places.root, places.store, places.videos) == (
        tmp_path / "runs",
        str(tmp_path / "store"),
        tmp_path / "videos",
    )
    assert Where(store="s3://bucket/x").places().store == "s3://bucket/x"
    assert find_manifest("few.json") == str(tmp_path / "few.json")
    assert find_manifest("shapes-5") == "shapes-5"


def test_the_streams_preset_is_taken_where_the_method_has_it(small_stream):
    stream = replace(small_stream, settings={"preset": "shapes"})
    assert default_presets("clip4clip", stream, ()) == ("shapes",)
    assert default_presets("clip4clip", stream, ("paper",)) == ("paper",)
    assert default_presets("zero_shot", stream, ()) == ()


def test_a_preset_for_other_numbers_of_frames_is_not_taken_on_the_streams_word(small_stream):
    stream = replace(small_stream, settings=ACTNET_SETTINGS)
    assert default_presets("framefusion_moe", stream, ()) == ("paper-actnet",)
    assert default_presets("tempme", stream, ()) == ()  # its paper's 64 frames
    assert default_presets("tempme", stream, ("paper-actnet",)) == ("paper-actnet",)


def test_a_method_without_a_search_space_cannot_be_searched():
    with pytest.raises(ConfigError, match="nothing to search"):
        search_space("nothing")


def test_a_second_preparation_decodes_nothing(where, manifest, small_stream):
    experiment = resolve({"method": "clip4clip", "stream": manifest}, small_stream.settings)
    assert make_ready(experiment, where, ("train", "val", "test")).decoded == 0
    other = replace(where, store=str(where.runs / "other"))
    total = sum(len(small_stream.items(i, split)) for i in range(3) for split in ("train", "val", "test"))
    assert make_ready(experiment, other, ("train", "val", "test")).decoded == total
    assert make_ready(experiment, other, ("train", "val", "test")).decoded == 0


def test_what_would_train_nothing_is_said_before_anything_is_decoded(where, manifest, small_stream):
    crowd = {"stream": manifest, "workers": 16, "data.batch_size": 16}
    other = replace(where, store=str(where.runs / "other"))
    with pytest.raises(ConfigError, match="workers: task_01 of stream small has 8 training pairs for 16 workers"):
        make_ready(resolve({"method": "clip4clip", **crowd}, small_stream.settings), other)
    assert not other.places().open_store().list("frames")
    make_ready(resolve({"method": "zero_shot", **crowd}, small_stream.settings), where)  # trains nothing anyway


def test_only_the_splits_that_a_run_reads_are_decoded(where, manifest, small_stream):
    settings = {"method": "clip4clip", "stream": manifest}
    other = replace(where, store=str(where.runs / "other"))
    assert make_ready(resolve(settings, small_stream.settings), other).decoded == 3 * (4 + 3)  # train, test
    best = {**settings, "evaluation.select": "best"}
    assert make_ready(resolve(best, small_stream.settings), other).decoded == 3 * 3  # val, to choose on


def test_a_run_is_recorded_and_goes_on_where_it_ended(where, manifest, capsys):
    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": "1"}
    text = deployment.run(settings, (), where)
    assert text.startswith("clip4clip on small, test videos\n")
    assert "t2v/r1_gain" in text
    assert "task 3/3  R@1" in capsys.readouterr().err
    assert deployment.run(settings, (), where) == text
    assert "nothing was trained (--fresh trains again)" in capsys.readouterr().err
    first, second = where.tracker().find_runs()
    assert dict(first.metrics[GAIN]) == dict(second.metrics[GAIN])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "clip4clpi"}, "method: no method called 'clip4clpi'. Did you mean clip4clip"),
        ({"method": "clip4clip", "workers": "2"}, "trains in one process"),
        ({"method": "clip4clip", "data.num_frames": "0"}, "data: num_frames must be >= 1"),
        ({"method": "clip4clip", "data.image_size": "32"}, "data.image_size: 32 does not fit the backbone"),
    ],
)
def test_a_run_that_cannot_be_is_one_line(where, manifest, settings, message):
    with pytest.raises(ConfigError, match=message):
        deployment.run({"stream": manifest, **settings}, (), where)


def test_a_table_is_of_complete_runs(where, manifest):
    with pytest.raises(ConfigError, match="table: no runs of 'small'"):
        table(where, stream="small")
    deployment.run({"method": "zero_shot", "stream": manifest}, (), where)
    text = table(where, stream="small")
    assert "| zero\\_shot" in text
    files = [Path(name) for name in text.rpartition("written: ")[2].split(", ")]
    assert {file.suffix for file in files} >= {".md", ".tex", ".csv", ".png"}
    assert all(file.is_file() for file in files)
