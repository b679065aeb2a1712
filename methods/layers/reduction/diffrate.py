"""DiffRate at fixed rates: rank by the class token, cut the tail, merge the next (Chen et al., arXiv:2305.17997).

After the released code (OpenGVLab/DiffRate, inference): between attention and MLP, tokens x with sizes s,

    a = mean over heads of softmax(q k^T / sqrt(D / H) + log s)[class];   patches in falling order of a
    prune:  the class token and the first K_p - 1 patches stay
    merge:  of these, patches from rank K_m on join the patch before rank K_m that is most like them (cosine of x)
            x_t <- plain mean of x_t and all that join it;   s_t <- s_t + sum s_j cos(j, t)

K counts the class token. The rates are numbers here; diffrate_search.py finds them. The release sorts in every block;
here the order changes only where tokens leave, which does not affect features. A negative cosine can make a size of the
release zero or negative (log: NaN); here sizes stay positive. Prompts are our addition: they stay in front and are
neither ranked nor joined.

Shapes: G frames, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import AttentionTrace, BlockSeams, TokenState
from ctvr.methods.layers.precision import no_autocast
from ctvr.methods.layers.reduction.plan import Step, TokenReducer, tokens_at

_LEAST_SIZE = 1e-6
# tokens of a frame and blocks -> (K_p, K_m) of every block
SCHEDULES: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {
    # Released as MAE-B 11.5. On 12 frames 12 x 49 tokens are left, as in TempMe's Table 1, which names no schedule
    (197, 12): (
        (197, 196, 182, 172, 162, 147, 131, 109, 101, 94, 70, 49),
        (197, 192, 178, 164, 150, 133, 115, 101, 96, 82, 49, 49),
    ),
    # Ours: none is released for a B/32. The one above, scaled to Table 1's 12 x 20 tokens at 36.8
    (50, 12): ((50, 50, 46, 43, 40, 37, 33, 28, 27, 26, 22, 20), (50, 49, 45, 41, 37, 33, 30, 27, 26, 24, 20, 20)),
}


def schedule(blocks: int, tokens: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return K_p and K_m of every block: those of SCHEDULES, or the released ones in proportion for other towers."""
    if (tokens, blocks) in SCHEDULES:
        return SCHEDULES[tokens, blocks]
    at = [block * 11 // max(1, blocks - 1) for block in range(blocks)]
    pruned, merged = (
        tuple(1 + round((counts[i] - 1) / 196 * (tokens - 1)) for i in at) for counts in SCHEDULES[197, 12]
    )
    return pruned, merged


def compress(
    x: Tensor, size: Tensor | None, row: Tensor, prune: int, merge: int, first: int
) -> tuple[Tensor, Tensor | None]:
    """Rank the tokens after the first `first`, cut them to `prune` and merge these into `merge`.

    Args:
        x: (G, N, D).
        size: (G, N, 1); None: all ones.
        row: (G, N - first) attention of the class token; only its order counts.
        prune: number of ranked tokens that stay.
        merge: number of tokens after merging, at least 1.
        first: number of leading tokens, which are unchanged.

    Returns:
        (G, first + merge, D) and the sizes (G, first + merge, 1), or None if nothing was merged yet. The choice and
        the sizes have no gradient. If nothing is cut or merged, the inputs.
    """
    candidates = row.shape[1]
    prune, merge = min(prune, candidates), min(merge, candidates)
    if min(prune, merge) == candidates:
        return x, size
    order = row.detach().float().argsort(dim=-1, descending=True, stable=True)[:, :prune]
    index = first + order
    head, ranked = x[:, :first], tokens_at(x, index)
    head_size = ranked_size = None
    if size is not None:
        head_size, ranked_size = size[:, :first], tokens_at(size, index)
    if merge < prune:
        if ranked_size is None:
            head_size = x.new_ones(len(x), first, 1, dtype=torch.float32)
            ranked_size = x.new_ones(len(x), prune, 1, dtype=torch.float32)
        ranked, ranked_size = merge_ranked(ranked, ranked, ranked_size, merge)
    x = torch.cat([head, ranked], dim=1)
    if ranked_size is None or head_size is None:
        return x, None
    return x, torch.cat([head_size, ranked_size], dim=1)


def merge_ranked(x: Tensor, metric: Tensor, size: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Merge tokens after rank `kept` into the most similar ones before it.

    Takes x (G, P, D), most important first, the compared vectors (G, P, C) and sizes (G, P, 1). Returns
    (G, kept, D) and (G, kept, 1).
    """
    cosine, joins = most_alike(metric, kept)
    grown = size[:, :kept].scatter_add(1, joins, size[:, kept:] * cosine)
    number = size.new_ones(len(x), kept, 1).scatter_add(1, joins, torch.ones_like(cosine))
    total = x[:, :kept].scatter_add(1, joins.expand(-1, -1, x.shape[-1]), x[:, kept:])
    return total / number.to(x.dtype), grown.clamp_min(_LEAST_SIZE)


@torch.no_grad()
def most_alike(metric: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Match tokens after rank `kept` to the most similar before it: cosine and index, (G, P, C) -> (G, P - kept, 1)."""
    with no_autocast(metric.device):
        units = F.normalize(metric.float(), dim=-1)
        cosine, target = (units[:, kept:] @ units[:, :kept].mT).max(dim=-1)
    return cosine[:, :, None], target[:, :, None]


class DiffRate(TokenReducer):
    """DiffRate with fixed K_p and K_m in every block."""

    def __init__(self, tokens: int, pruned: Sequence[int], merged: Sequence[int], proportional: bool = True) -> None:
        """Build a reducer.

        Args:
            tokens: N of a frame, the class token included.
            pruned: K_p of every block; a number above the remaining tokens keeps all.
            merged: K_m, likewise.
            proportional: attention weighs a token by its size.
        """
        super().__init__()
        self.pruned, self.merged, self.proportional = tuple(pruned), tuple(merged), proportional
        self.steps = []
        for prune, merge in zip(pruned, merged, strict=True):
            self.steps.append(Step(intra=tokens - min(tokens, prune, merge)))
            tokens -= self.steps[-1].intra

    def _block(self, block: int, step: Step) -> BlockSeams:
        if not step.intra:
            return BlockSeams()
        between = partial(self._compress, self.pruned[block], self.merged[block])
        return BlockSeams(between=between, wants_class_row=True, breaks_alignment=True)

    def _compress(self, prune: int, merge: int, x: Tensor, attended: AttentionTrace, state: TokenState) -> Tensor:
        """Reduce tokens (G, N, D); see `compress`."""
        assert attended.class_row is not None
        state.proportional, first, classes = self.proportional, state.protected, state.classes
        row = attended.class_row[:, first:]
        x, state.sizes = compress(x, state.sizes, row, prune - classes, merge - classes, first)
        return x
