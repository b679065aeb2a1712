import copy

import pytest
import torch

from ctvr.methods.er_ring import ERRing, ERRingConfig
from ctvr.methods.layers.replay.buffer import join
from tests.methods.conftest import make_batch, make_task
from tests.methods.steps import train_stream


def make(base, **settings):
    return ERRing(ERRingConfig(**settings), copy.deepcopy(base))


@pytest.mark.parametrize(("ratio", "count"), [(0.5, 2), (1.0, 4), (2.0, 8)])
def test_a_step_sees_the_batch_and_ratio_times_as_many_memory_pairs(base, ratio, count, monkeypatch):
    method = make(base, ratio=ratio)
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    seen = []
    monkeypatch.setattr(method.base, "losses", lambda batch: seen.append(batch) or {})
    batch = make_batch(4, 2, seed=5)
    torch.manual_seed(3)
    method.losses(batch)
    torch.manual_seed(3)
    expected = join(batch, method.memory.batch(method.memory.sample(count)), 1)
    assert len(seen[0].video_ids) == 4 + count
    assert torch.equal(seen[0].frames, expected.frames)
    assert seen[0].task_ids.tolist() == [1] * 4 + [0] * count


@pytest.mark.parametrize(
    ("ratio", "pairs", "workers", "sizes"),
    [(1.0, 4, 2, [4, 4]), (0.25, 2, 3, [0, 1, 1]), (0.5, 1, 8, [0, 1] * 4), (0.1, 1, 2, [0, 1]), (0.0, 4, 2, [0, 0])],
)
def test_as_many_pairs_are_replayed_as_one_worker_replays_and_never_none(
    base, ratio, pairs, workers, sizes, monkeypatch
):
    monkeypatch.setattr("ctvr.methods.er_ring.world_size", lambda: workers)
    found = make(base, ratio=ratio).replayed(pairs)
    monkeypatch.setattr("ctvr.methods.er_ring.world_size", lambda: 1)
    assert found == sizes
    assert make(base, ratio=ratio).replayed(pairs * workers) == [sum(sizes)]


def test_separate_losses_contrast_the_step_and_the_memory_each_among_themselves(base):
    method = make(base, negatives="separate")
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    batch = make_batch(4, 2, seed=5)
    torch.manual_seed(3)
    (found,) = method.losses(batch).values()
    torch.manual_seed(3)
    memory = method.memory.batch(method.memory.sample(4))
    (new,), (old,) = method.base.losses(batch).values(), method.base.losses(memory).values()
    assert torch.allclose(found, (new + old) / 2)
    torch.manual_seed(3)
    (joint,) = make_like(method, negatives="joint").losses(batch).values()
    assert joint > found  # twice as many negatives


def make_like(method, **settings):
    other = copy.deepcopy(method)
    other.config = ERRingConfig(**settings)
    return other


def test_every_worker_has_a_pair_for_separate_losses(base, monkeypatch):
    monkeypatch.setattr("ctvr.methods.er_ring.world_size", lambda: 3)
    assert make(base, ratio=0.1, negatives="separate").replayed(1) == [1, 1, 1]
