"""The nodes of a Ray cluster: all there, and all with the same sources, before a sweep begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

from ctvr.orchestrator.digests import source_digest
from ctvr.orchestrator.errors import ConfigError


def await_nodes(count: int, seconds: float = 1800, ask: Callable[[], object] | None = None) -> None:
    """Wait until the cluster has `count` nodes; `ray up` returns before its workers have joined.

    Args:
        count: of nodes.
        seconds: to wait for them.
        ask: called while some are missing, whenever others have come or gone; a cluster that starts its machines on
            demand grows by it.

    Raises:
        ConfigError: after `seconds`, with the number of nodes that came.
    """
    until, before = time.monotonic() + seconds, -1
    while True:
        alive = sum(1 for node in ray.nodes() if node["Alive"])
        if alive >= count:
            return
        if ask is not None and alive != before:
            ask()
            before = alive
        if time.monotonic() > until:
            raise ConfigError(
                f"--nodes: {alive} of {count} joined within {seconds:.0f} s. Look at `ray status`, or lower --nodes."
            )
        time.sleep(2)


def is_started_here() -> bool:
    """Whether the cluster was started by a sweep on this machine: it is this machine alone, and ends with the sweep."""
    return ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")


def await_sources(seconds: float = 60) -> None:
    """Wait until every node has the sources that this process runs; `ray up` brings them to the workers last.

    Raises:
        ConfigError: after `seconds`, with the nodes that have others.
    """
    mine, here = source_digest(), ray.get_runtime_context().get_node_id()
    until = time.monotonic() + seconds
    while True:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
        others = {node["NodeManagerHostname"]: found for node in nodes if (found := _sources_of(node)) != mine}
        if not others:
            return
        if time.monotonic() > until:
            listed = ", ".join(f"{name} ({found})" for name, found in sorted(others.items()))
            raise ConfigError(
                f"code: other sources than on this node ({mine}) are on {listed}; trials there would be other "
                "experiments. Run `ray up` with the cluster's YAML again: it copies the sources to every node."
            )
        time.sleep(2)


def _sources_of(node: Mapping[str, Any]) -> str:
    """`source_digest` on a node, or why it cannot be had; a node that is gone has what this one has."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def ask() -> str:  # by value: a node of another version may not have it
        try:
            from ctvr.orchestrator.digests import source_digest
        except ImportError:
            return "older than this check"
        return source_digest()

    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task: Any = ray.remote(ask)
    task = task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
    try:
        return str(ray.get(task.remote(), timeout=60))
    except ray.exceptions.GetTimeoutError:
        return "no answer"
    except ray.exceptions.RayTaskError as error:
        return str(error.cause).strip().splitlines()[0] if error.cause else "unreadable"
    except ray.exceptions.RayError:
        return source_digest()
