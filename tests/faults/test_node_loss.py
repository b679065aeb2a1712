"""A node of a fake cluster is lost with its processes: the trial continues on another node, with the same numbers."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.connection import connect
from ctvr.orchestrator.on_ray.plan import GAIN
from ctvr.orchestrator.on_ray.tune import run_specs
from tests.orchestrator.on_ray.test_sweeps import (
    REPOSITORY,
    Finished,
    assert_equals_an_unbroken_run,
    plan_of,
    steps,
    wait_for,
)

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(1800)]
MEMORY = 80 * 2**20  # bytes of each node's object store


@pytest.fixture
def fake_cluster(free_port: int) -> Iterator[Any]:
    """Start a head that runs nothing and two nodes of one CPU, all on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))  # short: sockets lie below it
    os.environ |= {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{free_port}",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": free_port}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": MEMORY})
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    assert connect(cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_trial_whose_node_is_lost_goes_on_from_its_last_task(fake_cluster, runs, manifest, tmp_path):
    from ray.util.state import list_actors

    execution = ExecutionConfig(runs=runs)
    lost: list[str] = []

    def lose_the_trials_node() -> None:
        wait_for(lambda: finished(1))
        (trial,) = list_actors(filters=[("class_name", "=", "ImplicitFunc"), ("state", "=", "ALIVE")])
        (node,) = (node for node in fake_cluster.worker_nodes if node.node_id == trial.node_id)
        lost.append(node.node_id)
        fake_cluster.remove_node(node, allow_graceful=False)

    finished = Finished(runs)
    plan, settings = plan_of(execution, manifest, "lost"), {"optim.epochs": 60}
    thief = threading.Thread(target=lose_the_trials_node)
    thief.start()
    outcome = run_specs(plan, 3, [settings])
    thief.join()

    assert len(lost) == 1
    assert (outcome.complete, outcome.failed) == (1, 0)
    tracker = execution.tracker()
    (run,) = tracker.find_runs(sweep="lost")
    assert (run.status, run.tags["ctvr.complete"]) == ("FINISHED", "true")
    assert steps(tracker, run, GAIN) == [1, 2, 3]
    assert len(steps(tracker, run, "train/loss/contrastive")) == 3 * 60
    assert_equals_an_unbroken_run(runs, {**plan.settings, **settings}, manifest, tmp_path)
