import pytest
import torch

from ctvr.methods.base_moco import BaseMoCo, BaseMoCoConfig
from ctvr.methods.lwf_moco import LwFMoCo
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import distilled_by_hand, moved, train_stream

KINDS = ["inbatch_kl", "queue_kl", "feature_l2"]


@pytest.fixture
def base(small_clip):
    return BaseMoCo(BaseMoCoConfig(queue_size=10), small_clip)


@pytest.fixture
def make(base):
    return maker(LwFMoCo, base)


def second_task(method: LwFMoCo) -> LwFMoCo:
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    return method


def distilled(method: LwFMoCo, batch) -> torch.Tensor:
    taught = method.teacher("pair", batch.frames, batch.tokens)
    return method.distil(method.base.queries(batch), taught, method.base.keys(batch)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_that_equals_its_teacher_learns_nothing_from_it(make, kind):
    method = second_task(make(distill=kind))
    method.zero_grad()
    loss = distilled(method, make_batch())
    loss.backward()
    assert abs(loss.item()) < 1e-6
    assert max(p.grad.abs().max().item() for p in method.base.encoders.parameters() if p.grad is not None) < 1e-4


def test_the_weight_is_in_the_term(make):
    one, five = second_task(make()), second_task(make(alpha=5.0))
    for method in (one, five):
        with torch.no_grad():
            for parameter in method.base.encoders.parameters():
                parameter.mul_(1.1)
    batch = make_batch()
    torch.testing.assert_close(five.losses(batch)["distillation"], 5 * one.losses(batch)["distillation"])


def test_distillation_averages_both_directions(make):
    method = moved(second_task(make(tau=0.3)))
    batch = make_batch(4, 2)
    with torch.no_grad():
        student, teacher = method.base.queries(batch), method.teacher("pair", batch.frames, batch.tokens)
        new, old = (each.video @ each.text.mT / 0.3 for each in (student, teacher))
        expected = distilled_by_hand(new, old, 1.0) / 2
        assert float(distilled(method, batch)) == pytest.approx(float(expected), rel=1e-4)
