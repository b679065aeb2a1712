"""Gradient-based search for DiffRate's numbers of pruned and merged tokens per block (arXiv:2305.17997, section 3).

It follows the released code (OpenGVLab/DiffRate). Every block except the first has two distributions pi, for pruning
and for merging, over the number c of kept patches: N0, N0 - step, and so on down to 1 or more. The initial pi are
uniform. K is the number of kept tokens with the class token, and p_j the probability that rank j is kept:

    K = ceil(sum c pi) + 1, where ceil has the gradient 1;   p_j = sum of pi over c + 1 > j

During the search all tokens are computed. They are sorted as in diffrate.py, and dropped tokens are masked. A cut from
M tokens to K multiplies the mask by 0 for ranks K to M - 1 and by 1 for other ranks; its gradient is that of p. With
the logits l of attention and the mask, the attention A is:

    A_ij = (exp(l_ij - max l_i) Q_ij + eps / N) / (sum_j exp(l_ij - max l_i) Q_ij + eps),   Q_ij = mask_j, Q_ii = 1

Merged tokens are masked as well. During the search, the size of every token that was not pruned is at least 1. The term
5 (F / 10^9 - target)^2 is added to the loss of the method, where F is the number of multiply-adds of a frame:

    F = N D 3p^2 + D d + sum of 4 N_l D^2 + 2 N_l^2 D + 8 N_l+1 D^2,   N_l+1 = min(N_l, K_p, K_m)

Both K_p and K_m get its gradient, whichever is smaller; N_l does not. In evaluation the current numbers are fixed.
Prompts are our addition: they stay before the patches, and are neither ranked nor masked.

Shapes: G frames, N0 patches, N tokens, P ranked tokens, C width of compared vectors, D width, H heads, p patch size,
d joint embedding.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import AttentionTrace, BlockSeams, TokenState, VisionTower
from ctvr.methods.layers.precision import no_autocast
from ctvr.methods.layers.reduction.diffrate import DiffRate, most_alike
from ctvr.methods.layers.reduction.plan import Step, TokenReducer, tokens_at

EPS = 1e-6
WEIGHT = 5.0  # weight of the penalty on multiply-adds


class Rate(nn.Module):
    """Trainable distribution over the number of patches that a block keeps."""

    candidates: Tensor  # (number of candidates,) values of c, in descending order from N0

    def __init__(self, patches: int, step: int) -> None:
        super().__init__()
        self.register_buffer("candidates", torch.arange(patches, 0, -step).float(), persistent=False)
        self.logits = nn.Parameter(torch.zeros(len(self.candidates)))

    def kept(self) -> Tensor:
        """Compute K, the number of kept tokens with the class token, a scalar with the gradient of sum c pi."""
        expected = self.candidates @ self.logits.softmax(dim=0)
        return expected + (expected.detach().ceil() - expected.detach()) + 1

    def stays(self) -> Tensor:
        """Compute p (N0,), the probability of each rank that its patch is kept."""
        rank = torch.arange(int(self.candidates[0]), device=self.candidates.device)
        return self.logits.softmax(dim=0) @ (self.candidates[:, None] > rank).float()

    def cut(self, kept: int, left: int) -> Tensor:
        """Compute the factor (N0,) by which a cut from `left` patches to `kept` multiplies the mask of ranked patches.

        It is 0 for ranks from `kept` to `left` - 1 and 1 for other ranks, with the gradient of `stays`.
        """
        p = self.stays()
        hard = torch.ones_like(p)
        hard[kept:left] = 0
        return hard + (p - p.detach())


def masked_attention(logits: Tensor, mask: Tensor) -> Tensor:
    """Compute attention weights (G, H, N, N) from logits (G, H, N, N) and a mask (G, N) of 1 or 0.

    Only the token itself attends to a token whose mask is 0.
    """
    tokens = logits.shape[-1]
    own = torch.eye(tokens, device=logits.device)
    seen = (logits - logits.amax(dim=-1, keepdim=True)).exp() * (mask[:, None, None] * (1 - own) + own)
    return (seen + EPS / tokens) / (seen.sum(dim=-1, keepdim=True) + EPS)


class DiffRateSearch(TokenReducer):
    """Reducer that searches rates in training mode while `is_searching`, and otherwise applies the current rates."""

    def __init__(self, vision: VisionTower, target: float, step: int) -> None:
        """Build a reducer.

        Args:
            vision: provides the number of blocks and tokens and the widths.
            target: multiply-adds of a frame that the search aims at, in 10^9.
            step: difference between successive candidates for the number of kept patches.
        """
        super().__init__()
        self.tokens, self.width, self.target, self.is_searching = vision.num_tokens, vision.width, target, True
        self.ends = vision.num_tokens * vision.conv1.weight.numel() + vision.proj.numel()
        rates = [[Rate(vision.num_tokens - 1, step) for _ in vision.blocks[1:]] for _ in range(2)]
        self.pruned, self.merged = nn.ModuleList(rates[0]), nn.ModuleList(rates[1])

    @property
    def steps(self) -> list[Step]:  # type: ignore[override]
        return self.fixed().steps

    @torch.no_grad()
    def counts(self) -> list[tuple[int, int]]:
        """Return, for each block, the numbers of tokens that remain after pruning (K_p) and after merging (K_m)."""
        if self.pruned[0].logits.is_meta:
            return [(self.tokens, self.tokens)] * (len(self.pruned) + 1)
        kept = torch.stack([torch.stack(self._kept(block)) for block in range(1, len(self.pruned) + 1)])
        return [(self.tokens, self.tokens), *((int(p), int(m)) for p, m in kept.round().tolist())]

    def fixed(self) -> DiffRate:
        """Build a `DiffRate` with the current K_p and K_m."""
        pruned, merged = zip(*self.counts())
        return DiffRate(self.tokens, pruned, merged)

    def _kept(self, block: int) -> tuple[Tensor, Tensor]:
        return self.pruned[block - 1].kept(), self.merged[block - 1].kept()  # type: ignore[operator]

    def macs(self) -> Tensor:
        """Compute F, the multiply-adds of a frame at the current rates, a scalar with a gradient."""
        width, left = self.width, next(self.parameters()).new_tensor(float(self.tokens))
        total = left.new_tensor(float(self.ends))
        for block in range(len(self.pruned) + 1):
            total = total + 4 * left * width**2 + 2 * left**2 * width
            if block:
                prune, merge = self._kept(block)
                least = torch.stack([left, prune, merge]).min().detach()
                left = least + (prune - prune.detach()) + (merge - merge.detach())
            total = total + 8 * left * width**2
        return total

    def penalty(self) -> Tensor:
        """Compute 5 (F / 10^9 - target)^2, the loss term of the search."""
        return WEIGHT * (self.macs() / 1e9 - self.target) ** 2

    def seams(self) -> list[BlockSeams]:
        if not (self.training and self.is_searching):
            return self.fixed().seams()
        seams, left = [], self.tokens - 1
        for block, (prune, merge) in enumerate(self.counts()):
            between = partial(self._compress, block, prune - 1, merge - 1, left)
            seams.append(BlockSeams(mix=_attend, between=between, breaks_alignment=True))
            left = min(left, prune - 1, merge - 1)
        return seams

    def _compress(
        self, block: int, prune: int, merge: int, left: int, x: Tensor, attended: AttentionTrace, state: TokenState
    ) -> Tensor:
        """Sort patches by the attention of the class token, and mask those that are pruned or merged.

        Args:
            block: index of the block.
            prune: number of patches that remain after pruning.
            merge: number of patches that remain after merging.
            left: number of patches that earlier blocks have kept.
            x: (G, N, D) tokens.
            attended: not used, because `_attend` stores the attention in `state`.
            state: provides the mask and the sizes, and gets the new mask and sizes.
        """
        assert state.policy is not None
        assert state.class_row is not None
        first = state.protected
        order = state.class_row[:, first:].argsort(dim=-1, descending=True, stable=True)
        sizes = x.new_ones(*x.shape[:2], 1, dtype=torch.float32) if state.sizes is None else state.sizes
        mask = state.policy.gather(1, order)
        ranked, size = (tokens_at(each[:, first:], order) for each in (x, sizes))
        if prune < left:
            mask, left = mask * self.pruned[block - 1].cut(prune, left), prune  # type: ignore[operator]
        if merge < left:
            ranked, size = merge_in_place(ranked, ranked, size, merge, left)
            mask = mask * self.merged[block - 1].cut(merge, left)  # type: ignore[operator]
        state.policy, state.sizes = mask, torch.cat([sizes[:, :first], size], dim=1)
        return torch.cat([x[:, :first], ranked], dim=1)


def merge_in_place(x: Tensor, metric: Tensor, size: Tensor, kept: int, left: int) -> tuple[Tensor, Tensor]:
    """Merge each token of rank `kept` to `left` - 1 into the most similar of the first `kept` tokens.

    The merged tokens stay in the sequence, where the mask hides them.

    Args:
        x: (G, P, D) tokens, most important first.
        metric: (G, P, C) vectors that are compared.
        size: (G, P, 1) sizes.
        kept: number of tokens after merging.
        left: number of tokens before merging.

    Returns:
        tokens (G, P, D) and sizes (G, P, 1).
    """
    cosine, joins = most_alike(metric[:, :left], kept)
    number = torch.ones_like(size[:, :kept]).scatter_add(1, joins, torch.ones_like(cosine))
    total = x[:, :kept].scatter_add(1, joins.expand(-1, -1, x.shape[-1]), x[:, kept:left])
    grown = torch.cat([size[:, :kept], size[:, kept:left] * cosine], dim=1).clamp_min(1)
    sizes = [grown[:, :kept].scatter_add(1, joins, grown[:, kept:]), grown[:, kept:], size[:, left:]]
    return torch.cat([total / number.to(x.dtype), x[:, kept:]], dim=1), torch.cat(sizes, dim=1)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, state: TokenState) -> Tensor:
    """Compute masked attention at hook point `mix`, and store the attention of the class token in `state`."""
    patches = q.shape[2] - state.protected
    if state.policy is None:
        state.policy = torch.ones(len(q), patches, device=q.device)
    with no_autocast(q.device):
        logits = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
        mask = torch.cat([state.policy.new_ones(len(q), state.protected), state.policy], dim=1)
        attention = masked_attention(logits if bias is None else logits + bias.float(), mask)
    state.class_row = attention[:, :, 0].mean(dim=1).detach()
    return attention.to(v.dtype) @ v
