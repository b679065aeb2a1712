"""Bipartite token merging (ToMe, Bolya et al., arXiv:2210.09461, section 3).

A plan lists the tokens that are merged away and the tokens that they join; `merge_tokens` applies it. Planning follows
the released code of TempMe, which equals that of ToMe for one class token. Tokens at even positions are proposers: each
proposes to join a token at an odd position. The order after a merge is: protected tokens, remaining proposers, others.

Shapes: G groups (frames or clips), N input tokens, M output tokens, C channels, r merged pairs, A proposers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.layers.precision import no_autocast
from ctvr.methods.settings import SettingError


@dataclass(frozen=True)
class MergePlan:
    """Destination of each input token of a merge."""

    kept: Tensor  # (G, M) int64: position of the input token in each output slot
    moved: Tensor  # (G, r) int64: positions of the input tokens that leave
    joined: Tensor  # (G, r) int64: output slot that each of them joins

    @property
    def target(self) -> Tensor:
        """Return the output slot of every input token, (G, N) int64."""
        groups, slots = self.kept.shape
        order = torch.arange(slots, device=self.kept.device).expand(groups, slots)
        sources, targets = torch.cat([self.kept, self.moved], 1), torch.cat([order, self.joined], 1)
        return torch.empty_like(sources).scatter(1, sources, targets)

    def repeated(self, times: int) -> MergePlan:
        """Repeat the plan for `times` consecutive groups: (G, .) -> (G * times, .)."""
        return MergePlan(*(x.repeat_interleave(times, dim=0) for x in (self.kept, self.moved, self.joined)))


@dataclass(frozen=True)
class Move:
    """Record of one merge: every `group` successive groups are joined, class tokens first; then the plan is applied."""

    plan: MergePlan
    group: int = 1
    classes: int = 1  # class tokens of a group before groups are joined


def follow(moves: Sequence[Move], groups: int, tokens: int) -> Tensor:
    """Return, for each input token, the index of the output token that contains it: (G, N) int64.

    Indices count over all output groups. Tokens with equal indices have been merged.

    Args:
        moves: merges of one forward pass, in order.
        groups: G, number of attention groups before the first merge.
        tokens: N of a group before the first merge.
    """
    device = moves[0].plan.kept.device if moves else None
    group = torch.arange(groups, device=device)[:, None].expand(groups, tokens)
    slot = torch.arange(tokens, device=device).expand(groups, tokens)
    size = tokens
    for move in moves:
        member, group = group % move.group, group // move.group
        patch = move.classes * move.group + member * (size - move.classes) + slot - move.classes
        slot = torch.where(slot < move.classes, member * move.classes + slot, patch)
        slot = move.plan.target[group, slot]
        size = move.plan.kept.shape[1]
    return group * size + slot


def most_mergeable(tokens: int, protected: int) -> int:
    """Return the largest number of pairs that one merge can form, (N - protected) // 2 for N = `tokens`."""
    return max(0, (tokens - protected) // 2)


@torch.no_grad()
def plan_bipartite(metric: Tensor, r: int, protected: int = 1) -> MergePlan:
    """Choose the `r` most redundant tokens and the token that each of them joins.

    Each token at an even position proposes to the token at an odd position with the largest cosine. The `r` proposals
    with the largest cosines are accepted; ties prefer the lower position. Cosines are computed in float32.

    Args:
        metric: (G, N, C) vectors to compare: keys averaged over heads, or the tokens themselves.
        r: number of tokens to remove, >= 0; capped at (N - protected) // 2.
        protected: number of leading tokens (class tokens, prompts) that neither leave nor are joined.

    Raises:
        ValueError: if `r` is negative.
    """
    if r < 0:
        raise SettingError(f"<r> counts removed tokens and must be >= 0, got {r}", "Use <r>=0 to disable merging.")
    groups, n, _ = metric.shape
    r = min(r, most_mergeable(n, protected))
    if r <= 0:
        return no_plan(groups, n, metric.device)
    even, odd = first_places(protected)
    units = F.normalize(metric[:, protected:].float(), dim=-1)
    with no_autocast(units.device):
        proposals = units[:, even - protected :: 2] @ units[:, odd - protected :: 2].mT  # (G, A, B)
    score, partner = proposals.max(dim=-1)  # (G, A)
    return accept(score, partner, r, n, protected)


def first_places(protected: int) -> tuple[int, int]:
    """Return the first even and the first odd position after `protected` tokens."""
    return protected + protected % 2, protected + 1 - protected % 2


def no_plan(groups: int, tokens: int, device: torch.device) -> MergePlan:
    """Return a plan in which no token leaves."""
    position = torch.arange(tokens, device=device)
    none = position.new_empty(groups, 0)
    return MergePlan(position.expand(groups, tokens), none, none)


def accept(score: Tensor, partner: Tensor, r: int, tokens: int, protected: int) -> MergePlan:
    """Build the plan that accepts the `r` proposals with the largest scores.

    Args:
        score: (G, A) score of each proposer's proposal.
        partner: (G, A) index, among tokens at odd positions, of the token that each proposer would join.
        r: number of accepted proposals.
        tokens: N.
        protected: number of leading tokens that neither leave nor are joined.
    """
    groups, (even, odd) = len(score), first_places(protected)
    position = torch.arange(tokens, device=score.device)
    ranking = score.argsort(dim=-1, descending=True, stable=True)
    leaving, staying = ranking[:, :r], ranking[:, r:].sort(dim=-1).values
    kept = torch.cat(
        [position[:protected].expand(groups, -1), even + 2 * staying, position[odd::2].expand(groups, -1)], dim=1
    )
    return MergePlan(kept, even + 2 * leaving, protected + staying.shape[1] + partner.gather(1, leaving))


def merge_tokens(x: Tensor, size: Tensor | None, plan: MergePlan) -> tuple[Tensor, Tensor | None]:
    """Average the tokens of each slot, weighted by the number of patches in each token.

    Args:
        x: (G, N, C) tokens.
        size: (G, N, 1) number of patches in each token, > 0; if None, 1 for all.
        plan: the merges; without pairs, x and size are returned unchanged.

    Returns:
        tokens (G, M, C) and sizes (G, M, 1), whose sum equals that of the input sizes.
    """
    groups, n, width = x.shape
    r, slots = plan.moved.shape[1], plan.kept.shape[1]
    if r == 0:
        return x, size
    sizes = x.new_ones(groups, n, dtype=torch.float32) if size is None else size[..., 0]  # (G, N)
    leaving = sizes.gather(1, plan.moved)  # (G, r)
    merged = sizes.gather(1, plan.kept).scatter_add(1, plan.joined, leaving)  # (G, M)
    share = leaving / merged.gather(1, plan.joined)  # (G, r) share in the merged token
    group = torch.arange(groups, device=x.device)[:, None]
    joined = (group * slots + plan.joined).flatten()
    rows = x.reshape(-1, width)
    out = rows.index_select(0, (group * n + plan.kept).flatten())  # (G * M, C)
    step = rows.index_select(0, (group * n + plan.moved).flatten()) - out.index_select(0, joined)
    out.index_add_(0, joined, step * share.flatten()[:, None].to(x.dtype))  # y + sum s_a (x_a - y) / S
    return out.unflatten(0, (groups, slots)), merged[..., None]
