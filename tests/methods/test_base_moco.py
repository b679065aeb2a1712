import pytest
import torch

from ctvr.methods.base import Batch
from ctvr.methods.base_moco import BaseMoCo
from ctvr.methods.layers.replay.momentum import Encoders
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import step, train_stream, train_task, weights


@pytest.fixture
def make(small_clip):
    return maker(BaseMoCo, small_clip, queue_size=10)


def test_the_first_step_has_no_negatives_and_the_second_learns(make):
    method = make()
    before = weights(method.encoders)
    first, second = train_task(method, make_task(), [make_batch()])[0], None
    assert first == 0
    assert torch.equal(weights(method.encoders), before)
    second = train_task(method, make_task(1), [make_batch(seed=1)])[0]
    assert second > 0
    assert not torch.equal(weights(method.encoders), before)


def test_the_momentum_encoders_follow_by_equation_8(make):
    method = make(m=0.9)
    train_task(method, make_task(), [make_batch()])
    theta_m = weights(method.local.encoders)
    parameters = [p for group in method.param_groups() for p in group["params"]]
    step(method, parameters, make_batch(seed=1))
    torch.testing.assert_close(weights(method.local.encoders), 0.9 * theta_m + 0.1 * weights(method.encoders))


def test_every_task_starts_with_equal_encoders_and_keeps_the_queue(make):
    method = make()
    train_stream(method, tasks=1)
    assert not torch.equal(weights(method.local.encoders), weights(method.encoders))
    queue = method.local.queue.video.clone()
    method.begin_task(make_task(1))
    assert torch.equal(weights(method.local.encoders), weights(method.encoders))
    assert torch.equal(method.local.queue.video, queue)
    reset = make(queue_across_tasks="reset")
    train_stream(reset, tasks=1)
    reset.begin_task(make_task(1))
    assert len(reset.local.queue) == 0


def test_keys_enter_the_queue_after_the_step_in_which_they_were_made(make):
    method = make()
    method.begin_task(make_task())
    batch = make_batch()
    keys = method.local.keys(batch.frames, batch.tokens)
    method.losses(batch)
    assert len(method.local.queue) == 0
    method.after_step()
    assert torch.equal(method.local.queue.content()[0].video, keys.video)
    assert method.local.queue.content()[1].tolist() == batch.video_ids.tolist()


def test_evaluation_enqueues_nothing_and_uses_theta(make):
    method = make()
    train_stream(method, tasks=1)
    with torch.no_grad():
        method.losses(make_batch())
    before = method.local.queue.pointer.item()
    method.after_step()
    assert method.local.queue.pointer.item() == before
    batch = make_batch()
    assert torch.equal(method.encode_video(batch.frames), method.encoders.video(batch.frames))
    assert not torch.equal(method.encode_text(batch.tokens), method.local.encoders.text(batch.tokens))


def test_accumulated_batches_are_all_enqueued(make):
    method = make()
    method.begin_task(make_task())
    for seed in range(2):
        method.losses(make_batch(4, seed=seed))
    method.after_step()
    assert len(method.local.queue) == 8


def test_keys_of_the_same_video_may_be_spared(make):
    batch = make_batch()
    once = Batch(batch.frames, batch.tokens, torch.zeros(6, dtype=torch.int64), batch.categories)
    for mask, expected in ((True, True), (False, False)):
        method = make(mask_same_video=mask)
        train_task(method, make_task(), [once])
        assert (float(method.losses(once)["contrastive"]) == 0) is expected


def test_other_keys_of_the_batch_may_be_negatives(make):
    method = make(inbatch_negatives=True)
    method.begin_task(make_task())
    batch = make_batch()
    logits = method.logits(batch)
    target = torch.arange(6)
    expected = torch.nn.functional.cross_entropy(logits, target) + torch.nn.functional.cross_entropy(logits.mT, target)
    torch.testing.assert_close(method.losses(batch)["contrastive"], expected)


def test_exactly_both_towers_learn(make):
    method = make()
    trained = {id(p) for group in method.param_groups() for p in group["params"]}
    clip = method.encoders.clip
    assert trained == {id(p) for p in [*clip.vision.parameters(), *clip.text.parameters()]}
    train_stream(method, tasks=1)
    assert all(p.grad is None for p in method.local.parameters())


def test_a_random_queue_gives_the_first_step_negatives(make):
    assert train_task(make(queue_init="random"), make_task(), [make_batch()])[0] > 0


def test_captions_may_be_averaged_over_tokens(make, batch):
    method = make(text_pool="avg")
    assert torch.equal(method.encode_text(batch.tokens), Encoders(method.encoders.clip, "avg").text(batch.tokens))
