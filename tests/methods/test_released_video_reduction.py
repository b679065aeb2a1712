"""STA beside its authors' code (Mark12Ding/STA): stages of random tokens in every clone, and its whole model."""

from __future__ import annotations

from functools import partial

import torch
from open_clip.transformer import LayerNorm, ResidualAttentionBlock
from torch import Tensor, nn

from methods.backbone.clip import Block, TokenState, run_blocks
from methods.layers.sta import STA, survivors
from tests.methods.released import FIXTURES, Weights, floats, read

STAGES, WINDOWS = (0, 4, 8), (8, 4, 2)
NAMES = {"norm1": "ln_1", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "attn.proj": "attn.out_proj"}


def test_survivors_and_their_order_are_those_of_the_release_whichever_way_it_scans(compared):
    file = read(FIXTURES / "sta_stages.npz")
    for stage, windows, backward in zip(STAGES, WINDOWS, (False, True, False)):
        x, keys = (file[f"stage{stage}/{name}"].float().unflatten(1, (windows, -1)) for name in ("x", "metric"))
        found = survivors(x, keys, 3, backward)
        places = found + torch.arange(windows)[:, None] * x.shape[2]
        compared("sta", "forward", places.flatten(1), file[f"stage{stage}/kept"], 0.0)
        reversed_scan = survivors(x.flip(1), keys.flip(1), 3, not backward).flip(1)
        assert torch.equal(found, reversed_scan)


def test_the_whole_model_equals_the_released_one(compared, shared):
    """Joint attention, no class token: stages of 8, 4 and 2 windows on blocks of this project."""
    folder = shared / "reference" / "video_reduction"
    io, state = read(folder / "sta_basic.npz"), floats(read(folder / "sta_state.npz"))
    blocks = nn.ModuleList(made_block(floats(state, f"blocks.{layer}.")) for layer in range(12))
    for case, r in (("model_r3", 3), ("model_r0", 0)):
        video = io[f"{case}/video"].float()
        reducer = STA(12, 128, STAGES, (r, r, r), WINDOWS)
        with torch.no_grad():
            x = nn.functional.conv3d(video, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], (2, 8, 8))
            x = x.flatten(2).mT + state["pos_embed"]  # time-major
            tokens = TokenState(len(video), classes=0, protected=0)
            x = run_blocks(blocks, x, reducer.seams(), tokens, causal=False)
            feature = nn.functional.layer_norm(x.mean(1), (32,), state["fc_norm.weight"], state["fc_norm.bias"], 1e-6)
        compared("sta", "forward", x[:1], io[f"{case}/block11_out"], 1e-5)
        compared("sta", "forward", feature, io[f"{case}/feature"], 1e-5)
        compared("sta", "forward", feature @ state["head.weight"].mT + state["head.bias"], io[f"{case}/logits"], 1e-5)
        assert x.shape[1] == 128 - sum(step.late for step in reducer.steps) == (86 if r else 128)


def made_block(state: Weights) -> Block:
    """One of VideoMAE's: exact GELU, keys without a bias."""
    source = ResidualAttentionBlock(32, 4, act_layer=nn.GELU, norm_layer=partial(LayerNorm, eps=1e-6))
    bias = torch.cat([state["attn.q_bias"], torch.zeros(32), state["attn.v_bias"]])
    weights: dict[str, Tensor] = {"attn.in_proj_weight": state["attn.qkv.weight"], "attn.in_proj_bias": bias}
    for theirs, ours in NAMES.items():
        weights |= {f"{ours}.{kind}": state[f"{theirs}.{kind}"] for kind in ("weight", "bias")}
    source.load_state_dict(weights)
    return Block(source)
