from dataclasses import replace

import pytest
import torch

from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.prompt import Prompt, PromptConfig
from tests.methods.conftest import make_batch, reducer_config


@pytest.fixture
def method(small_clip):
    torch.manual_seed(0)
    return Prompt(PromptConfig(), small_clip).eval()


def test_every_block_holds_five_more_tokens(method):
    with record_tokens() as states, torch.no_grad():
        method.encode_video(make_batch(2, 3).frames)
    assert states[0].log == [(3, 22, 22)] * 4
    assert states[0].protected == 1


def test_gradients_reach_the_prompts_of_every_block(method):
    batch = make_batch(2, 3)
    sum(method.losses(batch).values()).backward()
    for prompts in (method.adaptation.vision, method.adaptation.text):
        assert prompts.grad.flatten(1).abs().sum(1).gt(0).all()


def test_prompts_without_attention_leave_clip_unchanged(small_clip, method):
    """A token of vanishing size gets no attention: the model is CLIP, and its class token is read."""

    def hidden(insert):
        def before(x, state):
            state.sizes = torch.ones(len(x), x.shape[1], 1)
            x = insert(x, state)
            state.sizes[:, 1:6] = 1e-30
            return x

        return before

    frames = make_batch(2, 3).frames
    seams = [replace(seam, before=hidden(seam.before)) for seam in method.adaptation.vision_seams(small_clip)]
    with torch.no_grad():
        torch.testing.assert_close(small_clip.vision(frames, seams), small_clip.vision(frames), rtol=0, atol=1e-5)


def test_captions_may_fill_the_whole_context(method):
    tokens = torch.full((1, 16), 5)
    tokens[0, 0], tokens[0, -1] = 98, 99
    with torch.no_grad():
        assert torch.isfinite(method.encode_text(tokens)).all()


def test_tempme_gives_every_new_clip_its_own_prompts_and_never_merges_them(small_clip):
    torch.manual_seed(0)
    method = Prompt(PromptConfig(reducer=reducer_config("tempme", num_frames=8)), small_clip)
    with record_tokens() as states, torch.no_grad():
        method.encode_video(make_batch(2, 8).frames)
    assert states[0].log == [(8, 22, 20), (4, 26, 24), (1, 59, 54), (1, 54, 50)]
    assert states[0].sizes.shape == (2, 45, 1)
    assert states[0].sizes.sum(1).flatten().tolist() == [8.0 * 17, 8.0 * 17]
