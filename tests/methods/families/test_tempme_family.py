"""Common behavior of lora, prompt, adapter and tempme, and lora as `tome`; each method has a file in the parent
folder.
"""

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


@pytest.mark.parametrize("name", ["lora", "prompt", "adapter", "tome"])
def test_without_temporal_parts_the_order_of_frames_does_not_matter(small_clip, name):
    method, frames = nudge(make(name, small_clip)), make_batch(2, FRAMES).frames
    with torch.no_grad():
        torch.testing.assert_close(method.encode_video(frames), method.encode_video(frames.flip(1)), rtol=0, atol=1e-5)


def test_tempme_sees_the_order_of_frames(small_clip):
    method, frames = nudge(make("tempme", small_clip)), make_batch(2, FRAMES).frames
    with torch.no_grad():
        assert (method.encode_video(frames) - method.encode_video(frames.flip(1))).abs().max() > 1e-3


def test_positions_may_be_left_as_the_first_task_made_them(small_clip):
    method = make("tempme", small_clip, train_positions="first")
    names = []
    for index in range(2):
        method.begin_task(make_task(index))
        names.append([group["name"] for group in method.param_groups()])
    assert names == [["adaptation", "positions"], ["adaptation"]]
