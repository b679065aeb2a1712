"""Checks of a Ray cluster's nodes before a sweep: that all have joined, and run the same source code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

from ctvr.orchestrator.digests import source_digest
from ctvr.orchestrator.errors import ConfigError

ASK_SECONDS = 10.0  # if the cloud lacks machines, the autoscaler retries only while the request exists


def alive_nodes() -> list[dict[str, Any]]:
    """Return Ray's records of the nodes that are alive.

    Raises:
        ConnectionError: if no node is alive; the GCS can still respond when the last raylet has died.
    """
    alive = [node for node in ray.nodes() if node.get("Alive")]
    if not alive:
        raise ConnectionError("Ray's raylet has died: no node of the cluster is alive. Run the command again.")
    return alive


def await_nodes(count: int, seconds: float = 1800, ask: Callable[[], object] | None = None) -> None:
    """Wait until the cluster has `count` nodes; `ray up` returns before its workers have joined.

    Args:
        count: number of nodes.
        seconds: maximum waiting time.
        ask: called every `ASK_SECONDS` while nodes are missing; it requests nodes from the autoscaler.

    Raises:
        ConfigError: after `seconds`, with the number of nodes that joined.
    """
    until, asked = time.monotonic() + seconds, -math.inf
    while True:
        alive = sum(1 for node in ray.nodes() if node["Alive"])
        if alive >= count:
            return
        if ask is not None and time.monotonic() - asked >= ASK_SECONDS:
            ask()
            asked = time.monotonic()
        if time.monotonic() > until:
            raise ConfigError(
                f"--nodes: {alive} of {count} joined within {seconds:.0f} s. Check `ray status`, or lower --nodes."
            )
        time.sleep(2)


def is_started_here() -> bool:
    """Return whether a command on this machine started the cluster, which has one node and ends with the command."""
    return ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")


def await_sources(seconds: float = 60) -> None:
    """Wait until every node has the source code that this process runs; `ray up` copies it to the workers last.

    Raises:
        ConfigError: after `seconds`, with the nodes whose source code differs.
    """
    mine, here = source_digest(), ray.get_runtime_context().get_node_id()
    until = time.monotonic() + seconds
    while True:
        nodes = [node for node in alive_nodes() if node["NodeID"] != here]
        answers = [(node["NodeManagerHostname"], _ask_for_sources(node)) for node in nodes]
        others = {name: found for name, answer in answers if (found := _sources_in(answer)) != mine}
        if not others:
            return
        if time.monotonic() > until:
            listed = ", ".join(f"{name} ({found})" for name, found in sorted(others.items()))
            raise ConfigError(
                f"code: nodes {listed} run different source code than this node ({mine}); their results would not be "
                "comparable. Run `ray up` with the cluster's YAML again: it copies the sources to every node."
            )
        time.sleep(2)


def _ask_for_sources(node: Mapping[str, Any]) -> Any:
    """Start a task that returns a node's `source_digest`; return the task's reference."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def ask() -> str:  # pickled by value, because a node with an older version may lack it
        try:
            from ctvr.orchestrator.digests import source_digest
        except ImportError:
            return "older than this check"
        return source_digest()

    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task: Any = ray.remote(ask)
    return task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()


def _sources_in(answer: Any) -> str:
    """Return a node's source digest, or the reason why it is unknown.

    For a node that has left the cluster, return the digest of this process, so that the node is ignored.
    """
    try:
        return str(ray.get(answer, timeout=60))
    except ray.exceptions.GetTimeoutError:
        return "no answer"
    except ray.exceptions.RayTaskError as error:
        return str(error.cause).strip().splitlines()[0] if error.cause else "unreadable"
    except ray.exceptions.RayError:
        return source_digest()
