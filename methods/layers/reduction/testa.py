"""TESTA: merging of whole frames after temporal attention, and of patches after spatial attention (arXiv:2310.19060).

Ren et al., as in the released code (RenShuhuai-Andy/TESTA). A block of a stage has a temporal attention before CLIP's:

    x = x + gate(W_o attention over the T frames of each position(LN x));   k = keys of this attention, mean over heads

Frames are merged by k. At each position, each frame with an even index proposes to join the frame with an odd index and
the largest cosine. The positions vote: the partner of a frame is the one proposed most often, and its score is the most
frequent cosine. Of equally frequent values the smallest is used, so if all cosines differ, the least similar position
decides. The r proposals with the largest scores are accepted, at most (T - 1) // 2. The order is then: remaining
proposers, all others. Tokens of merged frames are averaged by size at each position. After CLIP's attention, patches
are merged within each frame as in ToMe (reducers.py). Token i then has only roughly the same position in all frames, as
in the released code. Attention does not weight a token by its size.

No code was released for TESTA's row in TempMe's paper, so the adaptation to CLIP is ours. CLIP has a class token in
each frame. It is merged with its frame, and the embedding of a merged frame represents each frame in it. With
`one_class`, as in the released code, the class tokens of a video are equal, and their attention outputs are averaged
over its frames. LN, W and W_o of the temporal attention are frozen copies of the block's weights, and q, k and v get
LoRA. The gate is a factor or, with `linear`, the D x D layer with bias of the released code. It is initially 0, so an
untrained model without merging equals CLIP.

Shapes: B videos, T frames, L positions (patches of a frame), G = B T, N = 1 + L, A frames of even index, C width of
compared vectors, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import AttentionTrace, Block, BlockSeams, TokenState
from ctvr.methods.layers.lora import LoRA
from ctvr.methods.layers.precision import no_autocast
from ctvr.methods.layers.reduction.merge import MergePlan, accept, merge_tokens, no_plan, plan_bipartite
from ctvr.methods.layers.reduction.plan import Step, TokenReducer, most_frames
from ctvr.methods.settings import SettingError

Gate = Literal["scalar", "linear"]


@torch.no_grad()
def plan_frames(metric: Tensor, r: int) -> MergePlan:
    """Choose the `r` most redundant frames and, for each, the frame that it joins, by a vote of all positions.

    Args:
        metric: (B, L, T, C) keys.
        r: number of frames to remove; capped at (T - 1) // 2.

    Returns:
        a plan whose groups are the B videos and whose tokens are the T frames.
    """
    videos, _, frames, _ = metric.shape
    r = min(r, most_frames(frames))
    if r <= 0:
        return no_plan(videos, frames, metric.device)
    with no_autocast(metric.device):
        units = F.normalize(metric.float(), dim=-1)
        score, partner = (units[:, :, ::2] @ units[:, :, 1::2].mT).max(dim=-1)  # (B, L, A)
    return accept(most_frequent(score), most_frequent(partner), r, frames, 0)


def most_frequent(values: Tensor) -> Tensor:
    """Return the most frequent of L values, or the smallest of equally frequent values: (B, L, A) -> (B, A)."""
    ordered = values.sort(dim=1).values
    places = ordered.shape[1]
    count = (ordered[:, :, None] == ordered[:, None]).sum(dim=2)  # (B, L, A)
    rank = count * places - torch.arange(places, device=values.device)[:, None]  # prefers the first of equal counts
    return ordered.gather(1, rank.argmax(dim=1, keepdim=True))[:, 0]


def frame_rates(r: int | Sequence[int] | None, stages: int) -> tuple[int, ...]:
    """Return the number of frames that each stage removes.

    If r is None, four stages remove 1, 1, 2 and 1, chosen for the multiply-adds in TempMe's Table 2; otherwise each
    stage removes 1.

    Raises:
        ValueError: if a list r does not have one value per stage.
    """
    if r is None:
        return (1, 1, 2, 1) if stages == 4 else (1,) * stages
    if isinstance(r, int):
        return (r,) * stages
    if len(r) != stages:
        listed = ",".join(map(str, r))
        raise SettingError(
            f"<reducer.r_frames>={listed}: <reducer.name>=testa has {stages} stages; set one value for each"
        )
    return tuple(r)


class TemporalAttention(nn.Module):
    """Attention over the frames at each position: frozen weights of a block, LoRA and a gate that is initially 0."""

    norm_weight: Tensor  # these buffers are not saved, because a resumed method is built from the same CLIP weights
    norm_bias: Tensor
    in_weight: Tensor
    in_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor

    def __init__(self, block: Block, rank: int, gate: Gate) -> None:
        super().__init__()
        attention, norm = block.attn, block.ln_1
        width, self.heads, self.eps = attention.out.in_features, attention.heads, norm.eps
        for name, value in (
            ("norm_weight", norm.weight),
            ("norm_bias", norm.bias),
            ("in_weight", attention.in_weight),
            ("in_bias", attention.in_bias),
            ("out_weight", attention.out.weight),
            ("out_bias", attention.out.bias),
        ):
            self.register_buffer(name, value.detach().clone(), persistent=False)
        self.lora = LoRA(rank, rank, width, 3 * width)
        self.scalar = nn.Parameter(torch.zeros(())) if gate == "scalar" else None
        self.linear = nn.Linear(width, width) if gate == "linear" else None
        if self.linear is not None:
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Attend over the frames of patches x (B, T, L, D).

        Returns:
            the gated output (B, T, L, D), to be added to x, and the keys (B, L, T, D/H), averaged over heads.
        """
        y = F.layer_norm(x, x.shape[-1:], self.norm_weight, self.norm_bias, self.eps).transpose(1, 2)  # (B, L, T, D)
        qkv = self.lora(y, F.linear(y, self.in_weight, self.in_bias))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)  # (B, L, H, T, D/H) each
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).flatten(3)
        out = F.linear(mixed, self.out_weight, self.out_bias).transpose(1, 2)
        gained: Tensor = self.scalar * out if self.linear is None else self.linear(out)  # type: ignore[operator]
        return gained, k.mean(dim=2)

    def macs(self, videos: int, frames: int, places: int) -> int:
        """Return the multiply-adds for `videos` videos of `frames` frames of `places` patches, if LoRA is merged."""
        width = self.out_weight.shape[0]
        projections = 4 if self.linear is None else 5
        return videos * places * (projections * frames * width**2 + 2 * frames**2 * width)


class TESTA(TokenReducer):
    """Token reducer TESTA: temporal attention and merging of frames in some blocks, merging of patches in any block."""

    def __init__(
        self,
        blocks: Sequence[Block],
        patches: Sequence[int],
        frames: dict[int, int],
        rank: int = 8,
        gate: Gate = "scalar",
        one_class: bool = False,
    ) -> None:
        """Build a reducer.

        Args:
            blocks: blocks of the tower; weights of blocks in `frames` are copied.
            patches: number of patches that each block removes by merging.
            frames: block index -> number of frames that it removes by merging; other blocks lack temporal attention.
            rank: rank of LoRA.
            gate: kind of gate; the module's docstring describes it.
            one_class: whether all class tokens of a video are equal; see the module's docstring.
        """
        super().__init__()
        self.one_class = one_class
        self.steps = [Step(frames=frames.get(block, 0), intra=gone) for block, gone in enumerate(patches)]
        self.temporal = nn.ModuleDict({str(at): TemporalAttention(blocks[at], rank, gate) for at in sorted(frames)})

    def _block(self, block: int, step: Step) -> BlockSeams:
        attends = str(block) in self.temporal
        acts = step.intra > 0 or self.one_class
        return BlockSeams(
            before=partial(self._over_time, block) if attends else None,
            between=partial(self._within, step.intra) if acts else None,
            wants_keys=step.intra > 0,
            breaks_alignment=step.frames > 0 or step.intra > 0,
        )

    def _over_time(self, block: int, x: Tensor, state: TokenState) -> Tensor:
        """Apply temporal attention, then merge frames: (B T, N, D) -> (B T', N, D)."""
        state.proportional, classes = False, state.classes
        tokens = x.unflatten(0, (state.batch, -1))  # (B, T, N, D)
        patches = tokens[:, :, classes:]
        attention: TemporalAttention = self.temporal[str(block)]  # type: ignore[assignment]
        gained, keys = attention(patches)
        state.extra_macs += attention.macs(*patches.shape[:3])
        tokens = torch.cat([tokens[:, :, :classes], patches + gained.to(x.dtype)], dim=2)
        plan = plan_frames(keys.detach(), self.steps[block].frames)
        if not plan.moved.shape[1]:
            return tokens.flatten(0, 1)
        places = plan.repeated(x.shape[1])  # all positions of a video use the same plan
        merged, size = merge_tokens(_by_place(tokens), _sizes_by_place(state), places)
        state.sizes = _by_frame(size, state.batch) if size is not None else None
        target = plan.target
        state.frame_of = target if state.frame_of is None else target.gather(1, state.frame_of)
        return _by_frame(merged, state.batch)

    def _within(self, r: int, x: Tensor, attended: AttentionTrace, state: TokenState) -> Tensor:
        """Merge patches within each frame: (G, N, D) -> (G, N - r, D)."""
        state.proportional = False
        if self.one_class:
            mean = x[:, :1].unflatten(0, (state.batch, -1)).mean(dim=1, keepdim=True)  # (B, 1, 1, D)
            x = torch.cat([mean.expand(-1, len(x) // state.batch, -1, -1).flatten(0, 1), x[:, 1:]], dim=1)
        if r:
            assert attended.keys is not None
            plan = plan_bipartite(attended.keys.detach(), r, state.protected)
            x, state.sizes = merge_tokens(x, state.sizes, plan)
        return x


def _by_place(tokens: Tensor) -> Tensor:
    """Group tokens by position: (B, T, N, C) -> (B N, T, C)."""
    return tokens.transpose(1, 2).flatten(0, 1)


def _by_frame(x: Tensor, batch: int) -> Tensor:
    """Group tokens by frame: (B N, T, C) -> (B T, N, C)."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(0, 1)


def _sizes_by_place(state: TokenState) -> Tensor | None:
    return None if state.sizes is None else _by_place(state.sizes.unflatten(0, (state.batch, -1)))
