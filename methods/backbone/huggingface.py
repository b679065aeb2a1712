"""Maps the tensor names of CLIP and SigLIP in transformers to open_clip's names.

transformers has separate matrices for queries, keys and values; open_clip has one. A projection is a linear layer in
transformers, and a matrix that multiplies from the right in open_clip. open_clip takes SigLIP's image tower from timm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

ROOT = "vision_model."  # prefix of the names of an image tower
_LAYER = re.compile(r"(vision|text)_model\.encoder\.layers\.(\d+)\.(.+)")
_QKV = re.compile(r"self_attn\.([qkv])_proj\.(weight|bias)")
_BLOCK = {"self_attn.out_proj": "attn.out_proj", "layer_norm1": "ln_1", "layer_norm2": "ln_2"}
_BLOCK |= {"mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
_TIMM_BLOCK = {"self_attn.out_proj": "attn.proj", "layer_norm1": "norm1", "layer_norm2": "norm2"}
_TIMM_BLOCK |= {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
_VISION = {
    "embeddings.class_embedding": "visual.class_embedding",
    "embeddings.patch_embedding.weight": "visual.conv1.weight",
    "embeddings.position_embedding.weight": "visual.positional_embedding",
    "pre_layrnorm.": "visual.ln_pre.",  # as transformers spells it
    "post_layernorm.": "visual.ln_post.",
}
_TIMM_VISION = {
    "embeddings.patch_embedding.": "visual.trunk.patch_embed.proj.",
    "embeddings.position_embedding.weight": "visual.trunk.pos_embed",
    "post_layernorm.": "visual.trunk.norm.",
    "head.probe": "visual.trunk.attn_pool.latent",
    "head.attention.out_proj.": "visual.trunk.attn_pool.proj.",
    "head.layernorm.": "visual.trunk.attn_pool.norm.",
    "head.mlp.": "visual.trunk.attn_pool.mlp.",
}
_TEXT = {
    "embeddings.token_embedding.": "token_embedding.",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.": "ln_final.",
    "head.": "text_projection.",
}


def is_theirs(state: Mapping[str, Tensor]) -> bool:
    """Return whether tensor names follow Hugging Face transformers (CLIPModel, SiglipModel)."""
    return any(name.startswith((ROOT, "text_model.")) for name in state)


def under_open_clip_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors of transformers to the names of an open_clip model; join and reshape them to fit that model.

    Args:
        state: tensors by their names in transformers' CLIPModel, SiglipModel or a model with the same names.
        wanted: state dict of the open_clip model; only names and shapes are used.

    Returns:
        Tensors by open_clip's names; a tensor with an unknown name keeps it.
    """
    is_timm = any(name.startswith("visual.trunk.") for name in wanted)
    before = "text." if any(name.startswith("text.") for name in wanted) else ""
    found: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}  # open_clip's name -> q, k, v
    for name, value in state.items():
        if (layer := _LAYER.fullmatch(name)) is not None:
            tower, number, rest = layer.groups()
            blocks = f"{before}transformer.resblocks" if tower == "text" else "visual.transformer.resblocks"
            blocks = "visual.trunk.blocks" if tower == "vision" and is_timm else blocks
            is_timms = is_timm and tower == "vision"
            if (part := _QKV.fullmatch(rest)) is not None:
                joined = f"attn.qkv.{part[2]}" if is_timms else f"attn.in_proj_{part[2]}"
                parts.setdefault(f"{blocks}.{number}.{joined}", {})[part[1]] = value
                continue
            found[f"{blocks}.{number}.{_rename(rest, _TIMM_BLOCK if is_timms else _BLOCK)}"] = value
        else:
            found |= _rename_outside_blocks(name, value, is_timm, before)
    for name, three in parts.items():
        if set(three) == set("qkv") and len({each.shape[1:] for each in three.values()}) == 1:
            found[name] = torch.cat([three[each] for each in "qkv"])
    return {name: _reshape(value, wanted.get(name)) for name, value in found.items()}


def _rename_outside_blocks(name: str, value: Tensor, is_timm: bool, before: str) -> dict[str, Tensor]:
    """Rename a tensor outside the transformer blocks: new name -> tensor, or two names with its two parts."""
    tower, _, rest = name.partition(".")
    if tower == "vision_model" and is_timm and rest.startswith("head.attention.in_proj_"):
        kind = rest.removeprefix("head.attention.in_proj_")
        width, pool = len(value) // 3, "visual.trunk.attn_pool"
        return {f"{pool}.q.{kind}": value[:width], f"{pool}.kv.{kind}": value[width:]}
    if tower == "vision_model":
        return {_rename(rest, _TIMM_VISION if is_timm else _VISION, f"{tower}."): value}
    if tower == "text_model":
        renamed = _rename(rest, _TEXT)
        return {name if renamed == rest else before + renamed: value}
    if name == "visual_projection.weight":
        return {"visual.proj": value.mT}
    if name == "text_projection.weight":
        return {f"{before}text_projection": value.mT}
    return {name: value}


def _rename(name: str, table: Mapping[str, str], otherwise: str = "") -> str:
    for theirs, ours in table.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return otherwise + name


def _reshape(value: Tensor, wanted: Tensor | None) -> Tensor:
    """Reshape a tensor to the shape of `wanted` if they differ only in dimensions of size 1: (N, D) to (1, N, D)."""
    if wanted is None or [n for n in value.shape if n != 1] != [n for n in wanted.shape if n != 1]:
        return value
    return value.reshape(wanted.shape)
