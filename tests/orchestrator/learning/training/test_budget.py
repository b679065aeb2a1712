"""The budget of a run: memory that a method needs in addition to one model, and its multiply-adds."""

import pytest
import torch

from ctvr.orchestrator.learning.evaluation.cost import query_cost, video_cost
from ctvr.orchestrator.learning.record.method_state import PretrainedSnapshot, trained_state
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.training.budget import budget, step_costs
from ctvr.orchestrator.settings.resolve import resolve


@pytest.fixture
def spent(small_stream, manifest, runs):
    """Return a function from method and settings to the budget after one epoch of each of the stream's tasks."""

    def of(name: str, **settings: object) -> dict[str, float]:
        experiment = resolve({"method": name, "stream": manifest, "optim.epochs": 1, **settings}, small_stream.settings)
        seen = []
        done = execute(experiment, RunPaths(runs), on_ready=lambda *context: seen.append(context), reuse=False)
        _, method, data, _ = seen[-1]
        before, state = trained_state(method, PretrainedSnapshot(method)), torch.get_rng_state()
        cost = video_cost(method, next(data.with_features(None).videos(0, "test", [0], 1)))
        cost = {"cost/stored_floats_per_video": float(cost.stored), "cost/video_gmacs": cost.macs / 1e9}
        step_costs(method, data)
        found = budget(method, data, "test", cost, done.record, 0)
        after = trained_state(method, PretrainedSnapshot(method))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)  # counting trains nothing
        assert torch.equal(state, torch.get_rng_state())
        query = query_cost(method, data.queries(0, "test").tokens[:1], 1)["cost/query_gmacs"]
        recorded = {name: value for name, value in done.record.metrics[-1].items() if name == "cost/replay_share"}
        return {**recorded, **found, "pair": cost["cost/video_gmacs"] + query}

    return of


@pytest.mark.slow
def test_the_budget_counts_replay_copies_and_training(spent, small_stream):
    plain, replayed = spent("clip4clip"), spent("er_ring", **{"method.buffer_size": 4})
    videos = sum(len(task.test) for task in small_stream.tasks)
    pairs = sum(len(item.captions) for task in small_stream.tasks for item in task.train)
    assert plain["cost/index_bytes"] % (4 * videos) == 0
    assert (plain["cost/replay_bytes"], plain["cost/tower_copies"], plain["cost/reencoding_gmacs"]) == (0, 0, 0)
    assert plain["pair"] * pairs < plain["cost/train_gmacs"] < 3.2 * plain["pair"] * pairs  # equal videos are one
    frames = small_stream.settings["data.num_frames"] * 3 * 64**2
    assert 4 * frames < replayed["cost/replay_bytes"] < 4 * (frames + 4000)
    assert replayed["cost/train_gmacs"] > plain["cost/train_gmacs"]
    assert plain["cost/replay_share"] == 0.0


@pytest.mark.slow
def test_the_share_of_the_past_is_that_of_the_pairs_before_the_last_task(spent, small_stream):
    earlier = sum(len(item.captions) for task in small_stream.tasks[:-1] for item in task.train)
    assert spent("er_ring", **{"method.buffer_size": 1})["cost/replay_share"] == pytest.approx(100 / earlier)
    assert spent("er_ring", **{"method.buffer_share": 1.0})["cost/replay_share"] == 100
    assert spent("upper_bound")["cost/replay_share"] == 100


@pytest.mark.slow
def test_a_teacher_is_a_copy_and_joint_training_pays_for_all_tasks_so_far(spent, small_stream):
    plain, taught, joint, moved = (spent(name) for name in ("clip4clip", "lwf", "upper_bound", "qdc"))
    for found in (taught, moved):  # qdc drops its teacher at the end of a task
        assert found["cost/tower_copies"] == 1
        assert found["cost/train_gmacs"] > plain["cost/train_gmacs"]
    sizes = [len(task.test) for task in small_stream.tasks]
    again = sum(sum(sizes[:index]) for index in range(len(sizes)))
    gmacs = joint["cost/reencoding_gmacs"] / again
    assert 0 < gmacs < joint["pair"]
    # (1 + 2 + 3) / 3 times the pairs; of all tasks a batch has fewer equal videos, which are encoded once
    assert 2 * plain["cost/train_gmacs"] <= joint["cost/train_gmacs"] < 3 * plain["cost/train_gmacs"]
    once = spent("upper_bound", **{"method.only_final": True})  # 3 of 1 + 2 + 3 epochs
    assert once["cost/train_gmacs"] == pytest.approx(joint["cost/train_gmacs"] / 2, rel=0.1)


def test_a_model_without_training_spends_nothing(spent):
    found = spent("zero_shot")
    assert found["cost/train_gmacs"] == found["cost/tower_copies"] == found["cost/reencoding_gmacs"] == 0
    assert found["cost/index_bytes"] > 0
