"""STA: pruning of patches that repeat the previous frame and have small features.

Ding et al., ICCV 2023, "Prune Spatio-temporal Tokens by Semantic-aware Temporal Accumulation", arXiv:2308.04549, as in
the released code (Mark12Ding/STA). After each of three blocks, r patches of every window are removed. Here a window is
a frame. With the keys m of a window's patches, averaged over heads and normalized:

    first window of a scan: patches are sorted: those at odd positions, then those at even positions from the least to
        the most similar to any odd one; the last r are removed
    other windows: P = softmax over the patches of the window of m m_before^T,   S = P S_before,   s = S (1 - c);
        the n - r patches with the smallest s are kept, smallest first;   S_before = S of the kept patches / their sum

    c = sum_d |x_d| of a patch, scaled to 0 for the smallest and 1 for the largest of its window

The second window of a scan is compared with all patches of the first window, including removed ones, and S_before is 1
for all of them. The three scans run forward, backward and forward. Kept patches stay in the order above, which
determines which of them are at even positions in a later stage. Tokens are not averaged and do not have sizes. STA was
designed for joint attention without class tokens, where a stage joins windows. For CLIP we use frames as windows in
every stage, and exclude class tokens and prompts.

Shapes: B videos, W windows, n patches of a window, D width, C key width, G frames, N tokens of a frame.
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
    """Select the patches that are kept, and their new order.

    Args:
        x: (B, W, n, D) patches after a block.
        keys: (B, W, n, C) keys of the patches in that block, averaged over heads.
        r: number of patches removed from each window, 0 < r < n.
        backward: whether to scan from the last window to the first.

    Returns:
        (B, W, n - r) int64 positions of kept patches within their windows.
    """
    with no_autocast(x.device):
        return _survivors(x, F.normalize(keys.float(), dim=-1), r, backward)


def _survivors(x: Tensor, metric: Tensor, r: int, backward: bool) -> Tensor:
    size = x.float().abs().sum(dim=-1)  # (B, W, n)
    low, high = size.amin(dim=-1, keepdim=True), size.amax(dim=-1, keepdim=True)
    standing_out = (size - low) / (high - low).clamp_min(torch.finfo(size.dtype).tiny)  # 0, not NaN, if all are equal
    windows, kept = x.shape[1], x.shape[2] - r
    order = range(windows - 1, -1, -1) if backward else range(windows)
    found: dict[int, Tensor] = {order[0]: _first(metric[:, order[0]], kept)}
    before = metric[:, order[0]]  # all patches, including removed ones
    mass = before.new_ones(before.shape[:2])
    for window in order[1:]:
        now = metric[:, window]  # (B, n, C)
        transition = (now @ before.mT).softmax(dim=1)  # (B, n, n or n - r); every column sums to 1
        redundancy = (transition @ mass[:, :, None])[:, :, 0]
        score = redundancy * (1 - standing_out[:, window])
        chosen = score.argsort(dim=-1, stable=True)[:, :kept]
        found[window] = chosen
        before = now.gather(1, chosen[:, :, None].expand(-1, -1, now.shape[-1]))
        mass = redundancy.gather(1, chosen)
        mass = mass / mass.sum(dim=-1, keepdim=True)
    return torch.stack([found[window] for window in range(windows)], dim=1)


def _first(metric: Tensor, kept: int) -> Tensor:
    """Select the patches that the first window of a scan keeps: keys (B, n, C) -> positions (B, kept)."""
    odd = torch.arange(1, metric.shape[1], 2, device=metric.device)
    best = (metric[:, ::2] @ metric[:, 1::2].mT).amax(dim=-1)  # (B, number of even positions)
    even = 2 * best.argsort(dim=-1, stable=True)
    return torch.cat([odd.expand(len(metric), -1), even], dim=1)[:, :kept]


class STA(TokenReducer):
    """Token reducer STA, which removes patches after each block in `stages`."""

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
            stages: indices of the blocks after which patches are removed; scans run forward, backward, forward.
            r: number of patches removed from each window, for each stage; at least one patch of a frame is kept.
            windows: number of windows in the sequence of a video, for each stage; if None, a window is a frame.
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
        """Remove r patches of each frame after a block, once prompts have been removed: (G, N, D) -> (G, N - r, D)."""
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
    """Store the keys of the patches in `state` for `_drop`, which runs at the end of the block; return x unchanged."""
    assert attended.keys is not None
    state.keys = attended.keys[:, state.protected :].detach()
    return x
