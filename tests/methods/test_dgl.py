import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.base import l2_normalize
from ctvr.methods.dgl import DGL, DGLConfig, UnifiedPrompts, around_words
from ctvr.orchestrator.catalog.cost_table import estimate
from ctvr.orchestrator.learning.evaluation.cost import trained_parameters
from ctvr.orchestrator.learning.training.optimizer import lr_factor, make_optimizer, set_learning_rates
from tests.methods.conftest import make_batch
from tests.methods.released import FIXTURES, Compared, Weights, floats, pairs, read, shape_of, tiny_clip
from tests.orchestrator.settings.test_released_recipes import optim_of

SHAPE = shape_of((64, 3, 4), (64, 3, 4), embed=32, image=32, patch=8, context=77, vocab=512)


def make(clip, **settings) -> DGL:
    torch.manual_seed(0)
    method = DGL(DGLConfig(**{"num_frames": 3, "num_prompts": 2, **settings}), clip)
    with torch.no_grad():
        for parameter in method.param_groups()[0]["params"]:
            if parameter.ndim > 1:
                parameter.normal_(0, 0.5)
    return method.eval()


# ------------------------------------------------------------------------------------- the released code


def ours(state: Weights) -> Weights:
    """Return the release's parameters under our names; layers are the slow index of its long vectors."""

    def by_layer(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[-2], -1, 64).transpose(0, 1)

    made = {"globals": state["clip.visual.prompt_embeddings"][0]}
    if "clip.visual_prompt_embedding" in state:
        made["source.local"] = by_layer(state["clip.visual_prompt_embedding"])
        for name in ("prefix", "postfix"):
            for kind in ("weight", "bias"):
                made[f"source.{name}.{kind}"] = state[f"clip.{name}_text_prompt_proj_layer.{kind}"]
        return made
    made["source.embedding"] = by_layer(state["clip.unified_prompt_embedding.weight"])
    theirs = "clip.PromptTransformer.resblocks.0."
    names = {"attn.in_proj_": "attn.in_", "attn.out_proj": "attn.out", "ln_": "ln_", "mlp.": "mlp."}
    for old, new in names.items():
        found = {key: value for key, value in state.items() if key.startswith(theirs + old)}
        made |= {key.replace(theirs + old, f"source.mixer.{new}"): value for key, value in found.items()}
    for old, new in (("c_fc", "0"), ("c_proj", "2")):
        for kind in ("weight", "bias"):
            made[f"source.to_text.{new}.{kind}"] = state[f"clip.unified_prompt_mlp.{old}.{kind}"]
    return made


def test_features_loss_and_gradients_equal_the_released_code(shared, compared):
    for kind in ("linear", "transformer"):
        equals_released(compared, shared / "reference" / "prompts", kind)


def equals_released(compared: Compared, folder: Path, kind: str) -> None:
    facts = json.loads((folder / "dgl.json").read_text())[kind]
    io = {name.removeprefix(f"{kind}/"): x for name, x in read(folder / "dgl_basic.npz").items() if kind in name}
    towers = floats(floats(read(folder / "dgl_clip_state.npz")), "clip.")
    method = DGL(DGLConfig(prompts=kind, num_frames=3), tiny_clip(SHAPE, towers))
    state = floats(read(folder / f"dgl_{kind}_state.npz"))
    assert method.load_state_dict(ours(state), strict=False).unexpected_keys == []
    local, text = method.source()
    compared("dgl", "forward", local.flatten(1, 2), io["visual_prompts"])
    compared("dgl", "forward", text, io["text_prompts"])
    batch = pairs(io["video"].float(), io["ids"].long())
    compared("dgl", "forward", method.tower(method.backbone.vision, batch.frames), io["video_feature"])
    compared("dgl", "forward", method.encode_text(batch.tokens), l2_normalize(io["text_feature"]))
    compared("dgl", "forward", method.logits(batch), io["logits_t2v"], 5e-5)
    for group in method.param_groups():
        for parameter in group["params"]:
            parameter.requires_grad_(True)
    (loss,) = method.losses(batch).values()
    compared("dgl", "loss", loss, facts["loss"], 2e-5)
    loss.backward()
    released = ours(floats(io, "grad/"))
    found = {name: parameter.grad for name, parameter in method.named_parameters() if name in released}
    assert set(found) == set(released) == {name for name, _ in method.named_parameters() if "backbone" not in name}
    for name, gradient in found.items():
        compared("dgl", "gradients", gradient, released[name], 1e-4)


def test_linear_prompts_are_the_released_ones(compared):
    """The layer is the slow index of the long vectors; the first rows of both maps are used."""
    file = read(FIXTURES / "dgl_released.npz")
    method = DGL(DGLConfig(), tiny_clip(SHAPE))
    with torch.no_grad():
        method.source.local.copy_(file["local"].float().reshape(4, 3, 64).transpose(0, 1))
        for name in ("prefix", "postfix"):
            linear = getattr(method.source, name)
            linear.weight[:8], linear.bias[:8] = file[f"{name}/weight"].float(), file[f"{name}/bias"].float()
    text = method.source()[1]
    compared("dgl", "forward", text[..., :8], file["text_prompts"])


def test_rates_are_the_released_ones_but_for_the_least(compared):
    table = read(FIXTURES / "dgl_released.npz")["schedule"][:50]
    optim = optim_of("dgl_transformer")
    parameter = torch.nn.Parameter(torch.ones(1))
    module = torch.nn.ParameterDict({"p": parameter})
    optimizer = make_optimizer([{"name": "g", "params": [parameter], "lr": 2e-3}], optim, module)
    found = []
    for step in range(50):
        set_learning_rates(optimizer, lr_factor(step, 50, 10, True, optim), optim.final_lr)
        found.append(optimizer.param_groups[0]["lr"])
    compared("dgl", "schedule", np.array(found), table, 1e-8)


# ------------------------------------------------------------------------------------- invariants


def test_counts_are_the_papers():
    for name, count in (("dgl", 827_392), ("dgl_transformer", 9_575_168)):
        method, found = estimate(name, backbone="ViT-B-32-quickgelu")
        assert trained_parameters(method) == count
        assert found.tokens_out == 4 + 12 * 54
    assert estimate("dgl", backbone="ViT-B-16-quickgelu")[1].tokens_out == 2416


def test_a_class_token_that_reads_only_its_frame_equals_clips(small_clip, monkeypatch):
    """Prompts are masked as keys: the mean of class tokens is that of CLIP's features of the frames."""
    method = make(small_clip, readout="frames")
    plain = torch.nn.functional.scaled_dot_product_attention

    def masked(q, k, v):
        tokens = k.shape[2]
        if tokens != 2 + 3 + 16:  # of the global prompts
            return plain(q, k, v)
        keep = torch.ones(tokens, dtype=torch.bool)
        keep[:2] = keep[3:5] = False  # global prompts, then the class token, then local prompts
        return plain(q, k, v, attn_mask=keep[None, None, None])

    monkeypatch.setattr("ctvr.methods.layers.global_tokens.F.scaled_dot_product_attention", masked)
    frames = make_batch(2, 3).frames
    with torch.no_grad():
        found = method.tower(small_clip.vision, frames)
        monkeypatch.undo()
        torch.testing.assert_close(found, small_clip.vision(frames).mean(dim=1), rtol=1e-4, atol=1e-5)


def test_each_layer_replaces_the_local_prompts(small_clip):
    method = make(small_clip)
    x, local = torch.randn(2, 2 + 3 * 19, 32), torch.randn(2, 3, 2, 32)
    own = method.with_locals(x, local)[:, 2:].unflatten(1, (3, 19))
    assert torch.equal(own[:, :, 1:3], local)
    same = method.with_locals(x, local)
    same[:, 2:].unflatten(1, (3, 19))[:, :, 1:3] = x[:, 2:].unflatten(1, (3, 19))[:, :, 1:3]
    assert torch.equal(same, x)


def test_postfix_prompts_reach_nothing_and_prefix_prompts_do(small_clip):
    method, tokens = make(small_clip), make_batch(3, 1).tokens
    before = method.encode_text(tokens)
    with torch.no_grad():
        method.source.postfix.weight.normal_(0, 2)
        assert torch.equal(method.encode_text(tokens), before)
        method.source.prefix.weight.normal_(0, 2)
    assert not torch.allclose(method.encode_text(tokens), before, atol=1e-3)


def test_prompts_surround_a_caption_and_keep_its_length(small_clip):
    x, state = small_clip.text.embed(make_batch(3, 1).tokens)
    seams, eot = around_words(torch.arange(4.0)[:, None].expand(4, 32)), state.eot.clone()
    put = seams.before(x, state)
    assert torch.equal(state.eot, eot + 2)
    assert [put[0, place, 0].item() for place in (1, 2, -2, -1)] == [0, 1, 2, 3]
    assert torch.equal(seams.after(put, state), x)
    assert torch.equal(state.eot, eot)


def test_each_frame_has_prompts_of_its_own_where_a_transformer_makes_them(small_clip):
    source = make(small_clip, prompts="transformer").source
    assert isinstance(source, UnifiedPrompts)
    local, text = source()
    assert local.shape == (4, 3, 2, 32)
    assert text.shape == (4, 4, 32)
    assert not torch.allclose(local[:, 0], local[:, 1], atol=1e-3)
    assert DGL.capabilities(DGLConfig(prompts="transformer", num_frames=7)).required_num_frames == 7
    assert DGL.capabilities(DGLConfig(num_frames=7)).required_num_frames is None


def test_readout_selects_the_tokens_of_the_video_feature(small_clip):
    frames, found = make_batch(2, 3).frames, {}
    for readout in ("global", "globals", "frames", "globals_and_frames"):
        method = make(small_clip, readout=readout)
        found[readout] = method.tower(small_clip.vision, frames)
    torch.testing.assert_close(found["globals_and_frames"], (2 * found["globals"] + 3 * found["frames"]) / 5)
    assert not torch.allclose(found["global"], found["globals"], atol=1e-3)


def test_tokens_of_a_video_are_logged(small_clip):
    with record_tokens() as states, torch.no_grad():
        make(small_clip).encode_video(make_batch(2, 3).frames)
    assert states[0].log == [(1, 2 + 3 * 19, 2 + 3 * 19)] * 4


def test_a_text_tower_takes_the_first_image_prompts_and_is_not_deeper(small_clip):
    text, vision = small_clip.text.blocks, small_clip.vision.blocks
    small_clip.text.blocks = text[:3]
    method, tokens = make(small_clip), make_batch(2, 1).tokens
    before = method.encode_text(tokens)
    with torch.no_grad():
        method.source.local[3:] += 1.0
    assert torch.equal(method.encode_text(tokens), before)
    small_clip.text.blocks, small_clip.vision.blocks = text, vision[:3]
    with pytest.raises(ValueError, match="only 3 blocks and the text tower 4"):
        DGL(DGLConfig(), small_clip)
