"""Features of a Ray Data job equal those of a single machine."""

from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.addresses import name_addresses
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.cache import build_cache
from ctvr.orchestrator.store.store import Store
from tests.own_towers import write_clip

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_cpus")]


def features_in(folder: Path) -> dict[str, np.ndarray]:
    store = Store.open(folder / "store")
    return {key: np.array(store.get("features", key)["tokens"]) for key in store.list("features")}


def test_nodes_make_the_same_features_as_one_machine_and_none_twice(tmp_path, manifest):
    here, there = tmp_path / "here", tmp_path / "there"
    lines = build_cache(manifest, {}, ExecutionConfig(runs=there, address="local"), features=True).splitlines()
    assert lines[1] == "stream small: computed features of 30 videos, 0 were already in the store"
    build_cache(manifest, {}, ExecutionConfig(runs=here), features=True)
    one, many = features_in(here), features_in(there)
    assert one.keys() == many.keys()
    for key, tokens in one.items():
        np.testing.assert_array_equal(many[key], tokens)
    again = build_cache(manifest, {}, ExecutionConfig(runs=there), on_cluster=True, features=True).splitlines()
    assert again[1] == "stream small: computed features of 0 videos, 30 were already in the store"


def test_nodes_use_an_architecture_that_only_the_driver_names(tmp_path, manifest):
    folder = tmp_path / "clip"
    write_clip(folder)
    name_addresses([folder])
    given = {"backbone.name": str(folder), "backbone.weights": "shipped"}
    execution = ExecutionConfig(runs=tmp_path / "runs", address="local")
    lines = build_cache(manifest, given, execution, features=True).splitlines()
    assert lines[1] == "stream small: computed features of 30 videos, 0 were already in the store"


def test_method_without_frozen_blocks_is_refused_first(tmp_path, manifest):
    with pytest.raises(ConfigError, match="--features: clip4clip leaves 0 of 4 vision blocks"):
        build_cache(manifest, {"method": "clip4clip"}, ExecutionConfig(runs=tmp_path, address="local"), features=True)
    assert not Store.open(tmp_path / "store").list("frames")
