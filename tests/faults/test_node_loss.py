"""A node of a fake cluster is lost with its processes: the trial continues on another node, with the same numbers."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.internals import kv_get
from ctvr.orchestrator.on_ray.plan import GAIN, SearchOutcome, TrialPlan
from ctvr.orchestrator.on_ray.tune import run_specs
from tests.orchestrator.on_ray.test_sweeps import (
    Finished,
    assert_equals_an_unbroken_run,
    commits,
    plan_of,
    steps,
    wait_for,
)

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_trial_whose_node_is_lost_goes_on_from_its_last_task(fake_cluster, runs, manifest, tmp_path):
    execution = ExecutionConfig(runs=runs)
    lost: list[str] = []

    def lose_the_trials_node() -> None:
        wait_for(lambda: finished(1))
        node = node_of_the_trial(fake_cluster)
        lost.append(node.node_id)
        fake_cluster.remove_node(node, allow_graceful=False)

    finished = Finished(runs)
    plan, settings = plan_of(execution, manifest, "lost"), {"optim.epochs": 60}
    thief = threading.Thread(target=lose_the_trials_node)
    thief.start()
    outcome = run_specs(plan, 3, [settings])
    thief.join()

    assert len(lost) == 1
    assert_complete(execution, plan, outcome, settings)
    assert_equals_an_unbroken_run(runs, {**plan.settings, **settings}, manifest, tmp_path)


def test_a_trial_on_a_draining_node_loses_at_most_the_epoch_in_training(fake_cluster, runs, manifest, tmp_path):
    execution = ExecutionConfig(runs=runs)
    store, finished = commits(runs), Finished(runs)
    stored: list[int] = []  # epochs of checkpoints of task 2: three while the node drains, and the last one
    begun: list[int] = []  # the epoch in training before the loss
    plan, settings = plan_of(execution, manifest, "drained"), {"optim.epochs": 60}

    def newest() -> int:
        names = [name for name in store.list("pauses") if "/task_002_" in name]
        return max((int(name.rpartition("_")[2]) for name in names), default=0)

    def drain_the_trials_node() -> None:
        wait_for(lambda: finished(1))
        node = node_of_the_trial(fake_cluster)
        drain(node.node_id, fake_cluster.address)
        for _ in range(3):  # every epoch is stored, not only the first one
            wait_for(lambda: newest() > (stored[-1] if stored else 0))
            stored.append(newest())
        begun.append(epoch_in_training(plan))
        fake_cluster.remove_node(node, allow_graceful=False)
        stored.append(newest())

    thief = threading.Thread(target=drain_the_trials_node)
    thief.start()
    outcome = run_specs(plan, 3, [settings])
    thief.join()

    assert stored[-1] >= begun[0] - 1
    assert_complete(execution, plan, outcome, settings)
    assert_equals_an_unbroken_run(runs, {**plan.settings, **settings}, manifest, tmp_path)


def node_of_the_trial(cluster: Any) -> Any:
    from ray.util.state import list_actors

    (trial,) = list_actors(filters=[("class_name", "=", "ImplicitFunc"), ("state", "=", "ALIVE")])
    (node,) = (node for node in cluster.worker_nodes if node.node_id == trial.node_id)
    return node


def drain(node: str, address: str) -> None:
    """Announce the loss of a node as cluster/drain_on_spot_notice.sh does."""
    command = [str(Path(sys.executable).parent / "ray"), "drain-node", "--node-id", node, "--address", address]
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test"]
    subprocess.run([*command, *reason, "--deadline-remaining-seconds", "110"], check=True, capture_output=True)


def epoch_in_training(plan: TrialPlan) -> int:
    """Return the epoch that the trial of a plan has begun, by its progress note."""
    from ray.experimental import internal_kv

    (key,) = internal_kv._internal_kv_list(b"ctvr-progress-")
    return int(re.search(r"epoch (\d+)", kv_get(key.decode()))[1])


def assert_complete(execution: ExecutionConfig, plan: TrialPlan, outcome: SearchOutcome, settings: dict) -> None:
    """Check that the trial ended, and that MLflow has each of its values once."""
    assert (outcome.complete, outcome.failed) == (1, 0)
    tracker = execution.tracker()
    (run,) = tracker.find_runs(sweep=plan.sweep)
    assert (run.status, run.tags["ctvr.complete"]) == ("FINISHED", "true")
    assert steps(tracker, run, GAIN) == [1, 2, 3]
    assert len(steps(tracker, run, "train/loss/contrastive")) == 3 * settings["optim.epochs"]
