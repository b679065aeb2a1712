"""DiffRate with given rates: pruning and merging of the patches to which the class token attends least.

Chen et al., arXiv:2305.17997, as in the inference of the released code (OpenGVLab/DiffRate). Between attention and MLP
of a block, for tokens x with sizes s:

    a = mean over heads of softmax(q k^T / sqrt(D / H) + log s)[class];   patches are sorted by a, largest first
    prune:  the class token and the first K_p - 1 patches are kept
    merge:  of these, each patch from rank K_m on joins the patch before rank K_m with the largest cosine of x
            x_t <- unweighted mean of x_t and all x_j that join it;   s_t <- s_t + sum s_j cos(j, t)

K_p and K_m include the class token. They are given here, and searched in diffrate_search.py. The released code sorts
patches in every block. Here only blocks that remove tokens sort, which does not change features. In the released code a
negative cosine can make a size zero or negative, and its logarithm NaN. Here sizes are clamped to positive values.
Prompts are our addition: they stay before the patches, and are neither ranked nor merged.

Shapes: G frames, N tokens, P ranked tokens, C width of compared vectors, D width, H heads.
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
    # Released as MAE-B 11.5. It leaves 49 tokens in each of 12 frames, as in TempMe's Table 1, which lacks the schedule
    (197, 12): (
        (197, 196, 182, 172, 162, 147, 131, 109, 101, 94, 70, 49),
        (197, 192, 178, 164, 150, 133, 115, 101, 96, 82, 49, 49),
    ),
    # Our schedule for a B/32, for which none is released: the above, scaled to the 12 x 20 tokens of Table 1 at 36.8
    (50, 12): ((50, 50, 46, 43, 40, 37, 33, 28, 27, 26, 22, 20), (50, 49, 45, 41, 37, 33, 30, 27, 26, 24, 20, 20)),
}


def schedule(blocks: int, tokens: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of tokens that remain in each block after pruning (K_p) and after merging (K_m).

    A tower without an entry in SCHEDULES gets the released schedule of a B/16, scaled to its blocks and tokens.
    """
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
    """Rank the tokens after the first `first`, keep the first `prune` of them, and merge these into `merge` tokens.

    Args:
        x: (G, N, D) tokens.
        size: (G, N, 1) sizes; if None, all are 1.
        row: (G, N - first) attention of the class token; only its order is used.
        prune: number of ranked tokens that are kept.
        merge: number of ranked tokens after merging, at least 1.
        first: number of leading tokens, which are unchanged.

    Returns:
        tokens (G, first + merge, D) and sizes (G, first + merge, 1). The sizes are None if `size` is None and no token
        is merged. The selection and the sizes do not have a gradient. If no token is removed, the inputs are returned.
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
    """Merge each token from rank `kept` on into the most similar of the first `kept` tokens.

    Args:
        x: (G, P, D) tokens, most important first.
        metric: (G, P, C) vectors that are compared.
        size: (G, P, 1) sizes.
        kept: number of tokens after merging.

    Returns:
        tokens (G, kept, D) and sizes (G, kept, 1).
    """
    cosine, joins = most_alike(metric, kept)
    grown = size[:, :kept].scatter_add(1, joins, size[:, kept:] * cosine)
    number = size.new_ones(len(x), kept, 1).scatter_add(1, joins, torch.ones_like(cosine))
    total = x[:, :kept].scatter_add(1, joins.expand(-1, -1, x.shape[-1]), x[:, kept:])
    return total / number.to(x.dtype), grown.clamp_min(_LEAST_SIZE)


@torch.no_grad()
def most_alike(metric: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Find, for each token from rank `kept` on, the most similar of the first `kept` tokens.

    `metric` has the vectors (G, P, C). Return the cosines (G, P - kept, 1) and the indices (G, P - kept, 1).
    """
    with no_autocast(metric.device):
        units = F.normalize(metric.float(), dim=-1)
        cosine, target = (units[:, kept:] @ units[:, :kept].mT).max(dim=-1)
    return cosine[:, :, None], target[:, :, None]


class DiffRate(TokenReducer):
    """Token reducer that prunes and merges the tokens of every block to fixed numbers K_p and K_m."""

    def __init__(self, tokens: int, pruned: Sequence[int], merged: Sequence[int], proportional: bool = True) -> None:
        """Build a reducer.

        Args:
            tokens: N of a frame, the class token included.
            pruned: K_p of every block; a value above the number of remaining tokens keeps all of them.
            merged: K_m of every block; a value above the number of remaining tokens keeps all of them.
            proportional: whether attention weights a token by its size.
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
