"""The small stream of the orchestrator's tests, a fake cluster, and processes that are killed or stopped on purpose."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.conftest import decoded, free_port, manifest, runs, small_stream

__all__ = ["decoded", "free_port", "manifest", "runs", "small_stream"]

REPOSITORY = Path(__file__).resolve().parents[2]
MEMORY = 80 * 2**20  # bytes of each node's object store


@pytest.fixture
def fake_cluster(free_port: int) -> Iterator[Any]:
    """Start a head that runs nothing and two nodes of one CPU, all on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    from ctvr.orchestrator.on_ray.connection import connect

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
