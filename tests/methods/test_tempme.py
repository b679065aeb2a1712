import json
from contextlib import nullcontext

import numpy as np
import open_clip
import pytest
import torch

from ctvr.methods.backbone.clip import Clip, record_tokens
from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.tempme import TempMe, TempMeConfig
from tests.methods.conftest import make_batch, reducer_config


def test_the_tiny_tower_has_sensible_defaults(small_clip):
    method = TempMe(TempMeConfig(reducer=reducer_config("tempme", num_frames=8)), small_clip)
    with record_tokens() as states, torch.no_grad():
        method.encode_video(make_batch(2, 8).frames)
    assert states[0].log == [(8, 17, 15), (4, 21, 19), (1, 54, 49), (1, 49, 45)]


@pytest.mark.parametrize("name", ["tempme", "tome"])
def test_unused_patches_are_not_merged_in_the_last_block(small_clip, name):
    """Features and gradients of trained weights are equal with and without a recorder of the tokens."""
    method = TempMe(TempMeConfig(reducer=reducer_config(name, num_frames=8)), small_clip)
    for group in method.param_groups():
        for parameter in group["params"]:
            torch.nn.init.normal_(parameter, std=0.1)
    frames, found, ran = make_batch(2, 8).frames, [], []
    block = small_clip.vision.blocks[-1]
    hook = block.mlp.register_forward_hook(lambda _, given, out: ran.append(out.shape[1]))
    for following in (nullcontext(), record_tokens()):
        method.zero_grad()
        with following:
            features = method.encode_video(frames)
        features[:, ::2].sum().backward()
        grads = [p.grad for group in method.param_groups() for p in group["params"] if p.grad is not None]
        found.append([features.detach(), *grads])
    hook.remove()
    assert ran == ([8, 45] if name == "tempme" else [1, 9])
    for cut, whole in zip(*found, strict=True):
        torch.testing.assert_close(cut, whole, rtol=1e-4, atol=2e-6 * float(1 + whole.abs().max()))


def test_full_fine_tuning_trains_both_towers_at_their_own_rate(small_clip):
    method = TempMe(
        TempMeConfig(reducer=reducer_config("tempme", num_frames=4), adaptation="full", lr=1e-4, lr_clip=1e-7),
        small_clip,
    )
    rates = {group["name"]: group["lr"] for group in method.param_groups()}
    assert rates == {"positions": 1e-4, "clip": 1e-7}
    handed = {id(p) for group in method.param_groups() for p in group["params"]}
    left_out = [name for name, p in method.named_parameters() if id(p) not in handed]
    assert left_out == ["backbone.logit_scale"]


def test_nothing_adapted_and_no_positions_leaves_nothing_to_train(small_clip):
    config = TempMeConfig(adaptation="none", reducer=reducer_config("tempme", positions="none"))
    assert TempMe(config, small_clip).param_groups() == []


# ---------------------------------------------------------------- the released code, run by the authors' files


@pytest.fixture(scope="module")
def released(shared):
    """Outputs of the authors' unmodified code with random weights (shared/reference/tempme)."""
    folder = shared / "reference" / "tempme"
    with np.load(folder / "tempme_b32_io.npz") as file:
        given = {name: torch.from_numpy(file[name]) for name in file.files}
    with np.load(folder / "tempme_b32_state.npz") as file:
        state = {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}
    return given, state, json.loads((folder / "tempme_b32.json").read_text())


def load(state, **settings):
    vision = {"layers": 12, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 56}
    text = {"context_length": 77, "vocab_size": 512, "width": 64, "heads": 4, "layers": 12}
    source = open_clip.CLIP(embed_dim=32, quick_gelu=True, vision_cfg=vision, text_cfg=text)
    plain = {name.removeprefix("clip."): value for name, value in state.items() if "TVPt" not in name}
    source.load_state_dict(plain, strict=False)
    config = TempMeConfig(reducer=reducer_config("tempme", **settings))
    method = TempMe(config, Clip(source, lambda texts: torch.empty(0), (0.5,) * 3, (0.5,) * 3))
    towers = {"clip.visual.transformer": method.adaptation.vision, "clip.transformer": method.adaptation.text}
    with torch.no_grad():
        for tower, loras in towers.items():
            for block, lora in enumerate(loras):
                lora.A.copy_(state[f"{tower}.resblocks.{block}.attn.TVPt_LoRA_a"])
                lora.B.copy_(state[f"{tower}.resblocks.{block}.attn.TVPt_LoRA_b"])
        for block, p in method.reducer.positions.items():
            p.copy_(state[f"clip.visual.transformer.resblocks.{block}.TVPt_Video_Positional_embedding"][0, :, 0])
    return method.eval()


def test_features_similarities_and_loss_equal_the_released_code(compared, released):
    given, state, description = released
    method = load(state, positions="merging")
    with torch.no_grad(), record_tokens() as states:
        videos, captions = method.encode_video(given["video"].float()), method.encode_text(given["text_ids"])
        logits = method.scale() * method.score(captions, videos)
    compared("tempme", "forward", videos, l2_normalize(given["video_feat"]), 1e-6)
    compared("tempme", "forward", captions, l2_normalize(given["text_feat"]), 1e-6)
    compared("tempme", "forward", logits, given["logits_t2v"], 5e-5)  # the cosines, times 100
    compared("tempme", "loss", contrastive(logits), description["loss"])
    out = [(layer["frame_num"], layer["token_num"]) for layer in description["layers"]]
    assert [(groups, tokens) for groups, _, tokens in states[0].log] == out
    compared("tempme", "forward", states[0].sizes[..., 0], given["block11_size"], 0.0)


def test_ablations_equal_the_released_code(compared, released):
    given, state, _ = released
    ablations = (({"positions": "none"}, "video_feat_frame_pos0"), ({"proportional": False}, "video_feat_no_prop_attn"))
    for settings, name in ablations:
        with torch.no_grad():
            videos = load(state, **settings).encode_video(given["video"].float())
        compared("tempme", "forward", videos, l2_normalize(given[name]), 1e-6)
