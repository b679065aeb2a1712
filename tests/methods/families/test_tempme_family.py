"""Common behaviour of lora, prompt, adapter and tempme, and lora as `tome`;
each method has its own file in the parent folder."""

import pytest
import torch

from ctvr.methods.adapter import Adapter, AdapterConfig
from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.reduction.config import REDUCERS
from ctvr.methods.lora import Lora, LoraConfig
from ctvr.methods.prompt import Prompt, PromptConfig
from ctvr.methods.tempme import TempMe, TempMeConfig
from tests.methods.conftest import make_batch, make_task, reducer_config
from tests.methods.steps import train_task, weights

FRAMES = 4
METHODS = {
    "lora": (Lora, LoraConfig),
    "prompt": (Prompt, PromptConfig),
    "adapter": (Adapter, AdapterConfig),
    "tempme": (TempMe, TempMeConfig),
}


def make(name, clip, **settings):
    kind = settings.pop("reducer", name if name in {"tome", "tempme"} else "none")
    cls, config = METHODS["lora" if name == "tome" else name]
    torch.manual_seed(0)
    return cls(config(reducer=reducer_config(kind, num_frames=FRAMES), **settings), clip).eval()


def nudge(method):
    """Move every added weight off its initial value."""
    with torch.no_grad():
        for group in method.param_groups():
            for parameter in group["params"]:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return method


@pytest.mark.parametrize("name", METHODS)
def test_a_step_moves_what_is_handed_over_and_nothing_of_clip(small_clip, name):
    method = make(name, small_clip)
    before = weights(method.backbone)
    handed = [p for group in method.param_groups() for p in group["params"]]
    assert {id(p) for p in handed} == {id(p) for n, p in method.named_parameters() if not n.startswith("backbone.")}
    old = [p.detach().clone() for p in handed]
    losses = train_task(method, make_task(), [make_batch(4, FRAMES, seed=i) for i in range(2)] * 4, lr=0.02)
    assert torch.equal(before, weights(method.backbone))
    assert all(not torch.equal(p, q) for p, q in zip(handed, old))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["lora", "adapter"])
def test_a_fresh_adaptation_is_frozen_clip(small_clip, name):
    method, batch = make(name, small_clip), make_batch(3, FRAMES)
    with torch.no_grad():
        torch.testing.assert_close(method.encode_video(batch.frames), mean_pool(small_clip.vision(batch.frames), "l2"))
        torch.testing.assert_close(method.encode_text(batch.tokens), l2_normalize(small_clip.text(batch.tokens)))


@pytest.mark.parametrize("name", ["lora", "prompt", "adapter"])
@pytest.mark.parametrize("kind", [name for name in REDUCERS if name != "none"])
def test_every_adaptation_carries_every_reducer(small_clip, name, kind):
    method = nudge(make(name, small_clip, reducer=kind))
    features = method.encode_frames(make_batch(3, FRAMES).frames)
    assert features.shape == (3, FRAMES, 16)
    features.sum().backward()
    added = (
        [*method.reducer.parameters(), *method.adaptation.vision.parameters()]
        if name != "prompt"
        else [*method.reducer.parameters(), method.adaptation.vision]
    )
    assert all(p.grad is not None for p in added)


@pytest.mark.parametrize("name", METHODS)
def test_permuting_pairs_permutes_features(small_clip, name):
    method, batch = nudge(make(name, small_clip)), make_batch(4, FRAMES)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        torch.testing.assert_close(
            method.encode_video(batch.frames)[order], method.encode_video(batch.frames[order]), rtol=0, atol=1e-5
        )
        torch.testing.assert_close(
            method.encode_text(batch.tokens)[order], method.encode_text(batch.tokens[order]), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("name", ["lora", "prompt", "adapter", "tome"])
def test_without_temporal_parts_the_order_of_frames_does_not_matter(small_clip, name):
    method, frames = nudge(make(name, small_clip)), make_batch(2, FRAMES).frames
    with torch.no_grad():
        torch.testing.assert_close(method.encode_video(frames), method.encode_video(frames.flip(1)), rtol=0, atol=1e-5)


def test_tempme_sees_the_order_of_frames(small_clip):
    method, frames = nudge(make("tempme", small_clip)), make_batch(2, FRAMES).frames
    with torch.no_grad():
        assert (method.encode_video(frames) - method.encode_video(frames.flip(1))).abs().max() > 1e-3


def test_interleaved_forwards_of_two_copies_do_not_interfere(small_clip):
    """A student and its teacher: every forward has a state of its own."""
    student, frames = nudge(make("tempme", small_clip)), make_batch(2, FRAMES).frames
    teacher = make("tempme", small_clip)
    with torch.no_grad():
        alone = student.encode_video(frames)
        teacher.encode_video(frames)
        torch.testing.assert_close(student.encode_video(frames), alone, rtol=0, atol=0)


def test_positions_may_be_left_as_the_first_task_made_them(small_clip):
    method = make("tempme", small_clip, train_positions="first")
    names = []
    for index in range(2):
        method.begin_task(make_task(index))
        names.append([group["name"] for group in method.param_groups()])
    assert names == [["adaptation", "positions"], ["adaptation"]]


def test_bfloat16_agrees_with_float32_roughly(small_clip):
    for name in METHODS:
        method, batch = nudge(make(name, small_clip)), make_batch(2, FRAMES)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            video, text = method.encode_video(batch.frames), method.encode_text(batch.tokens)
        assert video.dtype == text.dtype == torch.float32
        assert torch.isfinite(video).all()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lora", {"lr": -1.0}, "lr must be"),
        ("lora", {"rank": 0}, "rank must be"),
        ("tempme", {"rank": 0}, "rank must be"),
        ("tempme", {"lr_clip": -1.0}, "lr_clip must be"),
        ("prompt", {"num_prompts": 0}, "num_prompts must be"),
        ("adapter", {"bottleneck": 0}, "bottleneck must be"),
    ],
)
def test_impossible_settings_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        METHODS[name][1](**settings)
