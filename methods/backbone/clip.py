"""A CLIP backbone: open_clip's two towers, rebuilt from blocks with hook points called seams (blocks.py).

load.py loads a backbone. Towers of other kinds with the same seams are in openclip_towers.py.

`Clip.__init__` rebuilds the network of an open_clip model with the seams, where a method may act. This module also
exports the names of blocks.py that a method needs.

Shapes: B videos or captions, T frames, N tokens of one frame, L tokens of one caption, G attention
groups (B*T frames, or B captions), D width of the tower, d width of the joint embedding, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import (
    Attention,
    AttentionTrace,
    Block,
    BlockSeams,
    Seam,
    Seams,
    TokenState,
    record,
    record_tokens,
    run_block,
    run_blocks,
)
from ctvr.methods.backbone.merged_weights import merge
from ctvr.methods.backbone.recompute import checkpointing, is_recomputing, recomputing
from ctvr.methods.backbone.weight_settings import WeightSettings
from ctvr.methods.layers.transfer import trim_padding

__all__ = [
    "Attention",
    "AttentionTrace",
    "Block",
    "BlockSeams",
    "Clip",
    "Seam",
    "Seams",
    "TextTower",
    "TokenState",
    "VisionTower",
    "checkpointing",
    "is_recomputing",
    "recomputing",
    "record",
    "record_tokens",
    "run_block",
    "run_blocks",
]


class VisionTower(nn.Module):
    """CLIP's ViT, applied to each frame of a video. openclip_towers.py has other towers with the same seams."""

    is_plain = True  # whether the tower has CLIP's parts: a class token, conv1, ln_pre, ln_post, proj
    classes = 1  # leading class tokens of a frame
    reducers: tuple[str, ...] | None = None  # reducers that can merge tokens of this tower; if None, all can
    lacks: frozenset[str] = frozenset()  # members of this class that a tower of another kind cannot offer

    def __init__(self, source: Any) -> None:
        super().__init__()
        from open_clip.transformer import VisionTransformer  # slow import (seconds), deferred until a tower is built

        if not isinstance(source, VisionTransformer) or source.attn_pool is not None:
            raise ValueError(
                f"the image tower is a {type(source).__name__}; ctvr supports only plain open_clip ViT towers. "
                "Use a backbone such as ViT-B-32-quickgelu."
            )
        if source.pool_type != "tok" or source.final_ln_after_pool:
            raise ValueError(
                "the image tower does not pool its class token; use a backbone such as ViT-B-32-quickgelu."
            )
        self.conv1, self.ln_pre, self.ln_post = source.conv1, source.ln_pre, source.ln_post
        self.class_embedding = source.class_embedding  # (D,)
        self.positional_embedding = source.positional_embedding  # (N, D)
        self.proj = source.proj  # (D, d)
        self.embed_dim = int(source.proj.shape[1])
        self.blocks = nn.ModuleList(Block(block) for block in source.transformer.resblocks)
        self.width = int(self.class_embedding.shape[0])
        self.heads = int(source.transformer.resblocks[0].attn.num_heads)
        self.num_tokens = int(self.positional_embedding.shape[0])  # N, the class token included
        self.entry = 0  # index of the block that stored tokens enter
        self.takes_features = False  # whether inputs are stored joint embeddings and not tokens

    def embed(self, frames: Tensor) -> tuple[Tensor, TokenState]:
        """Embed frames (B, T, 3, H, W) as tokens (B*T, N, D), the class token first, and apply `ln_pre`.

        Stored tokens (B, T, N, D) from `prefix` keep their values, because they enter at block `entry`. The second
        result is the state of the tokens.
        """
        batch, num_frames = frames.shape[:2]
        if frames.ndim == 4:
            return frames.flatten(0, 1), TokenState(batch, num_frames, start=self.entry)
        patches = self.conv1(frames.flatten(0, 1)).flatten(2).mT  # (G, N-1, D)
        x = torch.cat([self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1), patches], dim=1)
        x = self.ln_pre(x + self.positional_embedding.to(x.dtype))
        return x, record(TokenState(batch, num_frames))

    @torch.no_grad()
    def prefix(self, frames: Tensor, blocks: int) -> Tensor:
        """Run the first `blocks` blocks without seams: (B, T, 3, H, W) -> (B, T, N, D).

        If the tower has no further blocks, only class tokens are returned (N = 1).
        """
        x, state = self.embed(frames)
        is_whole = blocks == len(self.blocks)
        x = run_blocks(self.blocks[:blocks], x, None, state, causal=False, classes_only=is_whole)
        if is_whole:
            x = x[:, : state.classes]
        return x.unflatten(0, frames.shape[:2])

    def read(self, x: Tensor) -> Tensor:
        """Project class tokens x (..., D) to joint embeddings (..., d), not normalized."""
        return x if self.takes_features else self.ln_post(x) @ self.proj

    def forward(self, frames: Tensor, seams: Seams | None = None) -> Tensor:
        """Embed each frame: (B, T, 3, H, W), or stored tokens (B, T, N, D), -> (B, T, d), not normalized."""
        x, state = self.embed(frames)
        x = run_blocks(self.blocks, x, seams, state, causal=False, classes_only=True)
        read = self.read(x[:, : state.classes])
        if state.frame_of is not None:  # frames that were merged share one embedding
            read = read.unflatten(0, (state.batch, -1))[:, :, 0]
            return read.gather(1, state.frame_of[:, :, None].expand(-1, -1, read.shape[-1]))
        return read.reshape(state.batch, frames.shape[1], -1)


class TextTower(nn.Module):
    """CLIP's causal text transformer, applied to each caption."""

    causal = True
    lacks: frozenset[str] = frozenset()  # members of this class that a tower of another kind cannot offer

    def __init__(self, source: Any) -> None:
        super().__init__()
        if (
            not hasattr(source, "transformer")
            or getattr(source, "text_pool_type", getattr(source, "pool_type", "argmax")) != "argmax"
        ):
            raise ValueError("the text tower does not pool at the end-of-text token; use a CLIP text tower.")
        self.token_embedding = source.token_embedding
        self.positional_embedding = source.positional_embedding  # (context, D)
        self.ln_final = source.ln_final
        self.proj = source.text_projection  # (D, d)
        if not isinstance(self.proj, nn.Parameter):
            raise ValueError("the text tower's projection is not a plain matrix; use a CLIP text tower.")
        self.blocks = nn.ModuleList(Block(block) for block in source.transformer.resblocks)
        self.width = int(self.positional_embedding.shape[1])
        self.heads = int(source.transformer.resblocks[0].attn.num_heads)
        self.context_length = int(self.positional_embedding.shape[0])

    def embed(self, tokens: Tensor) -> tuple[Tensor, TokenState]:
        """Embed token ids (B, L), padded at the end, as (B, L', D), and return the state of the tokens.

        On the CPU, L' is the length of the longest caption. On a GPU it is L, because the caller trims captions before
        the transfer.
        """
        tokens = trim_padding(tokens)
        eot = tokens.argmax(dim=-1)  # the first maximum: the end-of-text id is the largest of the vocabulary
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        return x, TokenState(len(tokens), eot=eot, protected=tokens.shape[1])

    def read(self, x: Tensor, state: TokenState) -> Tensor:
        """Project tokens x (B, L', D) after all blocks to joint embeddings (B, d) of captions, not normalized."""
        return self.project(x[torch.arange(len(x), device=x.device), state.eot])

    def project(self, x: Tensor) -> Tensor:
        """Project tokens x (..., D) after all blocks to joint embeddings (..., d), not normalized."""
        return self.ln_final(x) @ self.proj

    def hidden(self, tokens: Tensor, seams: Seams | None = None) -> tuple[Tensor, Tensor]:
        """Return every token's joint embedding (B, L', d), not normalized, and the end-of-text positions (B,)."""
        x, state = self.embed(tokens)
        x = run_blocks(self.blocks, x, seams, state, self.causal)
        assert state.eot is not None
        return self.project(x), state.eot

    def forward(self, tokens: Tensor, seams: Seams | None = None) -> Tensor:
        """Embed each caption: (B, L) int64 -> (B, d), not normalized.

        A training step computes all tokens of the last block, because dropout would draw other random numbers for
        fewer tokens.
        """
        x, state = self.embed(tokens)
        last, acts = self.blocks[-1], (seams[-1] if seams else None) or BlockSeams()
        is_whole = self.training or torch.is_grad_enabled() or not self.causal
        if is_whole or len(seams or self.blocks) != len(self.blocks) or not supports_eot_only(last, acts, state):
            return self.read(run_blocks(self.blocks, x, seams, state, self.causal), state)
        x = run_blocks(self.blocks[:-1], x, None if seams is None else seams[:-1], state, self.causal)
        state.layer = len(self.blocks) - 1
        return self.read(eot_only(last, x, acts, state), state)


class Clip(nn.Module):
    """An image tower and a text tower with pre-trained weights, on which every method builds."""

    weight_settings: WeightSettings | None = None  # None for shipped models and UMT, whose settings are fixed

    def __init__(
        self,
        source: Any,
        tokenize: Callable[[list[str]], Tensor],
        mean: Sequence[float],
        std: Sequence[float],
        name: str = "",
        vision: VisionTower | None = None,
        text: TextTower | None = None,
    ) -> None:
        """Build the backbone.

        Args:
            source: an open_clip model.
            tokenize: captions -> token ids (B, L) int64.
            mean: (3,) means of the color channels, which are subtracted from pixels in [0, 1].
            std: (3,) standard deviations by which the color channels are divided.
            name: name of the architecture.
            vision: image tower; if None, CLIP's ViT from `source`.
            text: text tower; if None, CLIP's from `source`.
        """
        super().__init__()
        self.name = name
        self.vision = vision or VisionTower(source.visual)
        self.text = text or TextTower(source.text if hasattr(source, "text") else source)
        self.logit_scale = nn.Parameter(source.logit_scale.detach().clone().float())  # log of 1 / temperature
        self.tokenize = tokenize
        self.mean, self.std = tuple(mean), tuple(std)
        self.embed_dim = self.vision.embed_dim
        size = source.visual.image_size
        self.image_size = int(size[0] if isinstance(size, (tuple, list)) else size)

    @property
    def resize(self) -> tuple[str, str]:
        """Return the resize mode and the interpolation for resizing frames to the image size."""
        own = self.weight_settings or WeightSettings()
        return own.resize_mode, own.interpolation


def supports_eot_only(block: nn.Module, seams: BlockSeams, state: TokenState) -> TypeGuard[Block]:
    """Return whether, with these seams (hooks), `eot_only` computes the same end-of-text tokens as `block.forward`."""
    if not isinstance(block, Block) or state.rotate is not None or hasattr(block.attn, "norm"):
        return False
    if type(state) is not TokenState:  # seams with their own kind of state may read any token (LUMP's mixup does)
        return False
    _, seams = merge(block.attn.in_weight, seams)
    is_alone = seams.by_token or seams.qkv is seams.q is seams.out is seams.fc is seams.proj is seams.mlp is None
    others = (seams.before, seams.mix, seams.beside, seams.between, seams.after)
    return is_alone and all(seam is None for seam in others)


def eot_only(block: Block, x: Tensor, seams: BlockSeams, state: TokenState) -> Tensor:
    """Compute the end-of-text tokens (B, 1, D) of captions x (B, L, D). They are the only queries; all tokens are keys.

    The function sets `state.eot` to 0, the new position of the end-of-text token.
    """
    assert state.eot is not None
    rows, attention, (batch, tokens, width) = torch.arange(len(x), device=x.device), block.attn, x.shape
    seen = torch.arange(tokens, device=x.device) <= state.eot[:, None]  # (B, L)
    y = block.ln_1(x)
    asking, last = y[rows, state.eot][:, None], x[rows, state.eot][:, None]
    weight, seams = merge(attention.in_weight, seams)
    first = torch.zeros_like(state.eot)
    if seams.qkv is None:
        k, v = F.linear(y, weight[width:], attention.in_bias[width:]).chunk(2, dim=-1)
        k = k if seams.k is None else seams.k(y, k, state)
        v = v if seams.v is None else seams.v(y, v, state)
        state.eot = first
        q = F.linear(asking, weight[:width], attention.in_bias[:width])
        q = q if seams.q is None else seams.q(asking, q, state)
    else:  # the seam `qkv` needs all tokens, for q, too
        q, k, v = attention.project(y, seams, state)
        q, state.eot = q[rows, state.eot][:, None], first
    q, k, v = (attention.heads_first(z) for z in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None]).transpose(1, 2).flatten(2)
    out = attention.out(mixed)
    x = last + block.ls_1(out if seams.out is None else seams.out(mixed, out, state))
    state.log.append((batch // state.batch, tokens, tokens))
    return x + block.ls_2(block.feed_forward(block.ln_2(x), seams, state))
