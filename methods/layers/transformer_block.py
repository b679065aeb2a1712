"""Randomly initialized transformer blocks of any width, with the structure of CLIP's blocks."""

from __future__ import annotations

from torch import Tensor, nn

from ctvr.methods.backbone.blocks import Block, TokenState
from ctvr.methods.backbone.quick_gelu import QuickGELU


def new_block(width: int, heads: int) -> Block:
    """Build a pre-norm block with an MLP of hidden width 4 `width` and QuickGELU, with biases, without dropout."""
    from open_clip.transformer import ResidualAttentionBlock  # slow import (seconds), deferred until a block is built

    return Block(ResidualAttentionBlock(width, heads, mlp_ratio=4.0, act_layer=QuickGELU))


def passed(block: nn.Module, x: Tensor, there: Tensor | None = None, causal: bool = False) -> Tensor:
    """Pass tokens through a block of `new_block`: (G, N, D) -> (G, N, D).

    Args:
        there: (G, N) bool, tokens to which others can attend; if None, all.
        causal: whether a token attends only to itself and earlier tokens.
    """
    sizes = None if there is None else there[..., None].to(x.dtype)  # attention ignores tokens of size 0
    out: Tensor = block(x, None, TokenState(len(x), sizes=sizes), causal)
    return out
