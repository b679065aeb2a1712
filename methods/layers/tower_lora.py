"""LoRA on selected projections of every block of a tower, and its merge into the weights of the tower.

Shapes: B videos or captions, G attention groups (B*T frames, or B captions), N tokens, D input width, O output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Block, BlockSeams, TextTower, TokenState, VisionTower
from ctvr.methods.layers.lora import LoRA

Place = Literal["q", "k", "v", "out", "fc", "proj"]  # four projections of attention, and the two layers of the MLP


def weight_at(block: nn.Module, place: Place) -> Tensor:
    """Return the weights (O, D) of one projection as a view, so that an in-place change changes the block."""
    block = cast(Block, block)
    if place in ("q", "k", "v"):
        return block.attn.in_weight.chunk(3)["qkv".index(place)]
    layers = {"out": block.attn.out, "fc": block.mlp.c_fc, "proj": block.mlp.c_proj}
    return cast(Tensor, layers[place].weight)


class TowerLoRA(nn.Module):
    """LoRA adapters of a tower, one for each selected projection of each block. The tower is not a submodule."""

    def __init__(
        self, tower: VisionTower | TextTower, places: Sequence[Place], rank: int, alpha: float, dropout: float = 0.0
    ) -> None:
        super().__init__()

        def make_lora(block: nn.Module, place: Place) -> LoRA:
            out_width, in_width = weight_at(block, place).shape
            return LoRA(rank, alpha, in_width, out_width, dropout)

        self.blocks = nn.ModuleList(
            nn.ModuleDict({place: make_lora(block, place) for place in places}) for block in tower.blocks
        )

    def adapters(self) -> list[dict[Place, LoRA]]:
        """Return, for each block, the adapters by the name of their projection."""
        return [dict(cast(nn.ModuleDict, block).items()) for block in self.blocks]  # type: ignore[arg-type]

    def seams(self, factor: float | Tensor = 1.0) -> list[BlockSeams]:
        """Return one `BlockSeams` per block that adds the output of the adapters times `factor`.

        Args:
            factor: a number, or (B,), one number for each video or caption.
        """
        return weighted_seams([(self, factor)])

    def reset(self) -> None:
        """Reset all adapters to their initial state, in which their output is zero."""
        for block in self.adapters():
            for lora in block.values():
                lora.reset()

    @torch.no_grad()
    def merge_into(self, tower: VisionTower | TextTower, share: float) -> None:
        """Add `share` * scale * B A of every adapter to the weights of the tower; the adapters do not change."""
        for block, adapters in zip(tower.blocks, self.adapters(), strict=True):
            for place, lora in adapters.items():
                weight_at(block, place).add_(share * lora.merged_delta())


def weighted_seams(parts: Sequence[tuple[TowerLoRA, float | Tensor]]) -> list[BlockSeams]:
    """Return one `BlockSeams` per block for W x + sum of factor * scale * B A x over the adapters of one tower.

    Args:
        parts: the adapters, each with its factor: a number, or (B,), one number for each video or caption.
    """
    blocks = zip(*(tower.adapters() for tower, _ in parts), strict=True)
    factors = [factor for _, factor in parts]
    found = []
    for adapters in blocks:
        places = {place: [each[place] for each in adapters] for place in adapters[0]}
        filled: dict[str, Any] = {place: partial(_add, own, factors) for place, own in places.items()}
        found.append(BlockSeams(**filled, by_token=True))
    return found


def _add(
    adapters: Sequence[LoRA], factors: Sequence[float | Tensor], x: Tensor, projected: Tensor, state: TokenState
) -> Tensor:
    for lora, factor in zip(adapters, factors, strict=True):
        if isinstance(factor, Tensor):  # (B,) -> one for each group
            factor = factor.repeat_interleave(len(x) // len(factor))[:, None, None].to(projected.dtype)
        projected = projected + factor * lora.delta(x)
    return projected
