"""Every method learns a built-in stream from the first video to the last metric."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ctvr.methods import METHODS
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.sweeps.search_spaces import default_presets

pytestmark = pytest.mark.slow
TASKS = 3
NEW = {"umt"}  # its towers start from new weights, of which one epoch of some dozen videos makes nothing yet
CVLM = {name for name in METHODS if "moco" in name or name.startswith("bmu")}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_the_stream_and_retrieves_above_chance(name, root):
    stream_name = "shapes-cvlm" if name in CVLM else "shapes-5"
    stream = load_stream(stream_name, root)
    stream = replace(stream, tasks=stream.tasks[:TASKS])
    settings = {"method": name, "stream": stream_name, "optim.epochs": 1, "evaluation.split": "val"}
    experiment = resolve(settings, stream.settings, default_presets(name, stream, ()))
    record = execute(experiment, RunPaths(root), stream=stream).record
    assert record.done == TASKS
    losses = [value for row in record.training for term, value in row.items() if term.startswith("train/loss/")]
    assert all(math.isfinite(value) for value in losses)
    assert losses or name in {"zero_shot", "head_ridge"}
    searched = sum(len(task.val) for task in stream.tasks)
    chance = 100 * 10 / searched
    assert name in NEW or record.metrics[-1]["stream/t2v/r10"] > 2 * chance
    assert all(math.isfinite(value) for value in record.metrics[-1].values())
