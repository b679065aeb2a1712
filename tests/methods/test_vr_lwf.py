import copy
import dataclasses

import pytest
import torch

from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.clip_vip import CLIPViP, CLIPViPConfig
from ctvr.methods.layers.losses.distillation import EncodedOnce
from ctvr.methods.lwf import LwF, LwFConfig
from ctvr.methods.vr_lwf import VRLwF, VRLwFConfig, draw_sentences
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import (
    begin,
    distilled_by_hand,
    gradient_of,
    largest_gradient,
    moved,
    train_stream,
)

SMALL = {"sentences": 7, "length": 5}


@pytest.fixture
def make(base):
    return maker(VRLwF, base, **SMALL)


def distil(method, batch):
    return method.distil(batch, method.base.encode_video(batch.frames))


def test_the_vocabulary_is_the_tokenizers_own():
    clip = load_backbone("tiny-clip", "shipped")
    start, end = clip.tokenize.sot_token_id, clip.tokenize.eot_token_id
    torch.manual_seed(0)
    drawn = draw_sentences(clip, 2000, 10)
    words = drawn[:, 1:-1]
    assert drawn.shape == (2000, 12)
    assert set(drawn[:, 0].tolist()) == {start}
    assert set(drawn[:, -1].tolist()) == {end}
    assert words.min() >= 0
    assert words.max() < start  # neither end is a word
    assert torch.equal(drawn.argmax(dim=-1), torch.full((2000,), 11))  # where a caption is read
    assert len(words.unique()) == start  # all words are drawn
    assert all(isinstance(clip.tokenize.decode(row.tolist()), str) for row in words[:50])


def test_the_captions_of_the_batch_do_not_matter(make):
    method, batch = moved(begin(make())), make_batch()
    other = dataclasses.replace(batch, tokens=batch.tokens.flip(0))
    one, two = (method.losses(b)["distillation"] for b in (batch, other))
    assert float(one.detach()) > 0
    assert torch.equal(one, two)


def test_the_same_seed_draws_the_same_sentences_and_each_task_its_own(make):
    one, resumed = begin(make()), make()
    first = one.sentences
    second = begin(one, 1).sentences
    begin(resumed, 0)
    assert torch.equal(resumed.sentences, first)
    assert torch.equal(begin(resumed, 1).sentences, second)
    assert not torch.equal(first, second)


def test_the_teachers_sentences_are_encoded_once_for_each_task(make):
    method, batch = begin(make()), make_batch()
    distil(method, batch)
    kept = method._taught
    distil(method, batch)
    assert method._taught is kept
    begin(method, 1)
    assert method._taught is None


def test_with_the_batchs_captions_for_sentences_it_is_lwf(make, base):
    batch = make_batch()
    for kind in ("video", "each"):
        method = begin(make(student=kind))
        method.sentences = batch.tokens
        lwf = LwF(LwFConfig(student=kind), copy.deepcopy(base))
        lwf.begin_task(make_task(0))
        for strategy in (method, lwf):
            moved(strategy)
        torch.testing.assert_close(distil(method, batch), lwf.distil(EncodedOnce(lwf.base, batch)))


def tvr_plus_cl(clip, **settings):
    preset = {k.removeprefix("method."): v for k, v in VRLwF.PRESETS["tvr-plus-cl"].items()}
    assert preset["base"] == "clip_vip"
    torch.manual_seed(0)
    return VRLwF(VRLwFConfig(**{**SMALL, **preset, **settings}), CLIPViP(CLIPViPConfig(), clip))


def test_tvr_plus_cl_is_clip_vip_in_its_first_task_and_without_weight(small_clip):
    batches = {}
    for name, settings in (("combined", {}), ("no weight", {"weight": 0.0})):
        batches[name] = train_stream(tvr_plus_cl(copy.deepcopy(small_clip), **settings), tasks=2)
    torch.manual_seed(0)
    plain = train_stream(CLIPViP(CLIPViPConfig(), small_clip), tasks=2)
    assert batches["no weight"] == plain
    assert batches["combined"][:3] == plain[:3]
    assert batches["combined"][3:] != plain[3:]


def test_tvr_plus_cl_starts_a_task_with_equal_student_and_teacher(small_clip):
    method, batch = tvr_plus_cl(small_clip), make_batch(frames=5)
    train_stream(method, tasks=1)
    begin(method, 1)
    assert torch.equal(method.teacher("encode_video", batch.frames), method.encode_video(batch.frames))
    distil(method, batch).backward()
    assert largest_gradient(method) < 1e-5


@pytest.mark.parametrize("kind", ["video", "each"])
def test_the_distillation_of_a_moved_student_is_the_one_computed_by_hand(make, kind):
    """The loss uses its weight and temperature, and the teacher's output is a constant."""
    method = moved(begin(make(student=kind, temperature=0.7, weight=5.0)))
    batch = make_batch(4, 2)
    term = method.losses(batch)["distillation"]
    scale, base, sentences = method.base.scale(), method.base, method.taught(torch.device("cpu"))
    old_videos = method.teacher("encode_video", batch.frames)
    old = scale.detach() * sentences @ old_videos.mT
    expected = distilled_by_hand(scale * sentences @ base.encode_video(batch.frames).mT, old, 0.7)
    if kind == "each":
        own = base.encode_text(method.sentences)
        expected = expected + distilled_by_hand(scale * own @ old_videos.mT, old, 0.7)
    assert float(term.detach()) == pytest.approx(5 * float(expected.detach()), rel=1e-4)
    factor = base.backbone.logit_scale
    assert gradient_of(term, factor) == pytest.approx(5 * gradient_of(expected, factor), rel=1e-3)
