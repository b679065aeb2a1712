"""Names of transformers become those of open_clip: no tensor is lost, and outputs of attention are equal."""

import re

import torch
from timm.layers import AttentionPoolLatent
from torch import Tensor, nn

from ctvr.methods.backbone.huggingface import is_theirs, under_open_clip_names

BLOCK = {"attn.out_proj": "self_attn.out_proj", "ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1"}
BLOCK |= {"mlp.c_proj": "mlp.fc2", "attn.proj": "self_attn.out_proj", "norm1": "layer_norm1", "norm2": "layer_norm2"}
BLOCK |= {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
ALONE = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "text_projection.weight": "text_model.head.weight",
    "text_projection.bias": "text_model.head.bias",
    "visual.trunk.patch_embed.proj.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.trunk.patch_embed.proj.bias": "vision_model.embeddings.patch_embedding.bias",
    "visual.trunk.norm.weight": "vision_model.post_layernorm.weight",
    "visual.trunk.norm.bias": "vision_model.post_layernorm.bias",
    "visual.trunk.attn_pool.latent": "vision_model.head.probe",
}


def as_transformers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of an open_clip CLIP or SigLIP under the names of transformers' CLIPModel and SiglipModel."""
    found = {"text_model.embeddings.position_ids": torch.arange(4)[None]}  # a buffer of older versions
    for name, value in state.items():
        bare = name.removeprefix("text.")
        block = re.fullmatch(r"(visual\.)?(?:trunk\.blocks|transformer\.resblocks)\.(\d+)\.(.+)\.(weight|bias)", bare)
        joined = re.fullmatch(
            r"(visual\.)?(?:trunk\.blocks|transformer\.resblocks)\.(\d+)\.attn\.(?:in_proj_|qkv\.)(weight|bias)", bare
        )
        pool = re.fullmatch(r"visual\.trunk\.attn_pool\.(q|kv|proj|norm|mlp\.fc1|mlp\.fc2)\.(weight|bias)", bare)
        if joined:
            layer = f"{'vision' if joined[1] else 'text'}_model.encoder.layers.{joined[2]}.self_attn"
            parts = zip("qkv", value.chunk(3))
            found |= {f"{layer}.{each}_proj.{joined[3]}": part.clone() for each, part in parts}
        elif block:
            layer = f"{'vision' if block[1] else 'text'}_model.encoder.layers.{block[2]}"
            found[f"{layer}.{BLOCK[block[3]]}.{block[4]}"] = value
        elif pool and pool[1] in {"q", "kv"}:
            whole = [state[f"visual.trunk.attn_pool.{each}.{pool[2]}"] for each in ("q", "kv")]
            found[f"vision_model.head.attention.in_proj_{pool[2]}"] = torch.cat(whole)
        elif pool:
            theirs = {"proj": "attention.out_proj", "norm": "layernorm"}.get(pool[1], pool[1])
            found[f"vision_model.head.{theirs}.{pool[2]}"] = value
        elif bare == "visual.proj":
            found["visual_projection.weight"] = value.T.contiguous()
        elif bare == "text_projection":
            found["text_projection.weight"] = value.T.contiguous()
        elif bare == "visual.trunk.pos_embed":
            found["vision_model.embeddings.position_embedding.weight"] = value[0]
        elif bare in {"logit_scale", "logit_bias"}:
            found[bare] = value
        else:
            found[ALONE[bare]] = value
    return found


def test_pooling_by_attention_gives_the_same_vectors():
    torch.manual_seed(0)
    theirs, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    ours, probe = AttentionPoolLatent(8, num_heads=2, mlp_ratio=2, norm_layer=nn.LayerNorm), torch.randn(1, 1, 8)
    head = {f"attention.{name}": value for name, value in theirs.state_dict().items()}
    state = {f"vision_model.head.{name}": value for name, value in head.items()} | {"vision_model.head.probe": probe}
    names = {f"visual.trunk.attn_pool.{name}": value for name, value in ours.state_dict().items()}
    assert is_theirs(state)
    found = under_open_clip_names(state, names)
    ours.load_state_dict({name.removeprefix("visual.trunk.attn_pool."): found[name] for name in found}, strict=False)
    ours.mlp = ours.norm = nn.Identity()
    expected = 2 * theirs(probe.expand(3, -1, -1), x, x)[0][:, 0]  # the layers after attention add to it
    torch.testing.assert_close(ours(x), expected)


def test_a_layer_that_lacks_one_of_three_stays_incomplete():
    state = {f"vision_model.encoder.layers.0.self_attn.{part}_proj.weight": torch.zeros(2, 2) for part in "qk"}
    assert under_open_clip_names(state, {}) == {}
