"""STA: drops patches that repeat the previous frame and do not stand out (Ding et al., ICCV 2023, "Prune
Spatio-temporal Tokens by Semantic-aware Temporal Accumulation", arXiv:2308.04549; released as Mark12Ding/STA).

After three blocks r patches of every window (here: frame) leave. With m the unit key means of a window's patches:

    first window in the order of scanning: odd places, then even ones from the least to the most similar to any odd
        one; the last r leave
    any other: P = softmax over its own patches of m m_before^T,   S = P S_before,   s = S (1 - c);
        the n - r with the smallest s stay, in rising order of s;   S_before = their S / sum of it

    c = sum_d |x_d| of a patch, 0 for the smallest and 1 for the largest of its window

The second window of a scan compares with all patches of the first, including those that left, each with a mass of 1.
The scan goes forward, backward, forward. Survivors stay in this order, which decides which are even in a later stage.
Tokens are not averaged and have no sizes. STA was designed for joint attention without class tokens, where a stage
joins windows. In CLIP a window is a frame in every stage, and class tokens and prompts are excluded (ours: STA has
neither).

Shapes: B videos, W windows, n patches of one, D width, C key width, G frames.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import AttentionTrace, BlockSeams, TokenState
from ctvr.methods.layers.precision import no_autocast
from ctvr.methods.layers.reduction.plan import Step, TokenReducer


@torch.no_grad()
def survivors(x: Tensor, keys: Tensor, r: int, backward: bool = False) -> Tensor:
    """Select the patches that stay, in their new order.

    Args:
        x: (B, W, n, D) patches after a block.
        keys: (B, W, n, C) their keys in that block, averaged over heads.
        r: patches of each window that leave, 0 < r < n.
        backward: scan from the last window to the first.

    Returns:
        (B, W, n - r) int64 positions within their windows.
    """
    with no_autocast(x.device):
        return _survivors(x, F.normalize(keys.float(), dim=-1), r, backward)


def _survivors(x: Tensor, metric: Tensor, r: int, backward: bool) -> Tensor:
    size = x.float().abs().sum(dim=-1)  # (B, W, n)
    low, high = size.amin(dim=-1, keepdim=True), size.amax(dim=-1, keepdim=True)
    standing_out = (size - low) / (high - low).clamp_min(torch.finfo(size.dtype).tiny)  # equal ones: 0, not NaN
    windows, kept = x.shape[1], x.shape[2] - r
    order = range(windows - 1, -1, -1) if backward else range(windows)
    found: dict[int, Tensor] = {order[0]: _first(metric[:, order[0]], kept)}
    before = metric[:, order[0]]  # all patches, including those that left
    mass = before.new_ones(before.shape[:2])
    for window in order[1:]:
        now = metric[:, window]  # (B, n, C)
        transition = (now @ before.mT).softmax(dim=1)  # (B, n, k): every column sums to 1
        redundancy = (transition @ mass[:, :, None])[:, :, 0]
        score = redundancy * (1 - standing_out[:, window])
        chosen = score.argsort(dim=-1, stable=True)[:, :kept]
        found[window] = chosen
        before = now.gather(1, chosen[:, :, None].expand(-1, -1, now.shape[-1]))
        mass = redundancy.gather(1, chosen)
        mass = mass / mass.sum(dim=-1, keepdim=True)
    return torch.stack([found[window] for window in range(windows)], dim=1)


def _first(metric: Tensor, kept: int) -> Tensor:
    """Select the patches of a scan's first window: (B, n, C) -> (B, kept)."""
    odd = torch.arange(1, metric.shape[1], 2, device=metric.device)
    best = (metric[:, ::2] @ metric[:, 1::2].mT).amax(dim=-1)  # (B, even ones)
    even = 2 * best.argsort(dim=-1, stable=True)
    return torch.cat([odd.expand(len(metric), -1), even], dim=1)[:, :kept]


class STA(TokenReducer):
    """STA's three stages, each after its block."""

    def __init__(
        self,
        blocks: int,
        tokens: int,
        stages: tuple[int, ...],
        r: tuple[int, ...],
        windows: tuple[int, ...] | None = None,
    ) -> None:
        """Build a reducer.

        Args:
            blocks: number of blocks of the tower.
            tokens: N of a frame, the class token included.
            stages: blocks after which patches leave; the scan goes forward, backward, forward.
            r: patches of each window that leave, per stage; at least one patch of a frame stays.
            windows: number of windows of a video's sequence, per stage; None: a window is a frame.
        """
        super().__init__()
        self.windows = windows
        self.steps, self.turns = [], {}  # turns: block -> (patches that leave, index of the stage)
        for block in range(blocks):
            gone = r[stages.index(block)] if block in stages else 0
            if windows is None:
                gone = min(gone, tokens - 2)
            if gone > 0:
                self.turns[block] = (gone, stages.index(block))
                gone *= 1 if windows is None else windows[stages.index(block)]
            self.steps.append(Step(late=gone))
            tokens -= gone

    def _block(self, block: int, step: Step) -> BlockSeams:
        if block not in self.turns:
            return BlockSeams()
        drop = partial(self._drop, *self.turns[block])
        return BlockSeams(between=_note_keys, after=drop, wants_keys=True, breaks_alignment=True)

    def _drop(self, r: int, turn: int, x: Tensor, state: TokenState) -> Tensor:
        """Drop patches: (G, N, D) -> (G, N - r, D); prompts have been removed by now."""
        assert state.keys is not None
        first, groups = state.protected, len(x)
        windows = groups // state.batch if self.windows is None else self.windows[turn]
        patches = x[:, first:].reshape(state.batch, windows, -1, x.shape[-1])
        keys = state.keys.reshape(state.batch, windows, -1, state.keys.shape[-1])
        state.keys = None
        stay = survivors(patches, keys, r, backward=turn % 2 == 1)
        patches = patches.gather(2, stay[..., None].expand(-1, -1, -1, x.shape[-1]))
        return torch.cat([x[:, :first], patches.reshape(groups, -1, x.shape[-1])], dim=1)


def _note_keys(x: Tensor, attended: AttentionTrace, state: TokenState) -> Tensor:
    """Store the patches' keys until the end of the block, after prompts were removed."""
    assert attended.keys is not None
    state.keys = attended.keys[:, state.protected :].detach()
    return x
