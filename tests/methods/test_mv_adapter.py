import json

import torch
from torch.utils.flop_counter import FlopCounterMode

from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.layers.transfer import truncate
from ctvr.methods.mv_adapter import MVAdapter, MVAdapterConfig
from ctvr.methods.mv_adapter.adapters import TextAdapter, VideoAdapter
from ctvr.orchestrator.catalog.cost_table import estimate
from ctvr.orchestrator.learning.evaluation.cost import trained_parameters, video_cost
from ctvr.orchestrator.learning.training.optimizer import make_optimizer
from tests.methods.conftest import make_batch
from tests.methods.released import FIXTURES, Weights, floats, pairs, read, shape_of, tiny_clip
from tests.orchestrator.settings.test_released_recipes import optim_of

SHAPE = shape_of((64, 3, 4), (64, 3, 4), embed=24, image=32, patch=8, context=20, vocab=64)
RELEASED = {"bottleneck": 16, "heads": 2, "tied": 2, "num_frames": 5, "num_words": 12, "mask_missing": True}
SMALL = {"bottleneck": 8, "num_frames": 4, "num_words": 16}


def make(clip, **settings) -> MVAdapter:
    """Return a method none of whose weights is 0."""
    torch.manual_seed(0)
    method = MVAdapter(MVAdapterConfig(**{**SMALL, **settings}), clip)
    with torch.no_grad():
        for parameter in method.param_groups()[0]["params"]:
            parameter.normal_(0, 0.3)
    return method.eval()


# ------------------------------------------------------------------------------------- the released code

PARTS = {
    "positional_embedding": "positions",
    "cc": "whole",
    "ln_pre": "ln",
    "md_proj": "factor",
    "down": "down",
    **{f"conv_rf_c.{part}": f"calibrate.{part}" for part in "gab"},
    "up": "up",
    "block.attn.in_proj_": "block.attn.in_",
    "block.attn.out_proj": "block.attn.out",
    "block.ln_": "block.ln_",
    "block.mlp": "block.mlp",
}


def of_adapter(name: str) -> str:
    """Return a parameter of the release's adapter under our name."""
    old = max((part for part in PARTS if name.startswith(part)), key=len)
    return PARTS[old] + name.removeprefix(old)


def ours(state: Weights) -> Weights:
    """Return the release's parameters under our names; queries, keys and values are separate in the release."""
    made, state = {}, floats(state, "clip.")
    if shared := [state.pop(name) for name in sorted(state) if name.startswith("prompt.")]:
        made["shared"] = torch.stack(shared)
    for name, value in state.items():
        tower, here = ("video", "vision") if name.startswith("visual.") else ("text", "text")
        rest = name.removeprefix("visual.").removeprefix("transformer.resblocks.")
        block, _, part = rest.partition(".")
        if ".adapter." in name:
            made[f"{tower}.{block}.{of_adapter(part.removeprefix('mlp.adapter.'))}"] = value
        elif not block.isdigit():
            made[f"backbone.{here}.{rest}".replace("text_projection", "proj")] = value
        elif part in {"attn.q_proj.weight", "attn.q_proj.bias"}:
            fused = [state[name.replace("q_proj", f"{each}_proj")] for each in "qkv"]
            made[f"backbone.{here}.blocks.{block}.attn.in_{part.rpartition('.')[2]}"] = torch.cat(fused)
        elif part[5:11] not in {"k_proj", "v_proj"}:
            part = part.replace("attn.ln", "ln_1").replace("mlp.ln", "ln_2").replace("out_proj", "out")
            made[f"backbone.{here}.blocks.{block}.{part}"] = value
    made["backbone.logit_scale"] = made.pop("backbone.text.logit_scale", torch.tensor(3.0))
    return made


def test_features_loss_and_gradients_equal_the_released_code(shared, compared, monkeypatch):
    """Two and four frames of two videos are missing; vectors of tied blocks have width 8 in the reference."""
    folder = shared / "reference" / "adapters"
    io, facts = read(folder / "mv_io.npz"), json.loads((folder / "mv.json").read_text())
    for module in ("ctvr.methods.mv_adapter", "ctvr.methods.mv_adapter.adapters"):
        monkeypatch.setattr(f"{module}.FACTOR", 8)
    method = MVAdapter(MVAdapterConfig(**RELEASED), tiny_clip(SHAPE))
    found = method.load_state_dict(ours(read(folder / "mv_state.npz")), strict=False)
    assert (found.unexpected_keys, found.missing_keys) == ([], [])
    trained = [parameter for group in method.param_groups() for parameter in group["params"]]
    for parameter in method.parameters():
        parameter.requires_grad_(any(parameter is each for each in trained))
    batch = pairs(io["video"].float(), io["ids"])
    seen: list[tuple[torch.Tensor, ...]] = []
    for block in (0, 2):
        method.video[block].register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
        method.text[block].register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    videos, texts = method.encode_video(batch.frames), method.encode_text(batch.tokens)
    compared("mv_adapter", "forward", videos, io["video_feature"])
    compared("mv_adapter", "forward", texts, io["text_feature"])
    for (y, out), block in zip(seen[:2], (0, 2)):  # (tokens, frames of videos 2 and 3, width)
        for what, tokens in (("in", y), ("out", out)):
            released = io[f"video{block}/adapter/{what}"]
            compared("mv_adapter", "forward", tokens[2:].flatten(0, 1).transpose(0, 1), released)
    for (y, out), block in zip(seen[2:], (0, 2)):  # (word, caption, width)
        for what, tokens in (("in", y), ("out", out)):
            compared("mv_adapter", "forward", tokens.transpose(0, 1), io[f"text{block}/adapter/{what}"][: y.shape[1]])
    logits = method.logits(batch)
    compared("mv_adapter", "forward", logits, io["logits_t2v"], 5e-5)
    (loss,) = method.losses(batch).values()
    compared("mv_adapter", "loss", loss, facts["loss"], 2e-5)
    loss.backward()
    mine = dict(method.named_parameters())
    for name, gradient in ours({n.removeprefix("grad/"): v for n, v in io.items() if n.startswith("grad/")}).items():
        if "logit_scale" not in name:
            compared("mv_adapter", "gradients", mine[name].grad, gradient, 1e-4)


def test_class_tokens_are_calibrated_as_released_missing_ones_by_nothing(compared):
    """One video has three frames, one has a single frame; the block's outputs for their tokens are given."""
    file = read(FIXTURES / "mv_adapter_released.npz")
    adapter = VideoAdapter(64, 16, 2, 5)
    adapter.calibrate.load_state_dict(floats(file, "state/"))
    sequence = adapter.act(file["block"].transpose(0, 1))  # (2, 11, 16)
    there = torch.arange(5) < torch.tensor([[3], [1]])
    found = adapter.calibration(sequence[:, :1], sequence[:, 1:6] + sequence[:, 6:], there)
    compared("mv_adapter", "forward", found, file["factors"])


def test_the_recipe_decays_biases_of_clip_and_none_of_the_adapters():
    method = MVAdapter(MVAdapterConfig(**RELEASED), tiny_clip(SHAPE))
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    for group in make_optimizer(method.param_groups(), optim_of("mv_adapter"), method).param_groups:
        for name in (names[id(parameter)] for parameter in group["params"]):
            is_clips, is_bias = name.startswith("backbone."), "bias" in name
            assert is_bias or not is_clips, name
            assert (group["peak"], group["weight_decay"]) == ((1e-7, 0.2) if is_clips else (5e-6, 0.2 * (not is_bias)))


# ------------------------------------------------------------------------------------- invariants


def test_counts_are_the_papers():
    for settings, count in (
        ({}, 3_496_704),
        ({"tying": "down_in"}, 3_572_736),
        ({"tying": "down_in", "tied": 3}, 3_615_008),
        ({"lr_bias": 0.0}, 3_325_696),
    ):
        assert trained_parameters(estimate("mv_adapter", settings, backbone="ViT-B-16-quickgelu")[0]) == count
    for adapter, count in ((VideoAdapter(768, 64, 2, 12), 158_160), (TextAdapter(512, 64, 2, 32), 118_272)):
        assert sum(parameter.numel() for parameter in adapter.parameters()) == count


def test_it_starts_as_clip_with_frames_of_unit_length(small_clip):
    batch = make_batch(3, 4)
    plain = Clip4Clip(Clip4ClipConfig(frame_norm="l2"), small_clip)
    method = MVAdapter(MVAdapterConfig(**SMALL), small_clip)
    torch.testing.assert_close(method.encode_video(batch.frames), plain.encode_video(batch.frames))
    torch.testing.assert_close(method.encode_text(batch.tokens), plain.encode_text(batch.tokens))
    changed = make(small_clip)
    assert not torch.allclose(changed.encode_video(batch.frames), plain.encode_video(batch.frames), atol=1e-3)
    assert not torch.allclose(changed.encode_text(batch.tokens), plain.encode_text(batch.tokens), atol=1e-3)


def test_the_content_of_missing_frames_has_no_effect(small_clip):
    adapter, there = make(small_clip).video[0], torch.arange(4) < torch.tensor([[4], [2]])
    y = torch.randn(2, 4, 17, 32)
    other = y.clone()
    other[1, 2:] += 1.0
    before, after = adapter(y, there), adapter(other, there)
    torch.testing.assert_close(before[1, :2], after[1, :2], rtol=0, atol=1e-6)
    method, frames = make(small_clip, mask_missing=True), make_batch(2, 4).frames
    whole = method.encode_video(frames)
    frames[1, 2:] = 0
    found = method.encode_video(frames)
    torch.testing.assert_close(found[0], whole[0])
    assert not torch.allclose(found[1], make(small_clip).encode_video(frames)[1], atol=1e-3)


def test_patches_pass_by_what_the_frames_make_of_one_another(small_clip):
    adapter, y = make(small_clip).video[0], torch.randn(1, 4, 17, 32)
    other = y.clone()
    other[:, 1] = torch.randn(17, 32)
    before, after = adapter(y), adapter(other)
    torch.testing.assert_close(before[:, [0, 2, 3], 1:], after[:, [0, 2, 3], 1:], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 0, 0], after[:, 0, 0], atol=1e-3)


def test_a_tied_blocks_vector_scales_rows_or_inputs_and_is_both_towers(small_clip):
    y, shared = torch.randn(2, 3, 32), torch.randn(32)
    for tying in ("down_out", "down_in"):
        adapter = TextAdapter(32, 8, 2, 16, tying)
        factor, weight = adapter.factor(shared), adapter.down.weight
        scaled = factor[:, None] * weight if tying == "down_out" else weight * factor
        torch.testing.assert_close(adapter.lowered(y, shared), y @ scaled.mT + adapter.down.bias)
    batch, method = make_batch(2, 4), make(small_clip)
    before = method.encode_video(batch.frames), method.encode_text(batch.tokens)
    with torch.no_grad():
        method.shared[0] += 1.0
    for old, new in zip(before, (method.encode_video(batch.frames), method.encode_text(batch.tokens))):
        assert not torch.allclose(old, new, atol=1e-4)
    assert [adapter.factor is None for adapter in method.video] == [True, True, False, False]


def test_a_caption_is_cut_after_its_last_place_and_reads_no_pad(small_clip):
    tokens = make_batch(12, 1).tokens
    cut = truncate(tokens, 8)
    assert cut.shape == (12, 8)
    assert (cut.amax(dim=1) == 99).all()
    short = tokens.argmax(dim=1) < 8
    assert torch.equal(cut[short], tokens[short, :8])
    assert torch.equal(cut[~short, :7], tokens[~short, :7])
    alone = make(small_clip).encode_text(tokens[short][:1])
    torch.testing.assert_close(make(small_clip).encode_text(tokens)[short][:1], alone)


def test_multiply_adds_are_what_torch_counts(small_clip):
    method, frames = make(small_clip).requires_grad_(False), torch.randn(2, 4, 3, 32, 32)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        method.encode_video(frames)
    readout, factors = 2 * 4 * 32 * 16, 2 * 32 * 8
    assert video_cost(method, frames).macs * 2 + readout + factors == counter.get_total_flops() // 2
