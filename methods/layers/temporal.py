"""Cross-frame attention parallel to frozen spatial attention (Frame Fusion Adapter, arXiv:2503.10111, section 3.3).

Shapes: B videos, T frames, N tokens of one frame, D width, H heads.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ctvr.methods.backbone.clip import BlockSeams, TokenState
from ctvr.methods.layers.precision import in_autocast
from ctvr.methods.settings import SettingError

FFAInit = Literal["identity", "zero_out", "torch"]
Direction = Literal["previous", "next"]
Mix = Literal["add", "convex"]


def neighbour(y: Tensor, direction: Direction) -> Tensor:
    """Replace each frame of y (B, T, ...) by its neighbor in `direction`; a frame without neighbor is unchanged."""
    if direction == "previous":
        return torch.cat([y[:, :1], y[:, :-1]], dim=1)
    return torch.cat([y[:, 1:], y[:, -1:]], dim=1)


class CrossFrameAttention(nn.Module):
    """Attention CA(F', F) of eq. 1: queries from the neighboring frame, keys and values from the frame itself."""

    def __init__(self, width: int, heads: int, has_output: bool = True, init: FFAInit = "identity") -> None:
        """Build the projections.

        Args:
            width: D, a multiple of heads.
            heads: H.
            has_output: whether an output projection follows the merged heads, as in CLIP's attention.
            init: `identity`: identity weights and zero biases. `zero_out`: the same, except that the weights of the
                output projection are zero, so that CA is 0 at first. `torch`: torch's default initialization.

        Raises:
            ValueError: if `init` is `zero_out` and `has_output` is False.
        """
        super().__init__()
        if init == "zero_out" and not has_output:
            raise SettingError("<ffa_init>=zero_out needs an output projection", "Set <ffa_output>=true.")
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
        """Compute cross-frame attention with queries from the neighboring frame: (B, T, N, D) -> (B, T, N, D).

        Projection and the shift by a frame commute. So q, k and v are projected together, and q is shifted afterwards.
        """
        parts = (self.q, self.k, self.v)
        q, kv = _JointLinear.apply(in_autocast(y), *(p.weight for p in parts), *(p.bias for p in parts))
        k, v = kv.chunk(2, dim=-1)
        queries = self._heads_first(neighbour(q, direction))
        mixed = F.scaled_dot_product_attention(queries, self._heads_first(k), self._heads_first(v))
        merged = mixed.transpose(1, 2).flatten(2).unflatten(0, y.shape[:2])
        return merged if self.out is None else self.out(merged)

    def _heads_first(self, x: Tensor) -> Tensor:
        """Split heads: (B, T, N, D) -> (B*T, H, N, D/H), because torch's fused attention needs four dimensions."""
        return x.flatten(0, 1).unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _JointLinear(torch.autograd.Function):
    """Autograd function of three linear layers: returns the first output (..., O), and the others together (..., 2 O).

    The backward pass computes one product with the concatenated weights. In float32 the concatenation is not stored but
    repeated; under autocast only a copy in low precision is stored. The first output is a separate tensor, so that its
    memory is freed after `neighbour`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        weights, rows = parameters[:3], len(parameters[0])
        joint, biases = in_autocast(torch.cat(weights)), in_autocast(torch.cat(parameters[3:]))
        ctx.dtype = weights[0].dtype
        ctx.save_for_backward(x, *(weights if joint.dtype == ctx.dtype else [joint]))
        return F.linear(x, joint[:rows], biases[:rows]), F.linear(x, joint[rows:], biases[rows:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *kept = ctx.saved_tensors
        rows, joint = torch.cat(gradients, dim=-1).flatten(0, -2), kept[0] if len(kept) == 1 else torch.cat(kept)
        own = rows @ joint if ctx.needs_input_grad[0] else None
        weights = (rows.mT @ x.flatten(0, -2)).to(ctx.dtype).chunk(3)
        biases = rows.sum(dim=0, dtype=ctx.dtype).chunk(3)
        return None if own is None else own.view(x.shape), *weights, *biases


class FrameFusion(nn.Module):
    """Adapter of eq. 3 for one vision block, called at its hook point `beside`."""  # prose: allow

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
        """Return SA + alpha CA if `mix` is `add`, (1 - alpha) SA + alpha CA if it is `convex`: (B*T, N, D).

        Args:
            y: (B*T, N, D) LayerNorm output, from which CA is computed.
            spatial: (B*T, N, D) output SA of the block's spatial attention.
            state: provides B; the multiply-adds of CA are added to it.
        """
        groups, tokens, width = y.shape
        projections = 3 if self.attention.out is None else 4
        state.extra_macs += groups * (projections * tokens * width**2 + 2 * tokens**2 * width)
        temporal = self.attention(y.unflatten(0, (state.batch, -1)), self.direction).flatten(0, 1)
        if self.mix == "convex":
            spatial = (1 - self.alpha) * spatial
        return spatial + self.alpha * temporal


def fused_blocks(depth: int, count: int, placement: Literal["shallowest", "deepest"]) -> range:
    """Return the indices of the blocks with cross-frame attention: `count` blocks, or all if the tower has fewer."""
    count = min(count, depth)
    return range(count) if placement == "shallowest" else range(depth - count, depth)


def fusion_seams(adapters: nn.ModuleDict, depth: int) -> list[BlockSeams | None]:
    """Return, for each of `depth` blocks, the `BlockSeams` that calls its adapter; None for a block without an adapter.

    Args:
        adapters: adapters by block index, as a string. They need token i of all frames at one image position.
    """
    return [
        BlockSeams(beside=adapters[str(i)], needs_alignment=True) if str(i) in adapters else None for i in range(depth)
    ]
