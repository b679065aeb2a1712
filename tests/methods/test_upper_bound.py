import copy
import re
from dataclasses import replace

import pytest
import torch

from ctvr.methods import find_method
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.upper_bound import UpperBound, UpperBoundConfig
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.conftest import make_small_clip, make_task
from tests.refusing import refuses

SIZES = {
    "bmu_moco": {"queue_size": 10},
    "moe_adapter": {"num_experts": 4, "bottleneck": 4},
    "framefusion_moe": {"rank": 4, "num_experts": 3},
}


def small(name, **settings):
    cls = find_method(name)
    return cls(cls.Config(**SIZES.get(name, {}), **settings), make_small_clip(layers=2))


@pytest.fixture
def base():
    return Clip4Clip(Clip4ClipConfig(lr=1e-3), make_small_clip(layers=2))


def train(method, task, batch):
    method.begin_task(task)
    groups = method.param_groups()
    if groups:
        optimizer = torch.optim.AdamW([{"params": group["params"], "lr": group["lr"]} for group in groups])
        for _ in range(2):
            optimizer.zero_grad()
            torch.stack(list(method.losses(batch).values())).sum().backward()
            optimizer.step()
            method.after_step()
    method.end_task(task, [batch])
    return method


def test_one_task_is_the_wrapped_retriever(base, batch):
    alone = train(copy.deepcopy(base), make_task(0, 1), batch)
    joint = train(UpperBound(UpperBoundConfig(), base), make_task(0, 1), batch)
    assert all(torch.equal(a, b) for a, b in zip(alone.state_dict().values(), joint.base.state_dict().values()))
    assert torch.equal(joint.encode_video(batch.frames), alone.encode_video(batch.frames))
    assert torch.equal(joint.encode_text(batch.tokens), alone.encode_text(batch.tokens))


@pytest.mark.parametrize("name", ["clip4clip", "bmu_moco", "moe_adapter", "framefusion_moe"])
def test_every_task_starts_from_the_pretrained_weights_and_nothing_else(name, batch):
    """Experts, routers and queues of the previous stage are removed, too."""
    unprompted = {"moe_adapter": {"query_router": "last"}, "framefusion_moe": {"use_prototypes": False}}
    made = small(name, **unprompted.get(name, {}))
    method = UpperBound(UpperBoundConfig(base=name), copy.deepcopy(made))
    for index in range(3):
        torch.manual_seed(9)
        method.begin_task(make_task(index))
        fresh = copy.deepcopy(made)
        torch.manual_seed(9)
        fresh.begin_task(make_task(index))
        start, expected = method.base.state_dict(), fresh.state_dict()
        assert start.keys() == expected.keys()
        assert all(torch.equal(start[key], expected[key]) for key in start)
        train(method, make_task(index), batch)
        assert any(not torch.equal(method.base.state_dict()[key], expected[key]) for key in expected)


BY_TASK = ["framefusion_moe", "moe_adapter"]


def of_tasks(batch, count):
    return replace(batch, task_ids=torch.arange(len(batch.video_ids)) % count)


def joint(name, tasks=3):
    """Return the joint training of a retriever that reads captions by task, at the start of its last stage."""
    method = UpperBound(UpperBoundConfig(base=name), small(name))
    for index in range(tasks):
        method.begin_task(make_task(index))
    return method


@pytest.mark.parametrize("name", BY_TASK)
def test_base_with_task_captions_trains_its_task_parameters(name, batch):
    method = joint(name)
    assert method.declared.task_conditioned_text
    trained = [p for group in method.param_groups() for p in group["params"]]
    start = copy.deepcopy(method.state_dict())
    optimizer = torch.optim.SGD(trained, lr=1.0)
    torch.manual_seed(0)
    for _ in range(2):  # experts start from zero: their routers move from the second step on
        optimizer.zero_grad()
        torch.stack(list(method.train().losses(of_tasks(batch, 3)).values())).sum().backward()
        optimizer.step()
    moved = {key for key, value in method.state_dict().items() if not torch.equal(start[key], value)}
    found = {match[2] for key in moved if (match := re.search(r"(prototypes|routers)\.(\d+)", key))}
    assert found == ({"1", "2"} if name == "framefusion_moe" else {"0", "1", "2"})  # prototype 0 bypasses the router


@pytest.mark.parametrize("name", BY_TASK)
def test_a_joint_batch_is_scored_as_the_evaluation_scores(name, batch):
    """Each column is compared: captions encoded for the task of the column's video, and the video as its task stores
    it.
    """
    method, mixed = joint(name).eval(), of_tasks(batch, 3)
    for parameter in method.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    logits = method.logits(mixed)
    for column, task in enumerate(mixed.task_ids.tolist()):
        queries = method.encode_text(batch.tokens, task)
        video = method.encode_video_for_task(batch.frames[column : column + 1], task)
        torch.testing.assert_close(logits[:, column], method.scale() * method.score(queries, video)[:, 0])


@pytest.mark.parametrize("name", BY_TASK)
def test_joint_training_of_one_task_is_the_retriever_s_own_first_task(name, batch):
    made = small(name)
    states = []
    for method in (copy.deepcopy(made), UpperBound(UpperBoundConfig(base=name), copy.deepcopy(made))):
        torch.manual_seed(4)
        train(method, make_task(0), batch)
        states.append(getattr(method, "base", method).state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_base_that_does_not_join_tasks_is_refused(monkeypatch):
    cls = find_method("moe_adapter")
    found = replace(cls.capabilities(cls.Config()), joins_tasks=False)
    monkeypatch.setattr(cls, "capabilities", lambda config: found)
    with refuses("upper_bound", "moe_adapter", where="method.base", write=("method.base=clip4clip",)):
        resolve({"method": "upper_bound", "method.base": "moe_adapter", "stream": "s"})


def test_task_indices_do_not_affect_a_task_free_base(base, batch):
    method = UpperBound(UpperBoundConfig(), base)
    method.begin_task(make_task(0))
    assert torch.equal(method.losses(batch)["contrastive"], method.losses(of_tasks(batch, 2))["contrastive"])


def test_it_trains_on_all_seen_pairs_and_encodes_all_videos_again(base):
    method = UpperBound(UpperBoundConfig(), base)
    assert method.declared.trains_on == "seen"
    assert method.declared.reencodes_gallery
    assert method.declared.task_conditioned_text == base.declared.task_conditioned_text


def test_only_final_trains_in_the_last_task_alone(base, batch):
    before = base.encode_video(batch.frames).detach()
    method = UpperBound(UpperBoundConfig(only_final=True), base)
    for index in range(2):
        train(method, make_task(index), batch)
        assert method.param_groups() == []
        assert torch.equal(method.encode_video(batch.frames), before)
    train(method, make_task(2), batch)
    assert not torch.equal(method.encode_video(batch.frames), before)
