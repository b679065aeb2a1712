import copy

import pytest
import torch

from methods.base_moco import BaseMoCo, BaseMoCoConfig
from methods.clip4clip import Clip4Clip, Clip4ClipConfig
from methods.er_ring_moco import ERRingMoCo, ERRingMoCoConfig
from methods.layers.memory import join
from tests.methods.conftest import make_batch, make_task
from tests.methods.steps import train_stream, train_task, weights


@pytest.fixture
def base(small_clip):
    return BaseMoCo(BaseMoCoConfig(queue_size=20), small_clip)


@pytest.fixture
def make(base):
    def make(**settings) -> ERRingMoCo:
        return ERRingMoCo(ERRingMoCoConfig(**{"memory": 6, **settings}), copy.deepcopy(base))

    return make


def test_the_first_task_is_base_moco_bit_for_bit(make, base):
    method = make()
    assert train_stream(method, tasks=1) == train_stream(base, tasks=1)
    assert torch.equal(weights(method), weights(base))


def test_no_memory_is_base_moco_bit_for_bit(make, base):
    method = make(memory=0)
    assert train_stream(method, tasks=3) == train_stream(base, tasks=3)
    assert torch.equal(weights(method), weights(base))


def test_the_memory_never_holds_the_task_that_is_learned(make):
    method = make()
    for index in range(3):
        method.begin_task(make_task(index))
        assert set(method.memory.tasks.tolist()) == set(range(index))
        train_task(method, make_task(index), [make_batch(4, 2, seed=index)])
    assert set(method.memory.tasks.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("ratio", "rows"), [(0.5, 2), (1.0, 4), (0.0, 0)])
def test_a_step_is_the_retrievers_on_batch_and_memory_together(make, ratio, rows):
    method = make(ratio=ratio)
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    batch = make_batch(4, 2, seed=5)
    torch.manual_seed(0)
    drawn = method.memory.draw(rows)
    expected = method.base.losses(join(batch, method.memory.batch(drawn)) if rows else batch)["contrastive"]
    torch.manual_seed(0)
    torch.testing.assert_close(method.losses(batch)["contrastive"], expected)


def test_keys_of_memory_pairs_enter_the_queue(make):
    method = make()
    train_stream(method, tasks=1)
    before = int(method.base.local.queue.filled)
    train_task(method, make_task(1), [make_batch(4, 2, seed=5)])
    assert int(method.base.local.queue.filled) == min(20, before + 8)


def test_any_retriever_can_be_wrapped(small_clip):
    base = Clip4Clip(Clip4ClipConfig(), small_clip)
    plain = copy.deepcopy(base)
    method = ERRingMoCo(ERRingMoCoConfig(memory=0), base)
    assert train_stream(method, lr=1e-3) == train_stream(plain, lr=1e-3)


def test_a_resumed_run_equals_one_that_went_on(make):
    method, other = make(), make()
    train_stream(method, tasks=1)
    other.begin_task(make_task())
    for name, value in method.memory.state_dict().items():
        setattr(other.memory, name, torch.empty(value.shape, dtype=value.dtype))
    other.load_state_dict(method.state_dict())
    batches = [make_batch(4, 2, seed=20 + i) for i in range(3)]
    assert train_task(method, make_task(1), batches) == train_task(other, make_task(1), batches)
    assert torch.equal(weights(method), weights(other))
    assert torch.equal(method.memory.videos, other.memory.videos)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"memory": -1}, "Use 0 for no replay"), ({"ratio": -1.0}, "ratio must be >= 0, got -1.0")],
)
def test_wrong_settings_say_what_to_write(settings, message):
    with pytest.raises(ValueError, match=message):
        ERRingMoCoConfig(**settings)
