"""Learned prompts of one block, inserted before the block and removed after it.

Shapes: G attention groups, N tokens, P prompts, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ctvr.methods.backbone.clip import TokenState

Seam = Callable[[Tensor, TokenState], Tensor]


def insert_prompts(prompts: Tensor, caption: bool = False) -> Seam:
    """Return a function for hook point `before` that inserts prompts after the class tokens or the start of text.

    Args:
        prompts: (P, D), or (G, P, D) for each attention group.
        caption: whether the groups are captions, which begin with the start of text instead of class tokens.
    """
    count = prompts.shape[-2]

    def before(x: Tensor, state: TokenState) -> Tensor:
        start = 1 if caption else state.classes
        if state.eot is not None:
            state.eot = state.eot + count
        if state.sizes is not None:
            ones = state.sizes.new_ones(len(x), count, 1)
            state.sizes = torch.cat([state.sizes[:, :start], ones, state.sizes[:, start:]], dim=1)
        state.protected += count
        return torch.cat([x[:, :start], prompts.to(x.dtype).expand(len(x), -1, -1), x[:, start:]], dim=1)

    return before


def drop_prompts(count: int, caption: bool = False) -> Seam:
    """Return a function for hook point `after` that removes the `count` prompts of `insert_prompts`."""

    def after(x: Tensor, state: TokenState) -> Tensor:
        start = 1 if caption else state.classes
        if state.eot is not None:
            state.eot = state.eot - count
        if state.sizes is not None:
            state.sizes = torch.cat([state.sizes[:, :start], state.sizes[:, start + count :]], dim=1)
        state.protected -= count
        return torch.cat([x[:, :start], x[:, start + count :]], dim=1)

    return after
