import copy

import pytest
import torch

from methods.base_moco import BaseMoCo, BaseMoCoConfig
from methods.der_moco import DERMoCo, DERMoCoConfig
from tests.methods.conftest import make_batch, make_task
from tests.methods.steps import train_stream, train_task, weights


@pytest.fixture
def base(small_clip):
    return BaseMoCo(BaseMoCoConfig(queue_size=10), small_clip)


@pytest.fixture
def make(base):
    def make(**settings) -> DERMoCo:
        return DERMoCo(DERMoCoConfig(**{"memory": 6, **settings}), copy.deepcopy(base))

    return make


def exact(method: DERMoCo) -> DERMoCo:
    """One task of frames that float16 holds exactly."""
    batch = make_batch(4, 2)
    batch = type(batch)(batch.frames.half().float(), batch.tokens, batch.videos, batch.categories)
    train_task(method, make_task(), [batch, batch])
    return method


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"memory": 0}])
def test_no_weight_or_no_memory_is_base_moco_bit_for_bit(make, base, settings):
    method = make(**settings)
    assert train_stream(method, tasks=3) == train_stream(base, tasks=3)
    assert torch.equal(weights(method), weights(base))


def test_the_first_task_is_base_moco_and_the_second_is_not(make, base):
    method, plain = make(), copy.deepcopy(base)
    assert train_stream(method, tasks=1) == train_stream(base, tasks=1)
    assert train_stream(make()) != train_stream(plain)


@pytest.mark.parametrize("target", ["features", "similarities"])
def test_an_unchanged_model_pays_nothing(make, target):
    method = exact(make(target=target))
    assert method.distil(torch.arange(6)).item() < 1e-10


def test_the_distance_is_summed_over_dimensions_and_bounded_by_4(make):
    method = exact(make())
    train_stream(method, tasks=2)
    rows = torch.arange(6)
    pairs = method.memory.batch(rows)
    video, text = method.encode_video(pairs.frames), method.encode_text(pairs.tokens)
    mean = torch.nn.functional.mse_loss
    expected = 16 * (mean(video, method.memory.video_features) + mean(text, method.memory.text_features)) / 2
    torch.testing.assert_close(method.distil(rows), expected)
    assert 0 < method.distil(rows) <= 4


def test_kept_features_are_those_of_the_finished_task(make):
    method = exact(make())
    batch = method.memory.batch(torch.arange(6))
    torch.testing.assert_close(method.memory.video_features, method.encode_video(batch.frames).detach())
    torch.testing.assert_close(method.memory.text_features, method.encode_text(batch.tokens).detach())
    assert not method.memory.video_features.requires_grad


def test_keys_of_memory_pairs_do_not_enter_the_queue(make):
    method = exact(make())
    before = int(method.base.local.queue.pointer)
    train_task(method, make_task(1), [make_batch(4, 2, seed=5)])
    assert int(method.base.local.queue.pointer) == (before + 4) % 10


def test_the_weight_is_in_the_term(make):
    method = make(alpha=2.0)
    train_stream(method, tasks=2)
    batch = make_batch(6, 2)
    torch.manual_seed(0)
    expected = 2 * method.distil(method.memory.draw(6))
    torch.manual_seed(0)
    torch.testing.assert_close(method.losses(batch)["distillation"], expected)


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match=r"alpha must be >= 0, got -1\.0\. Use 0 to train `base_moco` alone"):
        DERMoCoConfig(alpha=-1.0)
