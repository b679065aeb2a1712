"""A sweep begins when all nodes have joined with the same sources; otherwise one line names the others."""

from types import SimpleNamespace

import pytest

from ctvr.orchestrator.digests import source_digest
from ctvr.orchestrator.on_ray import nodes as ray_nodes
from ctvr.orchestrator.on_ray.nodes import alive_nodes, await_nodes, await_sources
from tests.refusing import refuses


@pytest.fixture
def cluster(monkeypatch):
    """Return three nodes, this one first; `sources` lists the answers of each other node, in the order of requests."""
    nodes = [{"NodeID": f"n{i}", "NodeManagerHostname": f"host{i}", "Alive": True} for i in range(3)]
    made = SimpleNamespace(nodes=nodes, sources={"n1": [source_digest()], "n2": [source_digest()]}, asked=[])

    def asked(node):
        found = made.sources[node["NodeID"]]
        made.asked.append(node["NodeID"])
        return found.pop(0) if len(found) > 1 else found[0]

    def answer(found):
        assert made.asked[-2:] == ["n1", "n2"] or not nodes[2]["Alive"]  # no node gets a request after its answer
        return found

    monkeypatch.setattr(ray_nodes.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_nodes.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n0"))
    monkeypatch.setattr(ray_nodes, "_ask_for_sources", asked)
    monkeypatch.setattr(ray_nodes, "_sources_in", answer)
    monkeypatch.setattr(ray_nodes.time, "sleep", lambda seconds: None)
    return made


def test_equal_sources_are_no_obstacle(cluster):
    await_sources(0)


def test_nodes_that_are_being_updated_are_waited_for(cluster):
    cluster.sources["n2"] = ["0123456789ab", "0123456789ab", source_digest()]
    await_sources(60)


def test_a_node_with_other_sources_is_named_with_the_remedy(cluster):
    cluster.sources["n2"] = ["0123456789ab"]
    with refuses("host2", "0123456789ab") as caught:
        await_sources(0)
    assert source_digest() in str(caught.value)


def test_a_node_that_is_gone_is_not_asked(cluster):
    cluster.sources["n2"] = ["0123456789ab"]
    cluster.nodes[2]["Alive"] = False
    await_sources(0)


def test_a_cluster_without_a_living_node_is_a_lost_connection(cluster):
    """A supervised driver that ends with a ConnectionError is restarted; a ConfigError would end its sweep."""
    assert len(alive_nodes()) == 3
    for node in cluster.nodes:
        node["Alive"] = False
    with pytest.raises(ConnectionError, match="no node of the cluster is alive"):
        alive_nodes()


def test_nodes_that_do_not_come_are_counted(cluster):
    await_nodes(3, 0)
    with refuses("--nodes", "3", "4", "0"):
        await_nodes(4, 0)


def test_missing_nodes_are_requested_every_ten_seconds(cluster, monkeypatch):
    """A cloud without free machines refuses a request; the autoscaler retries only while the request exists."""
    asked: list[float] = []
    clock = [0.0]
    monkeypatch.setattr(ray_nodes.time, "monotonic", lambda: clock[0])
    await_nodes(3, 0, lambda: asked.append(clock[0]))
    assert not asked
    monkeypatch.setattr(ray_nodes.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    with refuses("3", "4"):
        await_nodes(4, 30, lambda: asked.append(clock[0]))
    assert asked == [0.0, 10.0, 20.0, 30.0]
