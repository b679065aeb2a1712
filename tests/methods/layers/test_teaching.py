import pytest
import torch

from methods.base import Method, unit
from methods.base_moco import BaseMoCo, BaseMoCoConfig
from methods.clip4clip import Clip4Clip, Clip4ClipConfig
from methods.framefusion_moe import FrameFusionMoE, FrameFusionMoEConfig
from methods.layers.teaching import Heard, both_ways, clip_of, frozen_start
from tests.methods.conftest import make_batch, make_task


def test_equal_answers_cost_nothing_and_others_cost_the_same_either_way_round():
    torch.manual_seed(0)
    z, other = torch.randn(4, 6), torch.randn(4, 6)
    assert float(both_ways(z, z, 2.0)) == pytest.approx(0.0, abs=1e-6)
    assert float(both_ways(other, z, 2.0)) > 0
    torch.testing.assert_close(both_ways(other, z, 2.0), both_ways(other.mT, z.mT, 2.0))


def test_heard_features_are_those_of_the_losses_and_are_in_its_graph(small_clip):
    base, batch = Clip4Clip(Clip4ClipConfig(), small_clip), make_batch()
    heard = Heard(base, batch)
    terms = heard.losses()
    assert torch.equal(terms["contrastive"], base.losses(batch)["contrastive"])
    assert torch.equal(heard.videos(), base.encode_video(batch.frames))
    assert torch.equal(heard.texts(), base.encode_text(batch.tokens))
    assert heard.videos() is heard.videos()
    assert heard.videos().grad_fn is not None


def test_features_that_the_losses_do_not_make_are_made_when_asked_for(small_clip):
    base, batch = BaseMoCo(BaseMoCoConfig(queue_size=4), small_clip), make_batch()
    base.begin_task(make_task(0))
    heard = Heard(base, batch)
    heard.losses()
    assert torch.equal(heard.videos(), base.encode_video(batch.frames))


def test_the_retriever_is_as_it_was_even_after_an_error(small_clip):
    base, batch = Clip4Clip(Clip4ClipConfig(), small_clip), make_batch()
    before = set(vars(base))
    Heard(base, batch).losses()
    assert set(vars(base)) == before
    with pytest.raises(AttributeError):
        Heard(base, None).losses()
    assert set(vars(base)) == before


def test_a_start_is_frozen_with_what_the_first_task_has_added(small_clip):
    base, batch = FrameFusionMoE(FrameFusionMoEConfig(rank=4), small_clip), make_batch()
    base.begin_task(make_task(0))
    base.eval()
    teacher = frozen_start(base)
    assert torch.equal(teacher("encode_text", batch.tokens, 2), base.encode_text(batch.tokens, 2))
    assert not any(p.requires_grad for p in teacher.module.parameters())


def test_a_retriever_without_clip_is_refused(small_clip):
    assert clip_of(Clip4Clip(Clip4ClipConfig(), small_clip)) is small_clip

    class Bare(Method):
        def encode_text(self, tokens, task=None):
            return unit(tokens.float())

    with pytest.raises(ValueError, match="Bare has no CLIP backbone"):
        clip_of(Bare())
