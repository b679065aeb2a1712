"""Attention over a whole video: global tokens attend to all tokens; patches attend to their frame and global tokens.

It uses the weights of CLIP's attention, for the proxies of CLIP-ViP (arXiv:2209.06430, section 3.3) and the prompts of
DGL (AAAI 2024, section 3). Keys and values are computed once for the queries of both kinds of tokens.

Shapes: B videos, T frames, G global tokens, N tokens of a frame, D width, H heads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import Attention, BlockSeams, TokenState


def block_of_video(block: Any, whole: int, num_frames: int, x: Tensor, state: TokenState) -> Tensor:
    """Pass videos through one of CLIP's blocks: (B, G + T*N, D) -> (B, G + T*N, D).

    Args:
        block: a block of the vision tower.
        whole: G, the number of global tokens, which come first.
        num_frames: T.
        x: tokens.
        state: token state, to whose log the cost of the block is added.
    """
    x = x + block.ls_1(attend(block.attn, block.ln_1(x), whole, num_frames, state))
    tokens = x.shape[1]
    state.log.append((1, tokens, tokens))  # cost if all attended to all; the next lines subtract the savings
    pairs = whole * tokens + (tokens - whole) * (whole + (tokens - whole) // num_frames)
    state.extra_macs += 2 * x.shape[0] * x.shape[2] * (pairs - tokens**2)
    return x + block.ls_2(block.mlp(block.ln_2(x)))


def attend(attention: Attention, y: Tensor, whole: int, num_frames: int, state: TokenState) -> Tensor:
    """Compute the attention of G = `whole` global tokens and T*N patches: (B, G + T*N, D) -> (B, G + T*N, D)."""
    q, k, v = (attention.heads_first(z) for z in attention.project(y, BlockSeams(), state))  # (B, H, G + T*N, D/H)
    globals_ = F.scaled_dot_product_attention(q[:, :, :whole], k, v)
    keys, values = (per_frame(z, whole, num_frames) for z in (k, v))  # (B, H*T, G + N, D/H)
    own = q[:, :, whole:].unflatten(2, (num_frames, -1)).flatten(1, 2)  # (B, H*T, N, D/H)
    patches = F.scaled_dot_product_attention(own, keys, values)
    patches = patches.unflatten(1, (q.shape[1], num_frames)).flatten(2, 3)  # (B, H, T*N, D/H)
    return attention.out(torch.cat([globals_, patches], dim=2).transpose(1, 2).flatten(2))


def per_frame(z: Tensor, whole: int, num_frames: int) -> Tensor:
    """Repeat the keys or values of global tokens before those of each frame: (B, H, G + T*N, c) -> (B, H*T, G + N, c).

    c is the width of a head.
    """
    own = z[:, :, whole:].unflatten(2, (num_frames, -1))  # (B, H, T, N, c)
    shared = z[:, :, None, :whole].expand(-1, -1, num_frames, -1, -1)  # (B, H, T, G, c)
    return torch.cat([shared, own], dim=3).flatten(1, 2)
