"""Plans of trials, and interruptions, without a cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import Interrupted
from ctvr.orchestrator.sweeps.session import (
    batch_lines,
    interruptible,
    precision_lines,
    restore_execution,
    sharing_lines,
    trial_plan,
)


def test_a_resumed_sweep_keeps_its_trials_and_takes_the_cluster_of_today(execution):
    first = replace(execution, workers=2, cpus_per_worker=0.5, store="store2", max_concurrent=3)
    plan = trial_plan(first, "s")
    kept = {"where": {"address": None, "nodes": 1, "local_cpus": 2, "max_concurrent": 3}}
    found = restore_execution(replace(execution, local_cpus=8), plan, kept)
    assert (found.workers, found.cpus_per_worker, found.store) == (2, 0.5, str(Path("store2").resolve()))
    assert (found.local_cpus, found.max_concurrent) == (8, 3)


def test_a_plan_says_that_gpus_would_compute_in_full_float32(execution):
    on_gpus = replace(execution, gpus_per_trial=1)
    (line,) = precision_lines(on_gpus, ["bf16", "fp32"])
    assert "precision=tf32 or precision=bf16" in line
    assert precision_lines(on_gpus, ["bf16", "tf32"]) == precision_lines(execution, ["fp32"]) == []
    (line,) = precision_lines(on_gpus, ["fp32"], ["T4", "H100"])
    assert "peak of an H100 67 TFLOP/s, 495 in tf32 (7 times), 989 in bf16 (15 times)" in line
    (line,) = precision_lines(replace(on_gpus, accelerator_type="A100-80G"), ["fp32"], ["H100"])
    assert "peak of an A100 19.5 TFLOP/s" in line
    assert precision_lines(on_gpus, ["fp32"], ["V100"]) == []  # it has no other precision


def test_a_plan_says_that_a_batch_leaves_each_gpu_few_pairs(execution):
    on_gpus = replace(execution, workers=8, gpus_per_trial=8)
    (line,) = batch_lines(on_gpus, [64, 8])
    assert "data.batch_size=8 is 1 for each of 8 workers" in line
    assert "data.batch_size=64" in line
    assert batch_lines(on_gpus, [64]) == []
    assert batch_lines(replace(on_gpus, workers=1, gpus_per_trial=1), [4]) == []  # nothing is shared out
    assert batch_lines(replace(on_gpus, gpus_per_trial=None), [8]) == batch_lines(on_gpus, []) == []


def test_a_plan_says_that_a_trial_leaves_its_gpu_idle_or_its_workers_share_one(execution):
    on_gpus = replace(execution, gpus_per_trial=1)
    (line,) = sharing_lines(on_gpus, [(64, "bf16"), (8, "bf16"), (4, "fp32")])
    assert "data.batch_size=8 " in line
    assert "--gpus-per-trial 0.25" in line
    for gpus, workers, pairs, precision in [
        (0.25, 1, 8, "bf16"), (None, 1, 8, "bf16"), (0, 1, 8, "bf16"), (1, 1, 32, "bf16"), (1, 1, 8, "fp32"),
        (4, 4, 8, "bf16"), (None, 4, 8, "bf16"),
    ]:  # fmt: skip
        assert sharing_lines(replace(execution, gpus_per_trial=gpus, workers=workers), [(pairs, precision)]) == []
    (line,) = sharing_lines(replace(execution, gpus_per_trial=0.25, workers=4), [(64, "bf16")])
    assert "4 workers of a trial share 0.25 GPUs. --gpus-per-trial 4 " in line


def test_rays_own_state_is_kept_apart_for_every_sweep(execution):
    assert trial_plan(execution, "s").storage == str(execution.folder("s"))
    assert trial_plan(replace(execution, ray_storage="/shared/ray"), "s").storage == "/shared/ray/s"
    assert trial_plan(replace(execution, ray_storage="s3://b/ray/"), "s").storage == "s3://b/ray/s"


def test_ctrl_c_prints_the_resume_command_and_closes_open_runs(execution):
    tracker = execution.tracker("few")
    parent = tracker.open_sweep("s", "few", {})
    left, done = tracker.open_run("few", "a", {}, parent), tracker.open_run("few", "b", {}, parent)
    tracker.close(done)
    with (
        pytest.raises(Interrupted, match=f"Resume with: ctvr sweep --resume s --runs {execution.runs}"),
        interruptible("sweep s", "ctvr sweep --resume s", execution, tracker, [parent]),
    ):
        raise KeyboardInterrupt
    assert {run.run_id: run.status for run in tracker.find_runs()} == {left: "KILLED", done: "FINISHED"}
    found = tracker.find_sweep("s")
    assert found is not None
    assert found.status == "KILLED"
