import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.clip4clip import Clip4Clip
from ctvr.methods.heads import HeadLinear
from ctvr.methods.layers.losses.distillation import EncodedOnce, symmetric_distillation
from ctvr.methods.lwf import LwF, LwFConfig
from ctvr.methods.settings import SettingError
from ctvr.methods.xpool import XPool, XPoolConfig
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import distilled_by_hand, gradient_of, moved, train_stream, train_task, weights
from tests.refusing import refused

KINDS = ["video", "each", "pair"]


@pytest.fixture
def make(base):
    return maker(LwF, base)


def second_task(method):
    train_stream(method, tasks=1, steps=2)
    method.begin_task(make_task(1))
    for parameter in method.parameters():
        parameter.requires_grad_(True)
    method.zero_grad()
    return method


def gradients(method) -> dict[str, float]:
    """Return the largest gradient of each parameter that has one."""
    return {name: float(p.grad.abs().max()) for name, p in method.named_parameters() if p.grad is not None}


def test_the_caption_encoder_is_not_distilled_unless_asked(make):
    for kind, is_distilled in (("video", False), ("each", True), ("pair", True)):
        method = make(student=kind)
        train_stream(method, tasks=1)
        train_task(method, make_task(1), [make_batch(4, 2, seed=i) for i in range(2)])
        method.zero_grad()
        method.distil(EncodedOnce(method.base, make_batch())).backward()
        assert any(name.startswith("base.backbone.text") for name in gradients(method)) == is_distilled


def test_first_task_is_distilled_from_the_pretrained_model(make, base):
    plain = train_stream(copy.deepcopy(base), tasks=1)
    assert train_stream(make(first_task=False), tasks=1) == plain
    method = make()
    pretrained = weights(base)
    assert train_stream(method, tasks=1) != plain
    assert torch.equal(weights(method.teacher.module), pretrained)


def test_the_papers_loss_is_ours_plus_the_teachers_entropy():
    torch.manual_seed(0)
    teacher, student = 20 * torch.randn(5, 7), (20 * torch.randn(5, 7)).requires_grad_()

    def cross_entropy(a, b):
        return 4 * F.cross_entropy(b / 2, (a / 2).softmax(-1)) + 4 * F.cross_entropy(b.mT / 2, (a.mT / 2).softmax(-1))

    ours, theirs = symmetric_distillation(student, teacher, 2.0), cross_entropy(teacher, student)
    torch.testing.assert_close(ours + cross_entropy(teacher, teacher), theirs, rtol=1e-5, atol=1e-4)
    gradient = [torch.autograd.grad(loss, student)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradient, rtol=1e-4, atol=1e-6)


def test_features_are_made_once_for_both_losses(make, monkeypatch):
    method = second_task(make(student="pair"))
    calls = []
    encode = Clip4Clip.encode_video
    monkeypatch.setattr(Clip4Clip, "encode_video", lambda self, frames: calls.append(self) or encode(self, frames))
    method.losses(make_batch())
    assert [call is method.base for call in calls] == [True, False]  # the student, the teacher
    assert "encode_video" not in vars(method.base)


def test_dropout_is_off_in_the_teacher(small_clip):
    method = LwF(LwFConfig(), XPool(XPoolConfig(dropout=0.5), small_clip))
    method.begin_task(make_task(0))
    method.train()
    batch = make_batch()
    q, v = method.teacher("encode_text", batch.tokens), method.teacher("encode_video", batch.frames)
    assert method.base.training
    assert torch.equal(method.teacher("score", q, v), method.teacher("score", q, v))


@pytest.mark.parametrize("kind", KINDS)
def test_the_distillation_of_a_moved_student_is_the_one_computed_by_hand(make, kind):
    """The loss uses its weight and temperature, and the teacher's output is a constant."""
    method = moved(second_task(make(student=kind, temperature=0.7, weight=5.0)))
    batch = make_batch(4, 2)
    term = method.losses(batch)["distillation"]
    scale, base = method.base.scale(), method.base
    videos, texts = base.encode_video(batch.frames), base.encode_text(batch.tokens)
    old_videos = method.teacher("encode_video", batch.frames)
    old_texts = method.teacher("encode_text", batch.tokens)
    old = scale.detach() * old_texts @ old_videos.mT
    expected = distilled_by_hand(scale * (texts if kind == "pair" else old_texts) @ videos.mT, old, 0.7)
    if kind == "each":
        expected = expected + distilled_by_hand(scale * texts @ old_videos.mT, old, 0.7)
    assert float(term.detach()) == pytest.approx(5 * float(expected.detach()), rel=1e-4)
    factor = base.backbone.logit_scale
    assert gradient_of(term, factor) == pytest.approx(5 * gradient_of(expected, factor), rel=1e-3)


def test_the_teacher_of_every_task_is_the_student_of_the_former_one(make):
    method = make()
    for index in range(3):
        former = weights(method.base)
        method.begin_task(make_task(index))
        assert torch.equal(weights(method.teacher.module), former)
        moved(method)


def test_videos_that_never_change_are_not_distilled():
    head = HeadLinear.Config()
    call = partial(LwF.check_base, LwFConfig(), HeadLinear, head)
    refused(call, kind=SettingError, write="<student>=each")
    LwF.check_base(LwFConfig(student="each"), HeadLinear, head)
    LwF.check_base(LwFConfig(weight=0), HeadLinear, head)
    LwF.check_base(LwFConfig(), HeadLinear, replace(head, side="both"))
