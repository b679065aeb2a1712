"""The video adapter and the text adapter of MV-Adapter (Jin et al., CVPR 2024), as in zhangbw17/MV-Adapter.

An adapter reads the output y of the MLP in a transformer block of CLIP; the adapter's output is added to y.

Shapes: B videos or captions, T frames, N tokens of a frame (class token and patches), L tokens of a caption, D width of
the tower, m bottleneck.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.quick_gelu import QuickGELU
from ctvr.methods.layers.transformer_block import new_block, passed

Tying = Literal["none", "down_out", "down_in"]
FACTOR, HIDDEN, SHARE = 32, 16, 0.1  # width of a shared vector; hidden width of the calibration; factor of the output


class _Adapter(nn.Module):
    """Base class of adapters: down projection (scaled in tied blocks), transformer block, up projection of zeros."""

    def __init__(self, width: int, bottleneck: int, heads: int, places: int, tying: Tying) -> None:
        super().__init__()
        self.tying = tying
        self.down, self.up = nn.Linear(width, bottleneck), nn.Linear(bottleneck, width)
        self.positions = nn.Parameter(0.01 * torch.randn(places, bottleneck))
        self.ln = nn.LayerNorm(bottleneck)
        self.block = new_block(bottleneck, heads)
        self.act = QuickGELU()
        self.factor = None if tying == "none" else nn.Linear(FACTOR, bottleneck if tying == "down_out" else width)
        for tensor in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(tensor)
        nn.init.normal_(self.block.attn.in_weight, std=width**-0.5)  # width of the tower, as in the released code
        for linear in (self.block.attn.out, self.block.mlp.c_fc, self.block.mlp.c_proj):
            nn.init.normal_(linear.weight, std=(2 * width) ** -0.5)

    def lowered(self, y: Tensor, shared: Tensor | None) -> Tensor:
        """Apply the down projection to y, (..., D) -> (..., m), scaled if `shared` (32,) is a tied block's vector."""
        if self.factor is None or shared is None:
            return self.down(y)
        factor = self.factor(shared)
        if self.tying == "down_in":
            return F.linear(factor * y, self.down.weight, self.down.bias)
        return factor * F.linear(y, self.down.weight) + self.down.bias

    def macs(self, tokens: int, places: int) -> int:
        """Return the multiply-adds of both projections on `tokens` tokens and of the block on `places` tokens."""
        size = self.down.out_features
        return 2 * tokens * self.down.weight.numel() + places * 12 * size**2 + 2 * places**2 * size


class VideoAdapter(_Adapter):
    """Adapter whose transformer block reads one video token, and the class tokens and patch means of all frames.

    Patches pass only the two projections.
    """

    def __init__(self, width: int, bottleneck: int, heads: int, num_frames: int, tying: Tying = "none") -> None:
        super().__init__(width, bottleneck, heads, 2 * num_frames + 1, tying)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        self.whole = nn.Parameter(bottleneck**-0.5 * torch.randn(bottleneck))  # the video token, `cc` in the release
        self.calibrate = nn.ModuleDict(
            {
                "g": nn.Linear(bottleneck, bottleneck),
                "a": nn.Linear(2 * bottleneck, HIDDEN),
                "b": nn.Linear(HIDDEN, bottleneck, bias=False),
            }
        )
        nn.init.zeros_(self.calibrate["b"].weight)  # type: ignore[arg-type]

    def forward(self, y: Tensor, there: Tensor | None = None, shared: Tensor | None = None) -> Tensor:
        """Return the tensor (B, T, N, D) that is added to y.

        Args:
            y: (B, T, N, D) output of the MLP.
            there: (B, T) bool, true for frames that are not missing; if None, none is missing.
            shared: (32,) shared vector of a tied block; None for other blocks.
        """
        z = self.act(self.lowered(y, shared))  # (B, T, N, m)
        sequence = self.sequence(z)
        seen = None if there is None else torch.cat([torch.ones_like(there[:, :1]), there, there], dim=1)
        sequence = self.act(passed(self.block, self.ln(sequence), seen))
        frames = y.shape[1]
        whole, classes, means = sequence[:, :1], sequence[:, 1 : 1 + frames], sequence[:, 1 + frames :]
        classes = self.calibration(whole, classes + means, there) * classes
        return SHARE * self.up(torch.cat([classes[:, :, None], z[:, :, 1:]], dim=2))

    def sequence(self, z: Tensor) -> Tensor:
        """Concatenate video token, class tokens and patch means of z (B, T, N, m), plus positions: (B, 1 + 2T, m)."""
        whole = self.whole.to(z.dtype).expand(len(z), 1, -1)
        x = torch.cat([whole, z[:, :, 0], z[:, :, 1:].mean(dim=2)], dim=1)
        return x + self.positions[: x.shape[1]].to(z.dtype)

    def calibration(self, whole: Tensor, frames: Tensor, there: Tensor | None) -> Tensor:
        """Compute the factors (B, T, m) of the class tokens, which are initially 1.

        Args:
            whole: (B, 1, m) video token after the block.
            frames: (B, T, m) sum of class tokens and patch means after the block.
            there: (B, T) bool, true for frames that are not missing; if None, none is missing.
        """
        own = self.calibrate["g"](whole).expand_as(frames)
        key = torch.cat([frames, own], dim=-1)
        if there is not None:
            key = key * there[..., None]
        factors: Tensor = 1 + self.calibrate["b"](self.calibrate["a"](key).relu())
        return factors

    def extra(self, videos: int, frames: int, tokens: int) -> int:
        """Return the adapter's multiply-adds for `videos` videos of `frames` frames with `tokens` tokens per frame."""
        small = sum(p.numel() for p in self.calibrate.parameters() if p.ndim > 1)
        own = self.calibrate["g"].weight.numel()  # type: ignore[operator]
        return videos * (self.macs(frames * tokens, 1 + 2 * frames) + frames * (small - own) + own)


class TextAdapter(_Adapter):
    """Adapter with causal attention among words, without an activation after the down projection."""

    def __init__(self, width: int, bottleneck: int, heads: int, num_words: int, tying: Tying = "none") -> None:
        super().__init__(width, bottleneck, heads, num_words, tying)
        nn.init.normal_(self.down.weight, std=(2 * width) ** -0.5)

    def forward(self, y: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return the tensor (B, L, D) that is added to y (B, L, D); L is at most `num_words`."""
        length = y.shape[1]
        z = self.lowered(y, shared)
        z = passed(self.block, self.ln(z + self.positions[:length].to(z.dtype)), causal=True)
        return SHARE * self.up(self.act(z))
