"""EViT: patches that the class token attends to stay, the others are fused (Liang et al., arXiv:2202.07800).

Where the paper speaks of a weighted average the released code (youweiliang/evit) has a sum: in a reducing block,
between attention and MLP,

    a_i = mean over heads of softmax(q k^T / sqrt(D / H) over all N keys)[class, i]
    [class, the k patches with the largest a in falling order, f],   k = ceil(rate n),   f = sum of a_i x_i of the rest

The weights a_i of f are trained: the loss reaches q of the class token and k of the fused patches. If k = n nothing
happens. Tokens have no sizes. Prompts are our addition: they stay in front, like the class token, and are never ranked.

Shapes: G frames, N tokens, n of them patches (and an earlier f), D width.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ctvr.methods.backbone.clip import AttentionTrace, BlockSeams, TokenState
from ctvr.methods.layers.reduction.plan import Step, TokenReducer, tokens_at


def kept_patches(rate: float, patches: int) -> int:
    """Compute k = ceil(rate n) in double precision, as the release does: of 100, 0.55 keeps 56."""
    return min(patches, math.ceil(rate * patches))


def annealed(rate: float, step: int, start: int, length: int) -> float:
    """Compute the rate at step `step`, counted from 0: 1 up to `start`, then half a cosine to `rate` over `length`
    steps.
    """
    if step < start:
        return 1.0
    if step >= start + length:
        return rate
    return rate + (1 - rate) * (math.cos(math.pi * (step - start) / length) + 1) / 2


def keep_attended(x: Tensor, weights: Tensor, kept: int, first: int, fuse: bool) -> Tensor:
    """Keep `kept` of the tokens after the first `first`, in falling order of their weights.

    Args:
        x: (G, N, D).
        weights: (G, N - first) weight of each of them; the fused token has a gradient to it.
        kept: k; if it is at least the number of candidates, nothing changes.
        first: number of leading tokens, which do not move.
        fuse: append the others as one token, the sum of weight times token.

    Returns:
        (G, first + k + 1, D), without `fuse` (G, first + k, D).
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
    """EViT with one rate in a few blocks. In training the rate can fall over the first steps."""

    steps_done: Tensor  # () int64, only with a falling rate: a resumed run continues at its step

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
            stages: blocks that reduce.
            rate: share of the patches that stay, in (0, 1].
            fuse: see `keep_attended`.
            anneal_from: optimizer steps that train with all tokens.
            anneal_steps: further steps in which the rate falls from 1 to `rate`; 0: `rate` applies at once.
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
