"""Renames UMT's published weights: vision, text and fusion encoder, projections, head, temperature, answer decoder.

Pre-training checkpoints have an additional prefix in the text encoder (`text_encoder.bert.`). The CLIP teacher, its
decoder and the position indices in them are ignored. The language-model head is used only for the answer decoder.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

_VISION = {"norm1": "ln_1", "norm2": "ln_2", "attn.proj": "attn.out", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
_VISION |= {"attn.qkv.weight": "attn.in_weight", "attn.q_bias": "attn.q_bias", "attn.v_bias": "attn.v_bias"}
_TEXT = {
    "embeddings.word_embeddings": "word",
    "embeddings.position_embeddings": "position",
    "embeddings.token_type_embeddings": "kind",
    "embeddings.LayerNorm": "norm",
}
_LAYER = {
    "attention.output.LayerNorm": "attention.norm",
    "attention.output.dense": "attention.dense",
    "intermediate.dense": "wide",
    "output.dense": "narrow",
    "output.LayerNorm": "norm",
}
_WRITING = {"cls.predictions.transform.dense": "transform", "cls.predictions.transform.LayerNorm": "transform_norm"}
_HEADS = {
    "vision_proj.": "vision.proj.",
    "text_proj.": "text.proj.",
    "itm_head.": "head.",
    "vision_encoder.pool_norm.": "vision.pool_norm.",
    "vision_encoder.encoder.norm.": "vision.norm.",
    "vision_encoder.encoder.patch_embed.proj.": "vision.conv1.",
}
_LEFT_OUT = ("text_encoder.cls.", "clip_teacher.", "clip_decoder.", "vision_encoder.clip_", "text_decoder.")
_REMEDY = "Use a pre-training or retrieval checkpoint of UMT."


def under_our_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the authors' tensors to the names of `ctvr.methods.backbone.umt.Umt.state_dict`, and convert to float32.

    Args:
        state: tensors by the authors' names, without a prefix `model.`.

    Raises:
        ValueError: if a name does not belong to UMT.
    """
    found = {}
    for name, value in state.items():
        ours = _rename(name.replace("text_encoder.bert.", "text_encoder."))
        if ours is not None:
            one_frame = ours == "vision.conv1.weight" and value.ndim == 5  # (D, 3, 1, p, p), a tubelet of one frame
            found[ours] = (value[:, :, 0] if one_frame else value).float()
    return found


def of_decoder(state: Mapping[str, Tensor], fusion_from: int) -> dict[str, Tensor]:
    """Return a state dict of `AnswerDecoder` from a checkpoint's decoder or, if it lacks one, from its fusion layers.

    Args:
        state: tensors by the authors' names.
        fusion_from: index of the first fusion layer of the text encoder; without a decoder in the checkpoint, this
            layer becomes the decoder's first layer.

    Raises:
        ValueError: if the checkpoint has neither an answer decoder nor a language-model head.
    """
    found, has_own = {}, any(name.startswith("text_decoder.") for name in state)
    skipped = 0 if has_own else fusion_from
    for name, value in state.items():
        part, _, rest = name.replace(".bert.", ".", 1).partition(".")
        if part == ("text_decoder" if has_own else "text_encoder") and "position_ids" not in rest:
            ours = _rename_decoder(rest, skipped)
            if ours is not None:
                found[ours] = value.float()
    if "bias" not in found:
        raise ValueError(
            "the checkpoint has neither an answer decoder nor a language-model head. Use a pre-trained UMT checkpoint."
        )
    return found


def _rename_decoder(name: str, skipped: int) -> str | None:
    for theirs, ours in {**_TEXT, **_WRITING}.items():
        if name.startswith(f"{theirs}."):
            return f"{ours}.{name.rpartition('.')[2]}"
    if name == "cls.predictions.bias":
        return "bias"
    if not name.startswith("encoder.layer."):
        return None  # the head shares its matrix with the word embeddings
    number, _, rest = name.removeprefix("encoder.layer.").partition(".")
    if int(number) < skipped:
        return None
    return _layer(str(int(number) - skipped), rest).removeprefix("text.bert.")


def _rename(name: str) -> str | None:
    if name.startswith(_LEFT_OUT) or "position_ids" in name:
        return None
    if name == "temp":
        return "temp"
    for theirs, ours in _HEADS.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    for prefix, made in (("vision_encoder.encoder.blocks.", _block), ("text_encoder.encoder.layer.", _layer)):
        if name.startswith(prefix):
            number, _, rest = name.removeprefix(prefix).partition(".")
            return made(number, rest)
    for theirs, ours in _TEXT.items():
        if name.startswith(f"text_encoder.{theirs}."):
            return f"text.bert.{ours}.{name.rpartition('.')[2]}"
    raise ValueError(f"{name}: is not a weight of UMT. {_REMEDY}")


def _block(number: str, rest: str) -> str:
    for theirs, ours in _VISION.items():
        if rest.startswith(theirs):
            return f"vision.blocks.{number}.{ours}{rest.removeprefix(theirs)}"
    raise ValueError(f"blocks.{number}.{rest}: is not a weight of UMT's vision encoder. {_REMEDY}")


def _layer(number: str, rest: str) -> str:
    at, rest = f"text.bert.layers.{number}.", rest.replace(".self.", ".")
    if rest.startswith("crossattention."):
        return at + rest.replace("output.LayerNorm", "norm").replace("output.dense", "dense")
    for theirs, ours in _LAYER.items():
        if rest.startswith(theirs):
            return at + ours + rest.removeprefix(theirs)
    return at + rest  # queries, keys and values
