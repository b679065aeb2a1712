"""Costs after every task: the values of cost.py, which change no other value."""

import pytest

from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.metric_names import COSTS


def test_costs_are_measured_after_every_task_and_change_no_other_number(small_stream, manifest, runs):
    plain = {"method": "framefusion_moe", "stream": manifest, "optim.epochs": 1}
    without = resolve(plain, small_stream.settings)
    costly = resolve({**plain, "evaluation.costs": True}, small_stream.settings)
    first, second = (execute(each, RunPaths(runs), reuse=False).record for each in (without, costly))
    for before, after in zip(first.metrics, second.metrics, strict=True):
        assert {name: after[name] for name in before} == before
        assert {name for name in after if name not in before} == {
            f"{COSTS}{name}" for name in ("video_gmacs", "query_gmacs", "trained_parameters", "stored_floats")
        }
    queries = [metrics[f"{COSTS}query_gmacs"] for metrics in second.metrics]
    passes = [queries[0] * tasks for tasks in range(1, len(queries) + 1)]  # through the text tower, one for each task
    assert queries == pytest.approx(passes)
    assert len({metrics[f"{COSTS}video_gmacs"] for metrics in second.metrics}) == 1


def test_fewer_tokens_cost_fewer_multiply_adds(small_stream, manifest, runs):
    plain = {"method": "lora", "stream": manifest, "optim.epochs": 0, "evaluation.costs": True}
    costs = [
        execute(resolve({**plain, **more}, small_stream.settings), RunPaths(runs), reuse=False).record.metrics[-1]
        for more in ({}, {"method.reducer.name": "tome", "method.reducer.r": 2})
    ]
    assert costs[1][f"{COSTS}video_gmacs"] < costs[0][f"{COSTS}video_gmacs"]
    assert costs[1][f"{COSTS}query_gmacs"] == costs[0][f"{COSTS}query_gmacs"]
