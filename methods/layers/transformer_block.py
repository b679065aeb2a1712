"""A new transformer block in CLIP's form: of any width, with torch's initial values."""

from __future__ import annotations

from torch import Tensor, nn

from ctvr.methods.backbone.blocks import Block, TokenState
from ctvr.methods.backbone.quick_gelu import QuickGELU


def new_block(width: int, heads: int) -> Block:
    """Build a block: pre-norm attention, an MLP four times as wide with QuickGELU; biases everywhere, no dropout."""
    from open_clip.transformer import ResidualAttentionBlock  # seconds to import: here, where a block is made

    return Block(ResidualAttentionBlock(width, heads, mlp_ratio=4.0, act_layer=QuickGELU))


def passed(block: nn.Module, x: Tensor, there: Tensor | None = None, causal: bool = False) -> Tensor:
    """Pass tokens x (G, N, D) through such a block; `there` (G, N) marks the visible ones, None: all."""
    sizes = None if there is None else there[..., None].to(x.dtype)  # attention counts a token once for each of them
    out: Tensor = block(x, None, TokenState(len(x), sizes=sizes), causal)
    return out
