"""Captions of at most so many tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def truncate(tokens: Tensor, words: int) -> Tensor:
    """Captions (B, L) of at most `words` tokens, start and end included; the end is the last of a longer one."""
    if tokens.shape[1] <= words:
        return tokens
    last = torch.where(tokens.argmax(dim=-1) >= words, tokens.amax(dim=-1), tokens[:, words - 1])
    return torch.cat([tokens[:, : words - 1], last[:, None]], dim=1)
