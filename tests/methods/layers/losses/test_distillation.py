import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.base import Method, l2_normalize
from ctvr.methods.base_moco import BaseMoCo, BaseMoCoConfig
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.framefusion_moe import FrameFusionMoE, FrameFusionMoEConfig
from ctvr.methods.layers.losses.distillation import (
    EncodedOnce,
    RelationConfig,
    backbone_of,
    frozen_start,
    kept_across,
    kept_within,
)
from tests.methods.conftest import make_batch, make_task


def test_features_are_those_of_the_losses_and_are_in_its_graph(small_clip):
    base, batch = Clip4Clip(Clip4ClipConfig(), small_clip), make_batch()
    encoded = EncodedOnce(base, batch)
    terms = encoded.losses()
    assert torch.equal(terms["contrastive"], base.losses(batch)["contrastive"])
    assert torch.equal(encoded.videos(), base.encode_video(batch.frames))
    assert torch.equal(encoded.texts(), base.encode_text(batch.tokens))
    assert encoded.videos() is encoded.videos()
    assert encoded.videos().grad_fn is not None


def test_features_that_the_losses_do_not_make_are_made_when_asked_for(small_clip):
    base, batch = BaseMoCo(BaseMoCoConfig(queue_size=4), small_clip), make_batch()
    base.begin_task(make_task(0))
    encoded = EncodedOnce(base, batch)
    encoded.losses()
    assert torch.equal(encoded.videos(), base.encode_video(batch.frames))


def test_the_retriever_is_as_it_was_even_after_an_error(small_clip):
    base, batch = Clip4Clip(Clip4ClipConfig(), small_clip), make_batch()
    before = set(vars(base)) | {"declared"}  # read once, then kept
    EncodedOnce(base, batch).losses()
    assert set(vars(base)) == before
    with pytest.raises(AttributeError):
        EncodedOnce(base, None).losses()
    assert set(vars(base)) == before


def test_a_start_is_frozen_with_what_the_first_task_has_added(small_clip):
    base, batch = FrameFusionMoE(FrameFusionMoEConfig(rank=4), small_clip), make_batch()
    base.begin_task(make_task(0))
    base.eval()
    teacher = frozen_start(base)
    with torch.no_grad():  # as the teacher runs: without gradients a last block makes one token of each caption
        assert torch.equal(teacher("encode_text", batch.tokens, 2), base.encode_text(batch.tokens, 2))
    assert not any(p.requires_grad for p in teacher.module.parameters())


def test_a_retriever_without_clip_is_refused(small_clip):
    assert backbone_of(Clip4Clip(Clip4ClipConfig(), small_clip)) is small_clip

    class Bare(Method):
        def encode_text(self, tokens, task=None):
            return l2_normalize(tokens.float())

    with pytest.raises(ValueError, match="Bare has no CLIP backbone"):
        backbone_of(Bare())


# --------------------------------------------------------------------- relations

EQUAL = RelationConfig(kappa_teacher=0.2)


def unit_vectors(rows: int = 6) -> torch.Tensor:
    return F.normalize(torch.randn(rows, 8, dtype=torch.float64), dim=-1)


def test_relations_across_are_the_cross_entropy_of_rows_and_columns():
    new, old = unit_vectors() @ unit_vectors().mT, unit_vectors() @ unit_vectors().mT
    s, t = new / 0.2, old / 0.01
    rows = -(t.softmax(1) * s.log_softmax(1)).sum(1).mean()
    columns = -(t.softmax(0) * s.log_softmax(0)).sum(0).mean()
    torch.testing.assert_close(kept_across(new, old, RelationConfig()), (rows + columns) / 2)


def test_relations_within_leave_the_diagonal_out():
    x, z = unit_vectors(3), unit_vectors(3)
    expected = 0.0
    for i, (j, k) in enumerate([(1, 2), (0, 2), (0, 1)]):
        p = torch.stack([z[i] @ z[j], z[i] @ z[k]]).div(0.01).softmax(0)
        q = torch.stack([x[i] @ x[j], x[i] @ x[k]]).div(0.2).log_softmax(0)
        expected = expected - (p * q).sum() / 3
    torch.testing.assert_close(kept_within([x, x], [z, z], RelationConfig()), expected)


def test_an_equal_teacher_at_equal_temperature_gives_no_gradient():
    old = unit_vectors() @ unit_vectors().mT
    new = old.clone().requires_grad_()
    kept_across(new, old, EQUAL).backward()
    assert new.grad.abs().max() < 1e-12
    features = unit_vectors()
    student = features.clone().requires_grad_()
    kept_within([student], [features], EQUAL).backward()
    assert student.grad.abs().max() < 1e-12
