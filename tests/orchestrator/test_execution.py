"""Checks that refuse an experiment before anything starts."""

from pathlib import Path

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"workers": 0}, "--workers: must be >= 1, got 0"),
        ({"nodes": 0}, "--nodes: must be >= 1"),
        ({"local_cpus": -1}, "--local-cpus: must be >= 1, got -1"),
        ({"max_concurrent": 0}, "--max-concurrent: must be >= 1"),
        ({"cpus_per_worker": 0}, "--cpus-per-worker: must be > 0"),
        ({"gpus_per_trial": -0.5}, "--gpus-per-trial: must be >= 0, got -0.5"),
        ({"worker_timeout_hours": 0}, "--worker-timeout-hours: must be > 0 and <= 10000, got 0. Write 24."),
        (
            {"gpus_per_trial": 0, "accelerator_type": "A100"},
            "--accelerator-type A100: --gpus-per-trial 0 trains on CPUs",
        ),
        ({"gpus_per_trial": 3, "workers": 2}, "3 GPUs for 2 workers are 1.5 each"),
        (
            {"address": "ray:/host"},
            "--address: 'ray:/host' is not the address of a Ray cluster. Write auto, local, HOST",
        ),
        ({"address": "localhost:6379x"}, "--address: 'localhost:6379x' is not the address"),
        ({"address": "http://host:8265"}, "--address: 'http://host:8265' is not the address"),
        ({"store": "s3:/bucket/x"}, "--store s3:/bucket/x: is neither a folder nor a URI. Write s3://bucket/x."),
        ({"ray_storage": "s3:bucket"}, "--storage s3:bucket: is neither a folder nor a URI. Write s3://bucket."),
        ({"videos": Path("/no/such")}, "--videos: /no/such is not a folder"),
        ({"runs": Path("/proc/none/runs")}, "--runs /proc/none/runs: cannot be written"),
        ({"runs": Path(__file__) / "runs"}, "runs: cannot be written"),
    ],
)
def test_unusable_execution_settings_are_refused_in_one_line(tmp_path, more, message):
    with pytest.raises(ConfigError, match=message) as error:
        ExecutionConfig(**{"runs": tmp_path, **more}).check()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "address", [None, "auto", "local", "host:6379", "10.0.0.1:6379", "ray://host:10001", "[::1]:6379"]
)
def test_addresses_of_ray_are_accepted(tmp_path, address):
    ExecutionConfig(runs=tmp_path, address=address).check()


@pytest.mark.parametrize("gpus", [None, 0, 0.25, 1, 2, 4])
def test_shares_and_whole_gpus_are_accepted(tmp_path, gpus):
    ExecutionConfig(runs=tmp_path, gpus_per_trial=gpus, workers=2).check()


def test_places_do_not_depend_on_the_folder_a_process_starts_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.json").touch()
    (tmp_path / "videos").mkdir()
    places = ExecutionConfig(runs=Path("runs"), store="store", videos=Path("videos")).places()
    assert (places.root, places.store, places.videos) == (
        tmp_path / "runs",
        str(tmp_path / "store"),
        tmp_path / "videos",
    )
    assert ExecutionConfig(store="s3://bucket/x").places().store == "s3://bucket/x"
    assert find_manifest("few.json") == str(tmp_path / "few.json")
    assert find_manifest("shapes-5") == "shapes-5"
