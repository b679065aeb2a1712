"""EViT: keeps the patches to which the class token attends most, and fuses the others (Liang et al., arXiv:2202.07800).

This follows the released code (youweiliang/evit), which sums patches where the paper describes a weighted average.
Between attention and MLP of a block that removes patches:

    a_i = mean over heads of softmax(q k^T / sqrt(D / H) over all N keys)[class, i]
    output: [class, the k = ceil(rate n) patches with the largest a, largest first, f],   f = sum of other a_i x_i

The gradient reaches q of the class token and k of the fused patches through the weights a_i. If k = n, the block keeps
all tokens. Tokens do not have sizes. Prompts are our addition: they stay before the patches, like the class token, and
are never ranked.

Shapes: G frames, N tokens, n patches among them (including the f of an earlier block), D width, H heads.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ctvr.methods.backbone.clip import AttentionTrace, BlockSeams, TokenState
from ctvr.methods.layers.reduction.plan import Step, TokenReducer, tokens_at


def kept_patches(rate: float, patches: int) -> int:
    """Compute k = ceil(rate n), n = `patches`, in double precision as the released code does: 0.55 keeps 56 of 100."""
    return min(patches, math.ceil(rate * patches))


def annealed(rate: float, step: int, start: int, length: int) -> float:
    """Compute the keep rate at a training step, counted from 0.

    It is 1 before step `start`, then decreases to `rate` along half a period of a cosine within `length` steps.
    """
    if step < start:
        return 1.0
    if step >= start + length:
        return rate
    return rate + (1 - rate) * (math.cos(math.pi * (step - start) / length) + 1) / 2


def keep_attended(x: Tensor, weights: Tensor, kept: int, first: int, fuse: bool) -> Tensor:
    """Leave the first `first` tokens unchanged, and keep the `kept` others with the largest weights, largest first.

    Args:
        x: (G, N, D) tokens.
        weights: (G, N - first) weight of each ranked token; the fused token passes a gradient to it.
        kept: k; if it is at least N - first, x is returned unchanged.
        first: number of leading tokens, which are unchanged.
        fuse: whether to append one token for the removed ones: the sum of weight times token.

    Returns:
        (G, first + k + 1, D), or (G, first + k, D) if not `fuse`.
    """
    if kept >= weights.shape[1]:
        return x
    order = weights.detach().float().argsort(dim=-1, descending=True, stable=True)
    stays, goes = order[:, :kept], order[:, kept:].sort(dim=-1).values
    parts = [x[:, :first], tokens_at(x, first + stays)]
    if fuse:
        share = weights.gather(1, goes).to(x.dtype)
        parts.append((share[:, :, None] * tokens_at(x, first + goes)).sum(dim=1, keepdim=True))
    return torch.cat(parts, dim=1)


class EViT(TokenReducer):
    """Token reducer EViT with the same keep rate in each of some blocks; in training the rate can decrease at first."""

    steps_done: Tensor  # () int64; exists only if the rate decreases, so that a resumed run continues at its step

    def __init__(
        self,
        blocks: int,
        tokens: int,
        stages: tuple[int, ...],
        rate: float = 0.7,
        fuse: bool = True,
        anneal_from: int = 0,
        anneal_steps: int = 0,
    ) -> None:
        """Build a reducer.

        Args:
            blocks: number of blocks of the tower.
            tokens: N of a frame, the class token included.
            stages: indices of the blocks that remove patches.
            rate: share of the patches that are kept, in (0, 1].
            fuse: see `keep_attended`.
            anneal_from: number of optimizer steps that train with all tokens.
            anneal_steps: number of further steps in which the rate decreases from 1 to `rate`; may be 0.
        """
        super().__init__()
        self.rate, self.fuse, self.stages = rate, fuse, stages
        self.anneal = anneal_from, anneal_steps
        if any(self.anneal):
            self.register_buffer("steps_done", torch.zeros((), dtype=torch.int64))
        self.steps = []
        for block in range(blocks):
            kept = kept_patches(rate, tokens - 1) if block in stages else tokens - 1
            gone = 0 if kept == tokens - 1 else tokens - 1 - kept - fuse
            self.steps.append(Step(intra=gone))
            tokens -= gone

    def seams(self) -> list[BlockSeams]:
        acts = BlockSeams(between=partial(self._keep, self._rate()), wants_class_row=True, breaks_alignment=True)
        return [acts if block in self.stages and self.rate < 1 else BlockSeams() for block in range(len(self.steps))]

    def after_step(self) -> None:
        if any(self.anneal):
            self.steps_done += 1

    def _rate(self) -> float:
        if not self.training or not any(self.anneal):
            return self.rate
        return annealed(self.rate, int(self.steps_done), *self.anneal)

    def _keep(self, rate: float, x: Tensor, attended: AttentionTrace, state: TokenState) -> Tensor:
        """Reduce tokens (G, N, D); see `keep_attended`."""
        assert attended.class_row is not None
        first = state.protected
        weights = attended.class_row[:, first:]
        return keep_attended(x, weights, kept_patches(rate, weights.shape[1]), first, self.fuse)
