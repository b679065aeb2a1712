"""Towers of open_clip that differ from CLIP's, with the same hook points (seams): timm's ViT and Eva, and text towers.

timm's ViT (SigLIP, MobileCLIP2-B and L) and Eva (PE-Core, EVA02: rotary positions) are rebuilt from the blocks of
blocks.py; before and after the blocks, timm's own modules are used. The towers may pool by attention or by the mean,
and may lack a class token. Whether a method fits a tower is tested by running it (learning/run/tower_parts.py).
Without seams, a tower computes the features of open_clip's tower (tests/methods/backbone/test_openclip_towers.py).

Shapes: B videos or captions, T frames, N tokens of one frame, L tokens of one caption, D width, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import Block, Seams, TokenState, record, run_blocks
from ctvr.methods.backbone.clip import TextTower, VisionTower

_PLAIN = "Use another backbone, such as ViT-B-16-SigLIP or ViT-B-32-quickgelu."


def vision_of(source: Any, name: str) -> VisionTower:
    """Rebuild the image tower of an open_clip model.

    Raises:
        ValueError: for a network that cannot be rebuilt from the blocks of blocks.py.
    """
    visual = source.visual
    return TimmVision(visual, name) if type(visual).__name__ == "TimmModel" else VisionTower(visual)


def text_of(source: Any, is_of_transformers: bool = False) -> TextTower:
    """Rebuild the text tower of an open_clip model; in a tokenizer of transformers, the largest id need not be the end.

    Raises:
        ValueError: for a network that cannot be rebuilt from the blocks of blocks.py.
    """
    text = source.text if hasattr(source, "text") else source
    is_plain = _pool_of(text) in {"argmax", ""} and text.attn_mask is not None and not is_of_transformers
    return TextTower(text) if is_plain else WholeText(text)


def _pool_of(text: Any) -> str:
    return str(getattr(text, "text_pool_type", getattr(text, "pool_type", "")))


class TimmVision(VisionTower):
    """timm's VisionTransformer or Eva in open_clip's TimmModel (SigLIP, SigLIP2, MobileCLIP2-B; PE-Core, EVA02)."""

    is_plain = False
    reducers = ("none",)
    lacks = frozenset({"read"})

    def __init__(self, source: Any, name: str = "") -> None:
        """Build the tower from the modules of a TimmModel.

        Raises:
            ValueError: for networks without plain pre-norm blocks (convolutions, norms after the blocks, normalized q
                and k, gates).
        """
        nn.Module.__init__(self)
        trunk: Any = source.trunk
        _check(trunk, name)
        self.blocks = nn.ModuleList(Block(to_open_clip(block, name)) for block in trunk.blocks)
        self.rotates_half = bool(getattr(trunk.blocks[0].attn, "rotate_half", False))
        self.width, self.heads = int(trunk.embed_dim), int(trunk.blocks[0].attn.num_heads)
        self.classes = int(trunk.num_prefix_tokens)
        if self.classes > 1:
            raise ValueError(
                f"the image tower of {name} has {self.classes} leading tokens, of which ctvr supports one. {_PLAIN}"
            )
        self.num_tokens = self.classes + int(trunk.patch_embed.num_patches)  # N
        convolutions = [each for each in trunk.patch_embed.modules() if isinstance(each, nn.Conv2d)]
        self.conv1 = convolutions[-1]  # a stem has further convolutions before it, which `tower_macs` does not count
        self.rope: nn.Module | None = getattr(trunk, "rope", None)
        trunk.blocks = nn.Identity()
        self.trunk, self.head = trunk, source.head
        with torch.no_grad():
            self.embed_dim = int(self._pooled(torch.zeros(1, self.num_tokens, self.width)).shape[-1])
        self.entry, self.takes_features = 0, False

    def train(self, mode: bool = True) -> TimmVision:
        """Set the mode of the blocks only: training mode would change batch-norm statistics of MobileCLIP2-B's stem."""
        super().train(mode)
        self.trunk.eval()
        return self

    def embed(self, frames: Tensor) -> tuple[Tensor, TokenState]:
        batch, num_frames = frames.shape[:2]
        state = TokenState(batch, num_frames, classes=self.classes, protected=self.classes, rotate=self._rotation())
        if frames.ndim == 4:
            state.start = self.entry
            return frames.flatten(0, 1), state
        trunk = self.trunk
        found = trunk._pos_embed(trunk.patch_embed(frames.flatten(0, 1)))
        x = found[0] if isinstance(found, tuple) else trunk.patch_drop(found)  # Eva: (tokens, rotations)
        return trunk.norm_pre(x), record(state)

    def _rotation(self) -> Callable[[Tensor], Tensor] | None:
        """Return a function that applies rotary positions (arXiv:2104.09864) to patches; None if the tower has none.

        The function maps q or k (G, H, N, D/H) to the same shape, and leaves class tokens unchanged.
        """
        if self.rope is None:
            return None
        from timm.layers import apply_rot_embed_cat

        rope: Any = self.rope
        angles: Tensor = rope.get_embed()  # (N - classes, 2 D/H): sines and cosines

        def rotate(x: Tensor) -> Tensor:
            first, patches = x[:, :, : self.classes], x[:, :, self.classes :]
            turned = apply_rot_embed_cat(patches, angles, half=self.rotates_half)
            return torch.cat([first, turned], dim=2).to(x.dtype)

        return rotate

    @torch.no_grad()
    def prefix(self, frames: Tensor, blocks: int) -> Tensor:
        """Run the first `blocks` blocks without seams: (B, T, 3, H, W) -> (B, T, N, D).

        Unlike CLIP's tower, this tower returns all N tokens even after its last block.
        """
        x, state = self.embed(frames)
        return run_blocks(self.blocks[:blocks], x, None, state, causal=False).unflatten(0, frames.shape[:2])

    def read(self, x: Tensor) -> Tensor:
        raise ValueError("a timm tower pools tokens by itself, so a method must call it as a whole.")

    def _pooled(self, x: Tensor) -> Tensor:
        """Pool tokens (G, N, D) after the last block: (G, d)."""
        found: Tensor = self.head(self.trunk.forward_head(self.trunk.norm(x)))
        return found

    def forward(self, frames: Tensor, seams: Seams | None = None) -> Tensor:
        """Embed each frame: (B, T, 3, H, W), or stored tokens (B, T, N, D), -> (B, T, d), not normalized."""
        x, state = self.embed(frames)
        x = run_blocks(self.blocks, x, seams, state, causal=False)
        x = x[:, 0] if self.takes_features else self._pooled(x)
        return x.reshape(*frames.shape[:2], -1)


def _check(trunk: Any, name: str) -> None:
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer  # open_clip needs timm, too

    kind = type(trunk)
    stems = {"PatchEmbed", "HybridEmbed"}
    if kind not in (VisionTransformer, Eva) or type(trunk.patch_embed).__name__ not in stems:
        raise ValueError(
            f"the image tower of {name} is timm's {kind.__name__}, in whose blocks methods cannot act. {_PLAIN}"
        )
    if getattr(trunk, "rope_mixed", False):
        raise ValueError(f"the image tower of {name} has its own rotary positions in each block. {_PLAIN}")


def to_open_clip(block: Any, name: str) -> SimpleNamespace:
    """Return the parts of a timm block under open_clip's names, without MobileCLIP2-L-14's stochastic depth."""
    a = block.attn
    kinds = (type(block).__name__, type(a).__name__)
    is_plain = kinds in {("Block", "Attention"), ("EvaBlock", "EvaAttention"), ("EvaBlock", "AttentionRope")}
    is_plain = is_plain and a.gate is None and isinstance(a.q_norm, nn.Identity) and isinstance(a.k_norm, nn.Identity)
    if not is_plain or a.proj.bias is None or a.attn_drop.p or a.proj.in_features != a.proj.out_features:
        raise ValueError(f"the blocks of the image tower of {name} are not plain pre-norm blocks with biases. {_PLAIN}")
    weight, bias = _projections(a)
    attn = SimpleNamespace(
        num_heads=a.num_heads,
        embed_dim=a.proj.in_features,
        in_proj_weight=weight,
        in_proj_bias=bias,
        out_proj=a.proj,
        norm=a.norm,
    )
    if kinds[0] == "EvaBlock":
        ls_1, ls_2 = _Scale.of(block.gamma_1), _Scale.of(block.gamma_2)
    else:
        ls_1, ls_2 = block.ls1, block.ls2
    return SimpleNamespace(ln_1=block.norm1, ln_2=block.norm2, mlp=block.mlp, ls_1=ls_1, ls_2=ls_2, attn=attn)


def _projections(a: Any) -> tuple[Tensor, Tensor]:
    """Return the joined weights (3D, D) and biases (3D,) of q, k, v.

    A bias that timm's attention lacks, such as the key bias of EVA, is zero.
    """
    if a.qkv is not None:
        weight, bias = a.qkv.weight, a.qkv.bias
        if bias is None and getattr(a, "q_bias", None) is not None:
            bias = torch.cat([a.q_bias, torch.zeros_like(a.q_bias), a.v_bias])
    else:
        parts = (a.q_proj, a.k_proj, a.v_proj)
        weight = torch.cat([each.weight for each in parts])
        zeros = torch.zeros_like(a.q_proj.weight[:, 0])
        bias = torch.cat([zeros if each.bias is None else each.bias for each in parts])
    return weight, torch.zeros_like(weight[:, 0]) if bias is None else bias


class _Scale(nn.Module):
    """Multiplies each channel by a learned factor: (..., D) -> (..., D)."""

    def __init__(self, gamma: nn.Parameter) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma

    @staticmethod
    def of(gamma: nn.Parameter | None) -> nn.Module:
        return nn.Identity() if gamma is None else _Scale(gamma)


class WholeText(TextTower):
    """A text tower that reads all L positions, padding included. It is not causal, or does not pool as CLIP's does.

    It pools at one of three positions. `last`: the last of all positions (SigLIP); `eos`: the first end token, whose id
    is not the largest (MetaCLIP 2); `argmax`: the largest id, as in CLIP, but without a causal mask (MobileCLIP2-L-14).
    Input tokens have the common format of all towers (see `EndMarked`); `embed` converts them to ids of the tokenizer.
    """

    def __init__(self, source: Any) -> None:
        nn.Module.__init__(self)
        self.pool = _pool_of(source) or "argmax"
        changed = getattr(source, "cls_emb", None) is not None or getattr(source, "use_pad_mask", False)
        if changed or source.text_projection is None or self.pool not in {"last", "eos", "argmax"}:
            raise ValueError(
                f"the text tower has a class token or masked padding, lacks a projection, or pools by {self.pool}. "
                f"{_PLAIN}"
            )
        self.eos = int(getattr(source, "text_eos_id", getattr(source, "eos_id", -1)))
        self.token_embedding, self.ln_final = source.token_embedding, source.ln_final
        self.positional_embedding = source.positional_embedding  # (context, D)
        self.proj = source.text_projection  # (D, d), or a linear layer
        self.blocks = nn.ModuleList(Block(block) for block in source.transformer.resblocks)
        self.lacks = frozenset(
            {"hidden"} if self.pool == "last" else ()
        )  # padding comes before the position that is read
        self.causal = source.attn_mask is not None
        self.heads = int(source.transformer.resblocks[0].attn.num_heads)
        self.context_length, self.width = map(int, self.positional_embedding.shape)
        self.pad, self.words = 0, len(self.token_embedding.weight)  # padding id of the tokenizer, and number of ids

    def embed(self, tokens: Tensor) -> tuple[Tensor, TokenState]:
        """Embed ids (B, L') with an end mark at all L positions, as (B, L, D), and return the state of the tokens."""
        ids = unmark(tokens, self.context_length, self.pad)
        if self.pool == "last":
            read = torch.full((len(tokens),), self.context_length - 1, device=tokens.device)
        else:
            read = (ids if self.pool == "argmax" else (ids == self.eos).int()).argmax(dim=1)
        x = self.token_embedding(ids) + self.positional_embedding
        return x, TokenState(len(tokens), eot=read, protected=self.context_length)

    def project(self, x: Tensor) -> Tensor:
        pooled = self.ln_final(x)
        return self.proj(pooled) if isinstance(self.proj, nn.Linear) else pooled @ self.proj


def unmark(tokens: Tensor, length: int, pad: int) -> Tensor:
    """Convert captions (B, L) in the format of `EndMarked` back to the ids (B, length) of their tokenizer."""
    end = tokens.argmax(dim=1)  # (B,) position of the end mark
    wide = nn.functional.pad(tokens, (0, max(0, length - tokens.shape[1])))
    places = torch.arange(length, device=tokens.device)
    return torch.where(places < end[:, None], wide[:, :length] - 1, pad)


class EndMarked:
    """A tokenizer that adds 1 to all ids and ends each caption with the largest id, followed by zeros: (N, L + 1).

    Code that reads captions relies on this format, whichever ids the inner tokenizer uses for end and padding.
    """

    def __init__(self, tokenize: Callable[[list[str]], Tensor], text: Any) -> None:
        """Wrap a tokenizer.

        Args:
            tokenize: captions -> ids (N, L).
            text: text tower with `words`, the number of ids, and `pad`, which is set to the tokenizer's padding id.
        """
        self.tokenize = tokenize
        inner = getattr(tokenize, "tokenizer", None)
        self.pad = text.pad = int(getattr(inner, "pad_token_id", None) or text.pad)
        self.mark = text.words + 1

    def __call__(self, texts: list[str]) -> Tensor:
        ids = self.tokenize(texts)
        places = torch.arange(ids.shape[1] + 1)
        length = torch.where(ids != self.pad, places[1:], 0).amax(dim=1, keepdim=True)  # (N, 1)
        marked = torch.where(places < length, nn.functional.pad(ids + 1, (0, 1)), 0)
        return torch.where(places == length, self.mark, marked)
