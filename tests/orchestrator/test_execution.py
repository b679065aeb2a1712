"""Checks that refuse an experiment before anything starts."""

from pathlib import Path

import pytest

from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from tests.refusing import refuses


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ({"workers": 0}, "--workers 1 0"),
        ({"nodes": 0}, "--nodes 1"),
        ({"local_cpus": -1}, "--local-cpus 1 -1"),
        ({"max_concurrent": 0}, "--max-concurrent 1"),
        ({"cpus_per_worker": 0}, "--cpus-per-worker 0"),
        ({"gpus_per_trial": -0.5}, "--gpus-per-trial 0 -0.5"),
        ({"worker_timeout_hours": 0}, "--worker-timeout-hours 0 10000 24"),
        (
            {"gpus_per_trial": 0, "accelerator_type": "A100"},
            "--accelerator-type A100 --gpus-per-trial 0 CPUs",
        ),
        ({"gpus_per_trial": 3, "workers": 2}, "3 GPUs 2 1.5"),
        (
            {"address": "ray:/host"},
            "--address 'ray:/host' HOST",
        ),
        ({"address": "localhost:6379x"}, "--address 'localhost:6379x'"),
        ({"address": "http://host:8265"}, "--address 'http://host:8265'"),
        ({"store": "s3:/bucket/x"}, "--store s3:/bucket/x URI s3://bucket/x"),
        ({"ray_storage": "s3:bucket"}, "--storage s3:bucket URI s3://bucket"),
        ({"videos": Path("/no/such")}, "--videos /no/such"),
        ({"runs": Path("/proc/none/runs")}, "--runs /proc/none/runs"),
        ({"runs": Path(__file__) / "runs"}, "--runs"),
    ],
)
def test_unusable_execution_settings_are_refused_in_one_line(tmp_path, more, values):
    with refuses(*values.split()):
        ExecutionConfig(**{"runs": tmp_path, **more}).check()


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
