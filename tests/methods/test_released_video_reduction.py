"""STA and TESTA compared with their authors' codes: random tokens in every clone, and whole models."""

import json
from functools import partial

import torch
from open_clip.transformer import LayerNorm, ResidualAttentionBlock
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Block, TokenState, run_blocks
from ctvr.methods.layers.reduction.merge import merge_tokens, plan_bipartite
from ctvr.methods.layers.reduction.sta import STA, survivors
from ctvr.methods.layers.reduction.testa import TESTA, plan_frames
from tests.methods.released import FIXTURES, Weights, floats, read

STAGES, WINDOWS = (0, 4, 8), (8, 4, 2)
NAMES = {"norm1": "ln_1", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "attn.proj": "attn.out_proj"}


def test_surviving_tokens_equal_the_release_in_both_scans(compared):
    file = read(FIXTURES / "sta_stages.npz")
    for stage, windows, backward in zip(STAGES, WINDOWS, (False, True, False)):
        x, keys = (file[f"stage{stage}/{name}"].float().unflatten(1, (windows, -1)) for name in ("x", "metric"))
        found = survivors(x, keys, 3, backward)
        places = found + torch.arange(windows)[:, None] * x.shape[2]
        compared("sta", "forward", places.flatten(1), file[f"stage{stage}/kept"], 0.0)
        reversed_scan = survivors(x.flip(1), keys.flip(1), 3, not backward).flip(1)
        assert torch.equal(found, reversed_scan)


def test_the_whole_model_equals_the_released_one(compared, shared):
    """The model has joint attention and no class token: stages of 8, 4 and 2 windows on blocks of this project."""
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
    """Build a block of VideoMAE (keys without a bias) or of TimeSformer; both have exact GELU."""
    source = ResidualAttentionBlock(32, 4, act_layer=nn.GELU, norm_layer=partial(LayerNorm, eps=1e-6))
    if "attn.q_bias" in state:
        bias = torch.cat([state["attn.q_bias"], torch.zeros(32), state["attn.v_bias"]])
    else:
        bias = state["attn.qkv.bias"]
    weights: dict[str, Tensor] = {"attn.in_proj_weight": state["attn.qkv.weight"], "attn.in_proj_bias": bias}
    for theirs, ours in NAMES.items():
        weights |= {f"{ours}.{kind}": state[f"{theirs}.{kind}"] for kind in ("weight", "bias")}
    source.load_state_dict(weights)
    return Block(source)


# ----------------------------------------------------------------------------------------- TESTA


def test_frames_and_patches_are_merged_as_in_the_release(compared):
    """RenShuhuai-Andy/TESTA: one aggregation along each axis, without and with sizes."""
    file = read(FIXTURES / "testa_merges.npz")
    for case in ("patch_sizes", "frame"):
        metric, x = file[f"{case}/metric"].float(), file[f"{case}/x"].float()
        size = file[f"{case}/size"].float() if f"{case}/size" in file else None
        r = x.shape[2] - file[f"{case}/out"].shape[2]
        if case.startswith("frame"):
            plan = plan_frames(metric, r).repeated(x.shape[1])
            assert plan_frames(metric, 99).moved.shape[1] == (x.shape[2] - 1) // 2
        else:
            plan = plan_bipartite(metric.flatten(0, 1), r, protected=1)
        merged, sizes = merge_tokens(x.flatten(0, 1), None if size is None else size.flatten(0, 1), plan)
        compared("testa", "forward", plan.target, file[f"{case}/group"].flatten(0, 1), 0.0)
        compared("testa", "forward", merged, file[f"{case}/out"].flatten(0, 1), 1e-6)
        compared("testa", "forward", sizes, file[f"{case}/out_size"].flatten(0, 1), 0.0)


def test_testas_encoder_equals_the_released_one(compared, shared):
    """Every block has divided attention, one class token and a linear gate; with and without merging of frames and
    patches.
    """
    folder = shared / "reference" / "video_reduction"
    io, state = read(folder / "testa_basic.npz"), floats(read(folder / "testa_state.npz"))
    facts = json.loads((folder / "testa.json").read_text())
    for case in ("encoder", "encoder_r0"):
        rates = facts[case]["r"]
        states = [floats(state, f"blocks.{layer}.") for layer in range(6)]
        blocks = nn.ModuleList(map(made_block, states))
        frames = dict(enumerate(rates[::2]))
        reducer = TESTA(list(blocks), rates[1::2], frames, gate="linear", one_class=True)  # type: ignore[arg-type]
        for layer, module in reducer.temporal.items():
            fill(module, states[int(layer)])
        with torch.no_grad():
            out, tokens = encode(io[f"{case}/video"].float(), state, blocks, reducer)
        assert [(groups, n) for groups, _, n in tokens.log] == [(t, 1 + n) for t, n in facts[case]["frames_patches"]]
        compared("testa", "forward", out, io[f"{case}/out"], 1e-5)
        compared("testa", "forward", out.mean(dim=1), io[f"{case}/pooled"], 1e-5)
        if case == "encoder":
            sizes = tokens.sizes.unflatten(0, (2, -1))[:, :, 1:]
            compared("testa", "forward", sizes, io[f"{case}/final_size"][:, :, 1:], 0.0)


def fill(module: nn.Module, state: Weights) -> None:
    names = {"norm": "temporal_norm1", "in": "temporal_attn.qkv", "out": "temporal_attn.proj"}
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            getattr(module, f"{ours}_{kind}").copy_(state[f"{theirs}.{kind}"])
    module.linear.load_state_dict({kind: state[f"temporal_fc.{kind}"] for kind in ("weight", "bias")})


def encode(video: Tensor, state: Weights, blocks: nn.ModuleList, reducer: TESTA) -> tuple[Tensor, TokenState]:
    """Return tokens after the last norm, class token first, then by position: (B, 3, T, H, W) -> (B, 1 + L T, D)."""
    patches = nn.functional.conv2d(
        video.transpose(1, 2).flatten(0, 1), state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=8
    )
    places = state["pos_embed"][0]
    patches = (patches.flatten(2).mT + places[1:]).unflatten(0, (len(video), -1)) + state["time_embed"][0, :, None]
    first = (state["cls_token"][0] + places[:1]).expand(*patches.shape[:2], 1, -1)
    tokens = TokenState(len(video), frames=video.shape[2])
    x = run_blocks(blocks, torch.cat([first, patches], 2).flatten(0, 1), reducer.seams(), tokens, causal=False)
    x = nn.functional.layer_norm(x, (32,), state["norm.weight"], state["norm.bias"], 1e-6)
    x = x.unflatten(0, (len(video), -1))
    return torch.cat([x[:, :1, 0], x[:, :, 1:].transpose(1, 2).flatten(1, 2)], dim=1), tokens
