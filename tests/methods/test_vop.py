import json

import pytest
import torch

from ctvr.methods.backbone.blocks import TokenState
from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.vop import ContextPrompts, VoP, VoPConfig
from ctvr.methods.zero_shot import ZeroShot, ZeroShotConfig
from ctvr.orchestrator.catalog.cost_table import estimate
from ctvr.orchestrator.learning.evaluation.cost import trained_parameters
from tests.methods.conftest import make_batch
from tests.methods.released import FIXTURES, floats, read, tiny_clip
from tests.methods.test_dgl import SHAPE

FC = {"prompts": "context", "num_prompts": 2, "suffix": 0, "video_blocks": 2, "lstm_width": 8}


def make(clip, **settings) -> VoP:
    """Return a method whose prompts are as long as words."""
    torch.manual_seed(0)
    method = VoP(VoPConfig(**{"num_prompts": 2, "prefix": 2, "suffix": 2, **settings}), clip)
    with torch.no_grad():
        for prompts in (method.frame, method.video, method.text):
            prompts.normal_(0, 0.5)
    return method.eval()


# ------------------------------------------------------------------------------------- the released code


def test_features_scores_and_gradients_equal_the_released_code(shared, compared):
    folder = shared / "reference" / "prompts"
    assert json.loads((folder / "vop.json").read_text())["config"]["visual_prompts"] == VoPConfig().num_prompts
    io = floats(read(folder / "vop_basic.npz"), "base/")
    state = floats(read(folder / "vop_state.npz"))
    method = VoP(VoPConfig(readout="past_end"), tiny_clip(SHAPE, floats(state, "clip.")))
    with torch.no_grad():
        method.frame.copy_(state["visual_prompt_learner.visual_prompts"][:, 0])
        method.text.copy_(state["text_prompt_learner.text_prompts"])
    x, texts = method.backbone.text.embed(io["ids"].long())
    compared("vop", "forward", method.placed(x, texts)[0], io["text_block0_in"])
    frames = method.encode_frames(io["video"])
    compared("vop", "forward", torch.nn.functional.normalize(frames, dim=-1), io["frame_features"])
    video, text = method.encode_video(io["video"]), method.encode_text(io["ids"].long())
    compared("vop", "forward", video, io["video_feature"])
    compared("vop", "forward", text, io["text_feature"])
    compared("vop", "forward", method.score(text, video), io["score"])
    ((text * io["weight_text"]).sum() + (video * io["weight_video"]).sum()).backward()
    compared("vop", "gradients", method.frame.grad, io["grad/visual_prompts"][:, 0], 1e-4)
    compared("vop", "gradients", method.text.grad, io["grad/text_prompts"], 1e-4)


def test_prompts_of_a_caption_have_the_released_positions(compared):
    """The prompts are those of the first block, with the rows of the table that caption 0 names."""
    file = floats(read(FIXTURES / "vop_released.npz"))
    method = VoP(VoPConfig(), tiny_clip(SHAPE))
    ids = file["rows"].long()
    with torch.no_grad():
        method.backbone.text.positional_embedding.copy_(file["positions"])
        method.backbone.text.token_embedding.weight[ids.unique()] = file["embedding"]
        method.text[0] = file["prompts"]
        x, state = method.backbone.text.embed(ids[None])
        compared("vop", "forward", method.placed(x, state)[0], file["text_block0_in"])


def test_counts_are_those_of_the_release_and_of_our_reading(shared):
    folder = shared / "reference" / "prompts"
    base, reading = (json.loads((folder / name).read_text()) for name in ("vop.json", "vop_fc_shapes.json"))
    method, found = estimate("vop")
    assert trained_parameters(method) == base["counts"]["sum"] == 122_880
    assert found.tokens_out == 12 * 58
    for backbone, name in (("ViT-B-32-quickgelu", "B/32, 12 frames"), ("ViT-B-16-quickgelu", "B/16, 12 frames")):
        method, found = estimate("vop_fc", backbone=backbone)
        assert trained_parameters(method) == reading["parameters"]["sum with 4 text prompts"] == 14_208_000
        assert found.tokens_out == reading[name]["blocks"][1]["tokens"]
        own = 8 * method.context.macs(12) / 1e9
        assert own == pytest.approx(1.359, abs=1e-3)
        assert found.macs / 1e9 - own == pytest.approx(
            reading[name]["gmacs_with_patch_embedding_and_projection"], abs=0.01
        )


# ------------------------------------------------------------------------------------- invariants


def test_caption_without_prompts_equals_clip(small_clip):
    tokens, plain = make_batch(4, 1).tokens, ZeroShot(ZeroShotConfig(), small_clip)
    method = make(small_clip, prefix=0, suffix=0)
    torch.testing.assert_close(method.encode_text(tokens), plain.encode_text(tokens))
    other = make(small_clip, readout="past_end")
    assert not torch.allclose(other.encode_text(tokens), make(small_clip).encode_text(tokens), atol=1e-3)


def test_suffix_prompts_reach_full_captions_alone(small_clip):
    method = make(small_clip)
    tokens = torch.full((2, 16), 5)
    tokens[:, 0], tokens[0, -1], tokens[1, 6], tokens[1, 7:] = 98, 99, 99, 0
    before = method.encode_text(tokens)
    with torch.no_grad():
        method.text[:, 2:] += torch.randn(4, 2, 32)
        after = method.encode_text(tokens)
    assert not torch.allclose(after[0], before[0], atol=1e-3)
    torch.testing.assert_close(after[1], before[1])
    torch.testing.assert_close(method.encode_text(tokens[1:]), after[1:])  # whatever else is in the batch
    cut = torch.cat([tokens[:, :11], tokens[:, -1:]], dim=1)  # of 16 places 4 are for prompts
    torch.testing.assert_close(method.encode_text(cut)[0], after[0])


def test_caption_is_read_at_its_end_token(small_clip):
    x = torch.arange(16.0)[None, :, None].expand(2, 16, 32)
    for readout, third, last in (("end", 5, 15), ("past_end", 7, 15)):
        found = make(small_clip, readout=readout).taken_back(16, x, TokenState(2))[0, :, 0]
        assert found[[3, 11, 15]].tolist() == [third, last, last]


def test_a_video_is_the_mean_of_its_frames_directions(small_clip):
    method, frames = make(small_clip), make_batch(2, 3).frames
    each = torch.stack([method.encode_video(frames[:, [t]]) for t in range(3)], dim=1)
    torch.testing.assert_close(each.norm(dim=-1), torch.ones(2, 3))
    torch.testing.assert_close(method.encode_video(frames), each.mean(dim=1), atol=1e-6, rtol=1e-5)


def test_video_blocks_with_single_frame_masks_equal_clip(small_clip, monkeypatch):
    """The blocks of a video have a mask of single frames, and no prompts as keys."""
    method, frames = make(small_clip, video_blocks=4), make_batch(2, 3).frames
    assert method.first == 0
    frame = torch.cat([torch.full((2,), -1), torch.arange(3).repeat_interleave(17)])
    seen = (frame[:, None] == frame[None]) & (frame >= 0) | (frame < 0)[:, None]
    plain = torch.nn.functional.scaled_dot_product_attention

    def masked(q, k, v, attn_mask=None, is_causal=False):
        return plain(q, k, v, attn_mask=seen)

    with torch.no_grad():
        whole = method.encode_frames(frames)
        with monkeypatch.context() as patch:
            patch.setattr("ctvr.methods.backbone.blocks.F.scaled_dot_product_attention", masked)
            alone = method.encode_frames(frames)
        clip = small_clip.vision(frames)
    torch.testing.assert_close(alone, clip, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(whole, clip, atol=1e-3)


def test_frame_prompts_see_only_frames_of_their_video(small_clip):
    torch.manual_seed(0)
    context, classes = ContextPrompts(32, 2, 8), torch.randn(2, 3, 32)
    made = context(classes)
    assert made.shape == (2, 3, 2, 32)
    for frame in range(3):
        other = classes.clone()
        other[0, frame] += 1
        changed = (context(other) - made).abs().amax(dim=(2, 3)) > 1e-6
        assert changed[0].all()
        assert not changed[1].any()
    method = make(small_clip, **FC)
    method.encode_video(make_batch(2, 3).frames).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in method.context.parameters())


def test_generated_prompts_enter_after_the_class_token_and_leave_again(small_clip):
    method, x = make(small_clip, **FC), torch.randn(6, 17, 32)
    state = TokenState(2, 3)
    put = method.of_context(x, state)
    assert state.extra_macs == 2 * method.context.macs(3)
    torch.testing.assert_close(put[:, 1:3].unflatten(0, (2, 3)), method.context(x[:, 0].unflatten(0, (2, 3))))
    assert torch.equal(torch.cat([put[:, :1], put[:, 3:]], dim=1), x)


def test_tokens_and_the_generators_multiply_adds_are_counted(small_clip):
    with record_tokens() as states, torch.no_grad():
        make(small_clip, **FC).encode_video(make_batch(2, 3).frames)
    assert states[0].log == [(3, 19, 19)] * 2 + [(1, 2 + 3 * 17, 2 + 3 * 17)] * 2
    assert states[0].extra_macs == 2 * 2 * make(small_clip, **FC).context.macs(3)
