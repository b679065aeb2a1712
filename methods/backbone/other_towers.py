"""Towers of open_clip that are not CLIP's, behind the same seams: timm's ViT, and text read at its last place (SigLIP).

A timm ViT is rebuilt of blocks.py's blocks; before and behind them timm's own modules work. It may pool by attention or
by the mean, and may have no class token: so methods reach it through `forward` and seams alone (`Method.any_tower`).
With its seams off a tower is equal to open_clip's own (tests/methods/backbone/test_other_towers.py).

Shapes: B videos or captions, T frames, N tokens of one frame, L tokens of one caption, D width, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from methods.backbone.blocks import Block, Seams, TokenState, record, run_blocks
from methods.backbone.clip import TextTower, VisionTower

_PLAIN = "Use another backbone, such as ViT-B-16-SigLIP or ViT-B-32-quickgelu."


def vision_of(source: Any, name: str) -> VisionTower:
    """The image tower of an open_clip model.

    Raises:
        ValueError: for a network that has no such blocks.
    """
    visual = source.visual
    return TimmVision(visual, name) if type(visual).__name__ == "TimmModel" else VisionTower(visual)


def text_of(source: Any) -> TextTower:
    """The text tower of an open_clip model."""
    text = source.text if hasattr(source, "text") else source
    return LastTokenText(text) if getattr(text, "pool_type", "") == "last" else TextTower(text)


class TimmVision(VisionTower):
    """timm's VisionTransformer in open_clip's TimmModel (SigLIP, SigLIP2)."""

    is_plain = False
    reducers = ("none",)

    def __init__(self, source: Any, name: str = "") -> None:
        """Take a TimmModel apart.

        Raises:
            ValueError: for networks without plain pre-norm blocks (convolutions, rotary positions, normalised q and k).
        """
        nn.Module.__init__(self)
        trunk: Any = source.trunk
        _check(trunk, name)
        self.blocks = nn.ModuleList(Block(_as_open_clip(block, name)) for block in trunk.blocks)
        self.width, self.heads = int(trunk.embed_dim), int(trunk.blocks[0].attn.num_heads)
        self.classes = int(trunk.num_prefix_tokens)
        if self.classes > 1:
            raise ValueError(f"the image tower of {name} has {self.classes} leading tokens; one is known. {_PLAIN}")
        self.num_tokens = self.classes + int(trunk.patch_embed.num_patches)  # N
        self.conv1 = trunk.patch_embed.proj
        trunk.blocks = nn.Identity()
        self.trunk, self.head = trunk, source.head
        with torch.no_grad():
            self.embed_dim = int(self._pooled(torch.zeros(1, self.num_tokens, self.width)).shape[-1])
        self.entry, self.takes_features = 0, False

    def embed(self, frames: Tensor) -> tuple[Tensor, TokenState]:
        batch, num_frames = frames.shape[:2]
        if frames.ndim == 4:
            return frames.flatten(0, 1), TokenState(
                batch, num_frames, classes=self.classes, protected=self.classes, start=self.entry
            )
        trunk = self.trunk
        x: Tensor = trunk.norm_pre(trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(frames.flatten(0, 1)))))
        return x, record(TokenState(batch, num_frames, classes=self.classes, protected=self.classes))

    @torch.no_grad()
    def prefix(self, frames: Tensor, blocks: int) -> Tensor:
        """As of CLIP's tower, but that all N tokens are read behind the last block, too."""
        x, state = self.embed(frames)
        return run_blocks(self.blocks[:blocks], x, None, state, causal=False).unflatten(0, frames.shape[:2])

    def read(self, x: Tensor) -> Tensor:
        raise ValueError("a timm tower pools tokens by itself: a method must call it as a whole (Method.any_tower).")

    def _pooled(self, x: Tensor) -> Tensor:
        """Tokens (G, N, D) behind the last block -> (G, d)."""
        found: Tensor = self.head(self.trunk.forward_head(self.trunk.norm(x)))
        return found

    def forward(self, frames: Tensor, seams: Seams | None = None) -> Tensor:
        """One joint embedding for each frame: (B, T, 3, H, W), or stored tokens, -> (B, T, d), not normalised."""
        x, state = self.embed(frames)
        x = run_blocks(self.blocks, x, seams, state, causal=False)
        x = x[:, 0] if self.takes_features else self._pooled(x)
        return x.reshape(*frames.shape[:2], -1)


def _check(trunk: Any, name: str) -> None:
    from timm.models.vision_transformer import VisionTransformer  # open_clip needs timm, too

    kind = type(trunk)
    if kind is not VisionTransformer or type(trunk.patch_embed).__name__ != "PatchEmbed":
        raise ValueError(f"the image tower of {name} is timm's {kind.__name__}, which has no seams. {_PLAIN}")


def _as_open_clip(block: Any, name: str) -> SimpleNamespace:
    """A timm block under open_clip's names."""
    a = block.attn
    changed = (a.q_norm, a.k_norm, a.norm, block.drop_path1, block.drop_path2)
    is_plain = type(block).__name__ == "Block" and type(a).__name__ == "Attention" and a.gate is None
    is_plain = is_plain and all(isinstance(each, nn.Identity) for each in changed)
    if not is_plain or a.qkv.bias is None or a.proj.bias is None or a.attn_drop.p or a.attn_dim != a.proj.out_features:
        raise ValueError(f"the blocks of the image tower of {name} are no plain pre-norm blocks with biases. {_PLAIN}")
    weights = {"in_proj_weight": a.qkv.weight, "in_proj_bias": a.qkv.bias, "out_proj": a.proj}
    attn = SimpleNamespace(num_heads=a.num_heads, embed_dim=a.attn_dim, **weights)
    return SimpleNamespace(ln_1=block.norm1, ln_2=block.norm2, mlp=block.mlp, ls_1=block.ls1, ls_2=block.ls2, attn=attn)


class LastTokenText(TextTower):
    """A text tower that reads the last of all places, pads among them, as SigLIP's does; it may look ahead.

    It takes tokens as every tower here does (see `EndMarked`) and makes those of its own tokenizer of them.
    """

    def __init__(self, source: Any) -> None:
        nn.Module.__init__(self)
        if source.cls_emb is not None or source.use_pad_mask or source.text_projection is None:
            raise ValueError(f"the text tower has a class token, masked pads or no projection. {_PLAIN}")
        self.token_embedding, self.ln_final = source.token_embedding, source.ln_final
        self.positional_embedding = source.positional_embedding  # (context, D)
        self.proj = source.text_projection  # (D, d), or a linear layer
        self.blocks = nn.ModuleList(Block(block) for block in source.transformer.resblocks)
        self.causal = source.attn_mask is not None
        self.width, self.heads = int(source.width), int(source.heads)
        self.context_length = int(self.positional_embedding.shape[0])
        self.pad = 0  # of its tokenizer

    def embed(self, tokens: Tensor) -> tuple[Tensor, TokenState]:
        """Marked ids (B, L') as embeddings (B, L, D) of all L places."""
        length = tokens.argmax(dim=1)  # (B,) the mark
        places = torch.arange(self.context_length, device=tokens.device)
        wide = nn.functional.pad(tokens, (0, max(0, self.context_length - tokens.shape[1])))
        ids = torch.where(places < length[:, None], wide[:, : self.context_length] - 1, self.pad)
        last = torch.full((len(tokens),), self.context_length - 1, device=tokens.device)
        x = self.token_embedding(ids) + self.positional_embedding
        return x, TokenState(len(tokens), eot=last, protected=self.context_length)

    def read(self, x: Tensor, state: TokenState) -> Tensor:
        pooled = self.ln_final(x)[:, -1]
        return self.proj(pooled) if isinstance(self.proj, nn.Linear) else pooled @ self.proj


class EndMarked:
    """A tokenizer whose ids are raised by one, with the largest of all behind each caption's last, then zeros.

    So it keeps what every reader of captions here relies on, whatever the ids of its ends and pads are: (N, L + 1).
    """

    def __init__(self, tokenize: Callable[[list[str]], Tensor], text: LastTokenText) -> None:
        self.tokenize = tokenize
        inner = getattr(tokenize, "tokenizer", None)
        self.pad = text.pad = int(getattr(inner, "pad_token_id", None) or 0)
        self.mark = len(text.token_embedding.weight) + 1

    def __call__(self, texts: list[str]) -> Tensor:
        ids = self.tokenize(texts)
        places = torch.arange(ids.shape[1] + 1)
        length = torch.where(ids != self.pad, places[1:], 0).amax(dim=1, keepdim=True)  # (N, 1)
        marked = torch.where(places < length, nn.functional.pad(ids + 1, (0, 1)), 0)
        return torch.where(places == length, self.mark, marked)
