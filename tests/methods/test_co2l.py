import copy

import pytest
import torch

from ctvr.methods import co2l
from ctvr.methods.co2l import Co2L, Co2LConfig, Features
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.structalign import StructAlign, StructAlignConfig
from tests.methods.conftest import THREE, make_batch, make_task
from tests.methods.steps import train_stream


def make(base, **settings) -> Co2L:
    return Co2L(Co2LConfig(**{"buffer_size": 6, **settings}), copy.deepcopy(base))


def second_task(method: Co2L) -> Co2L:
    """Begin the second task without a step: the teacher is the student."""
    train_stream(method, tasks=1, pairs=4)
    method.begin_task(make_task(1))
    for group in method.param_groups():
        for parameter in group["params"]:
            parameter.requires_grad_(True)
    return method.eval()


def test_each_part_is_left_out_alone(bases):
    batch = make_batch(4, 2, seed=5)
    terms = {
        setting: set(second_task(make(bases["clip4clip"], **{setting: 0})).losses(batch))
        for setting in ("buffer_size", "weight")
    }
    assert terms == {"buffer_size": {"contrastive", "distillation"}, "weight": {"contrastive", "negatives"}}


def test_loss_contrasts_the_batch_with_batch_and_memory(bases):
    method = second_task(make(bases["clip4clip"], weight=0.0))
    batch = make_batch(4, 2, seed=5)
    torch.manual_seed(0)
    memory = method.memory.batch(method.memory.sample(4))
    torch.manual_seed(0)
    terms = method.losses(batch)
    memory.video_ids[:] += 100  # numbers of this test's batches repeat in every task; real ones do not
    captions, videos = (
        torch.cat([encode(a), encode(b)])
        for encode, a, b in (
            (method.encode_text, batch.tokens, memory.tokens),
            (method.encode_video, batch.frames, memory.frames),
        )
    )
    logits = method.scale() * captions @ videos.mT  # (8, 8), the batch first

    def one_way(z, own):
        same = torch.cat([torch.zeros(4, 4, dtype=torch.bool), batch.video_ids[:, None] == own], dim=1)
        return -(z[:4].masked_fill(same, -torch.inf).log_softmax(1)).diagonal().mean()

    own = memory.video_ids - 100
    torch.testing.assert_close(sum(terms.values()), (one_way(logits, own) + one_way(logits.mT, own)) / 2)
    torch.testing.assert_close(terms["contrastive"], contrastive(logits[:4, :4]))


def test_memory_pairs_push_and_are_never_anchors(bases):
    """A memory pair's own similarity is not in the loss; only similarities between the two groups are."""
    method = make(bases["clip4clip"])
    torch.manual_seed(0)
    anchors = Features(torch.randn(3, 8), torch.randn(3, 8))
    memory = Features(*(torch.randn(2, 8).requires_grad_() for _ in range(2)))
    none = torch.zeros(3, 2, dtype=torch.bool)
    method.negatives(anchors, memory, none).backward()
    scores = method.scale() * anchors.texts @ memory.videos.mT, method.scale() * anchors.videos @ memory.texts.mT
    own = method.scale() * anchors.texts @ anchors.videos.mT
    for z, mine, other, gradient in (
        (scores[0], own, anchors.texts, memory.videos.grad),
        (scores[1], own.mT, anchors.videos, memory.texts.grad),
    ):
        share = torch.cat([mine, z], dim=1).softmax(dim=1)[:, 3:]  # how much each negative is pushed away
        torch.testing.assert_close(gradient, method.scale().detach() * (share.mT @ other).detach() / 6)


def test_the_same_video_in_the_memory_is_no_negative(bases):
    method = make(bases["clip4clip"])
    anchors, memory = (Features(torch.randn(3, 8), torch.randn(3, 8)) for _ in range(2))
    everything = torch.ones(3, 3, dtype=torch.bool)
    assert float(method.negatives(anchors, memory, everything)) == 0.0
    assert float(method.negatives(anchors, memory, ~everything)) > 0.0


@pytest.mark.parametrize("name", THREE)
def test_relations_span_batch_and_memory(bases, name, monkeypatch):
    method = second_task(make(bases[name]))
    seen = []
    monkeypatch.setattr(co2l, "kept_across", lambda new, old, _: seen.append((new, old)) or new.sum())
    batch = make_batch(4, 2, seed=5)
    torch.manual_seed(0)
    memory = method.memory.batch(method.memory.sample(4))
    torch.manual_seed(0)
    method.losses(batch)
    ((new, old),) = seen
    assert new.shape == (8, 8)
    torch.testing.assert_close(new, old)  # nothing has been learned since the teacher was made
    across = method.score(method.encode_text(memory.tokens), method.encode_video(batch.frames))
    torch.testing.assert_close(new[4:, :4], across)


def test_a_score_of_several_numbers_is_refused(small_clip):
    method = make(StructAlign(StructAlignConfig(score="fused"), small_clip))
    with pytest.raises(ValueError, match="computes 2 scores for each pair, but relations need one"):
        second_task(method).losses(make_batch(4, 2, seed=5))
