"""Truncation of captions to a maximum number of tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def truncate(tokens: Tensor, words: int) -> Tensor:
    """Cut captions (B, L) to (B, min(L, words)) tokens; a shortened caption ends with its end-of-text token."""
    if tokens.shape[1] <= words:
        return tokens
    last = torch.where(tokens.argmax(dim=-1) >= words, tokens.amax(dim=-1), tokens[:, words - 1])
    return torch.cat([tokens[:, : words - 1], last[:, None]], dim=1)
