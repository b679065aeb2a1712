"""Cross-frame attention parallel to frozen spatial attention (Frame Fusion Adapter, arXiv:2503.10111, section 3.3).

Shapes: B videos, T frames, N tokens of one frame, D width, H heads.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, TokenState
from ctvr.methods.settings import SettingError

FFAInit = Literal["identity", "zero_out", "torch"]
Direction = Literal["previous", "next"]
Mix = Literal["add", "convex"]


def neighbour(y: Tensor, direction: Direction) -> Tensor:
    """Return each frame's neighbour in y (B, T, ...); a border frame without one is its own neighbour."""
    if direction == "previous":
        return torch.cat([y[:, :1], y[:, :-1]], dim=1)
    return torch.cat([y[:, 1:], y[:, -1:]], dim=1)


class CrossFrameAttention(nn.Module):
    """CA(F', F) of eq. 1: queries from the neighbour's tokens, keys and values from the frame's own tokens."""

    def __init__(self, width: int, heads: int, has_output: bool = True, init: FFAInit = "identity") -> None:
        """Build the projections.

        Args:
            width: D, a multiple of heads.
            heads: H.
            has_output: project the merged heads once more, as CLIP's own attention does.
            init: `identity` weights with zero biases; `zero_out`, the same with an output projection of
                zero, so that CA is 0 at the start; `torch`, torch's default initialisation.

        Raises:
            ValueError: for `zero_out` without an output projection.
        """
        super().__init__()
        if init == "zero_out" and not has_output:
            raise SettingError("<ffa_init>=zero_out starts from an output projection of zero; set <ffa_output>=true")
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width) if has_output else None
        if init == "torch":
            return
        for linear in [self.q, self.k, self.v, *([self.out] if self.out is not None else [])]:
            nn.init.eye_(linear.weight)
            nn.init.zeros_(linear.bias)
        if init == "zero_out" and self.out is not None:
            nn.init.zeros_(self.out.weight)

    def forward(self, y: Tensor, direction: Direction = "previous") -> Tensor:
        """Attend from the neighbouring frame to each frame: (B, T, N, D) -> (B, T, N, D)."""
        queries = self._heads_first(self.q(neighbour(y, direction)))
        keys, values = self._heads_first(self.k(y)), self._heads_first(self.v(y))
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        merged = mixed.transpose(1, 2).flatten(2).unflatten(0, y.shape[:2])
        return merged if self.out is None else self.out(merged)

    def _heads_first(self, x: Tensor) -> Tensor:
        """Split heads: (B, T, N, D) -> (B*T, H, N, D/H); torch's fused attention takes exactly four dimensions."""
        return x.flatten(0, 1).unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FrameFusion(nn.Module):
    """Eq. 3 for one block; fills the seam `beside` of a vision block."""  # prose: allow

    def __init__(
        self,
        width: int,
        heads: int,
        direction: Direction = "previous",
        mix: Mix = "add",
        has_output: bool = True,
        init: FFAInit = "identity",
        alpha: float = 0.0,
    ) -> None:
        super().__init__()
        self.direction: Direction = direction
        self.mix: Mix = mix
        self.attention = CrossFrameAttention(width, heads, has_output, init)
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))

    def forward(self, y: Tensor, spatial: Tensor, state: TokenState) -> Tensor:
        """Join SA (B*T, N, D) and CA of the normalised tokens y (B*T, N, D).

        `add`: SA + alpha CA. `convex`: (1 - alpha) SA + alpha CA.
        """
        groups, tokens, width = y.shape
        projections = 3 if self.attention.out is None else 4
        state.extra_macs += groups * (projections * tokens * width**2 + 2 * tokens**2 * width)
        temporal = self.attention(y.unflatten(0, (state.batch, -1)), self.direction).flatten(0, 1)
        if self.mix == "convex":
            spatial = (1 - self.alpha) * spatial
        return spatial + self.alpha * temporal


def fused_blocks(depth: int, count: int, placement: Literal["shallowest", "deepest"]) -> range:
    """Return the `count` blocks of a tower with cross-frame attention; all blocks of a shallower one."""
    count = min(count, depth)
    return range(count) if placement == "shallowest" else range(depth - count, depth)


def fusion_seams(adapters: nn.ModuleDict, depth: int) -> list[BlockSeams | None]:
    """Build seams from adapters, which are named by their blocks; tokens of a video's frames must stay aligned."""
    return [
        BlockSeams(beside=adapters[str(i)], needs_alignment=True) if str(i) in adapters else None for i in range(depth)
    ]
