"""Computation of a text tower's last block for the end-of-text token only, the one that is read.

Shapes: B captions, L tokens, D width.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import Block, BlockSeams, TokenState
from ctvr.methods.backbone.merged_weights import merge


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
