"""ToMe beside its authors' code (facebookresearch/ToMe): merges of random tokens, and a whole tower of CLIP's form."""

from __future__ import annotations

import torch

from methods.backbone.clip import record_tokens
from methods.layers.merge import merge_tokens, plan_bipartite, unmerge_tokens
from methods.lora import Lora, LoraConfig
from tests.methods.released import FIXTURES, Weights, floats, read, tiny_clip

SHAPE = {
    "embed": 24,
    "image": 28,
    "patch": 4,
    "vision_width": 48,
    "vision_layers": 12,
    "vision_heads": 4,
    "context": 8,
    "vocab": 10,
    "text_width": 16,
    "text_layers": 1,
    "text_heads": 1,
}
NAMES = {"norm1": "ln_1", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "attn.proj": "attn.out_proj"}


def test_merged_and_unmerged_tokens_equal_the_released_ones(compared):
    file = read(FIXTURES / "tome_matching.npz")
    for case in ("n50_r2", "n50_r24", "n49_r7"):
        r, protected = file[f"{case}/r_protected"].tolist()
        plan = plan_bipartite(file[f"{case}/metric"], r, protected)
        merged, size = merge_tokens(file[f"{case}/x"], file[f"{case}/size"], plan)
        compared("tome", "forward", merged, file[f"{case}/out"], 1e-6)
        compared("tome", "forward", size, file[f"{case}/out_size"], 1e-6)
        compared("tome", "forward", unmerge_tokens(merged, plan), file[f"{case}/unmerged"], 1e-6)


def tower(state: Weights) -> Weights:
    """timm's names as open_clip's."""
    new = {
        "visual.class_embedding": state["cls_token"].flatten(),
        "visual.positional_embedding": state["pos_embed"][0],
        "visual.conv1.weight": state["patch_embed.proj.weight"],
        "visual.proj": state["head.weight"].mT,
    }
    for kind in ("weight", "bias"):
        new[f"visual.ln_pre.{kind}"], new[f"visual.ln_post.{kind}"] = state[f"ln_pre.{kind}"], state[f"norm.{kind}"]
        for layer in range(12):
            block = f"visual.transformer.resblocks.{layer}"
            new[f"{block}.attn.in_proj_{kind}"] = state[f"blocks.{layer}.attn.qkv.{kind}"]
            for theirs, ours in NAMES.items():
                new[f"{block}.{ours}.{kind}"] = state[f"blocks.{layer}.{theirs}.{kind}"]
    return new


def test_features_and_sizes_of_a_whole_tower_equal_the_released_ones(compared, shared):
    folder = shared / "reference" / "reduction"
    io, state = read(folder / "tome_clip50.npz"), tower(floats(read(folder / "clip50_state.npz")))
    assert not floats(read(folder / "clip50_state.npz"))["patch_embed.proj.bias"].any()
    for case, settings in (
        ("r0", {"reducer": "tome", "r": 0}),
        ("r2", {"reducer": "tome", "r": 2}),
        ("r2_no_prop", {"reducer": "tome", "r": 2, "proportional": False}),
        ("r_pair_2_down", {"reducer": "tome", "r": 2, "inflection": -1.0}),
        ("r_list_short", {"reducer": "tome", "r": (5, 0, 4)}),
    ):
        method = Lora(LoraConfig(**settings), tiny_clip(SHAPE, state)).eval()
        with torch.no_grad(), record_tokens() as states:
            found = method.encode_frames(io["frames"].float())
        compared("tome", "forward", found.flatten(0, 1), io[f"{case}/features"], 2e-5)
        if f"{case}/block11_size" in io:
            sizes = states[0].sizes[..., 0].sort(dim=-1).values
            compared("tome", "forward", sizes, io[f"{case}/block11_size"].sort(dim=-1).values, 0.0)
