"""Bipartite token merging (ToMe, Bolya et al., arXiv:2210.09461, section 3).

A plan lists the tokens that leave and the tokens they join; merging applies it. Planning follows the released
TempMe code, which equals ToMe's for one class token: tokens at even positions propose to
tokens at odd positions, and the order after a merge is [protected, staying proposers, all others].

Shapes: G groups (frames or clips), N tokens in, M tokens out, C channels, r merged pairs.
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
    """Destinations of the input tokens. Plain data: frames can share it, and it can be plotted and tested."""

    kept: Tensor  # (G, M) int64: the input token at each output slot
    moved: Tensor  # (G, r) int64: the input tokens that leave
    joined: Tensor  # (G, r) int64: the output slot that each of them joins

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
    """Record of one merge: `group` neighbours are joined, class tokens first, then the plan is applied."""

    plan: MergePlan
    group: int = 1
    classes: int = 1  # of each group, before they were joined


def follow(moves: Sequence[Move], groups: int, tokens: int) -> Tensor:
    """Trace tokens through merges to the token that contains them: (G, N) int64, numbered through all groups.

    Tokens with equal numbers have been merged.

    Args:
        moves: moves of one pass, in order.
        groups: G, attention groups before the first move.
        tokens: N of a group.
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
    """Return the largest number of pairs that one merge of `tokens` tokens can form: (N - protected) // 2."""
    return max(0, (tokens - protected) // 2)


@torch.no_grad()
def plan_bipartite(metric: Tensor, r: int, protected: int = 1) -> MergePlan:
    """Choose the `r` most redundant tokens and the neighbour that each one joins.

    Tokens at even positions propose to the most similar (cosine) token at an odd position; the `r` best
    proposals win, and ties go to the lower position. Matching is done in float32.

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
    """Build the plan in which the `r` best proposals win.

    Takes the score of every even token's proposal and the odd token it proposes to, both (G, A).
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

    Takes x (G, N, C) and size (G, N, 1), patches per token, > 0, or None for one each. Returns
    (G, M, C) and (G, M, 1); the sizes have the same sum as the input's. A plan without pairs changes nothing.
    """
    groups, n, width = x.shape
    r, slots = plan.moved.shape[1], plan.kept.shape[1]
    if r == 0:
        return x, size
    sizes = x.new_ones(groups, n, dtype=torch.float32) if size is None else size[..., 0]  # (G, N)
    leaving = sizes.gather(1, plan.moved)  # (G, r)
    merged = sizes.gather(1, plan.kept).scatter_add(1, plan.joined, leaving)  # (G, M)
    share = leaving / merged.gather(1, plan.joined)  # (G, r) of the new token
    group = torch.arange(groups, device=x.device)[:, None]
    joined = (group * slots + plan.joined).flatten()
    rows = x.reshape(-1, width)
    out = rows.index_select(0, (group * n + plan.kept).flatten())  # (G * M, C)
    step = rows.index_select(0, (group * n + plan.moved).flatten()) - out.index_select(0, joined)
    out.index_add_(0, joined, step * share.flatten()[:, None].to(x.dtype))  # y + sum s_a (x_a - y) / S
    return out.unflatten(0, (groups, slots)), merged[..., None]


def unmerge_tokens(y: Tensor, plan: MergePlan) -> Tensor:
    """Give every input token its slot's average: (G, M, C) -> (G, N, C), the right inverse of `merge_tokens`."""
    return y.gather(1, plan.target[..., None].expand(-1, -1, y.shape[-1]))
