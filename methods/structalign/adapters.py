"""Adapters of both towers for StructAlign: those of the paper, and those of the released code.

An object of either class contains all trained weights of the towers, and not the frozen backbone. So the previous
model is stored as a copy of this object.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ctvr.methods.backbone.clip import BlockSeams, Clip, Seams
from ctvr.methods.layers.adapter_groups import AdapterGroup, RouterStack, expert_seams, group_seams
from ctvr.methods.layers.expert_usage import UsageCounter
from ctvr.methods.layers.experts import PLACES, Router, TaskAwareExperts, check_top_k
from ctvr.methods.layers.lora import LoRA
from ctvr.methods.layers.precision import in_autocast
from ctvr.methods.layers.reduction.plan import TokenReducer
from ctvr.methods.layers.reduction.reducers import combine
from ctvr.methods.layers.temporal import FrameFusion


def _modules(block: nn.Module) -> dict[str, Any]:
    return dict(cast(nn.ModuleDict, block).items())


class _QueriesValues(nn.ModuleDict):
    """LoRA on the projections q and v of a block."""

    def merged_delta(self) -> Tensor:
        """Return the matrix (3D, D) that LoRA adds to the fused projection of q, k and v."""
        q, v = (cast(LoRA, self[place]).merged_delta() for place in "qv")
        return torch.cat([q, torch.zeros_like(q), v])


class LoRAAdapters(nn.Module):
    """Adapters of the paper: LoRA experts on q, k, v and out of text blocks, and LoRA on q and v of vision blocks."""

    def __init__(
        self,
        backbone: Clip,
        num_experts: int,
        top_k: int,
        text_rank: int,
        text_alpha: float,
        text_dropout: float,
        vision_rank: int,
        vision_alpha: float,
        reducer: TokenReducer,
    ) -> None:
        super().__init__()
        self.reducer = reducer
        text, vision = backbone.text.width, backbone.vision.width

        def experts() -> LoRAExperts:
            return LoRAExperts(num_experts, top_k, text_rank, text_alpha, text, text, text_dropout)

        def lora() -> LoRA:
            return LoRA(vision_rank, vision_alpha, vision, vision)

        self.text = nn.ModuleList(nn.ModuleDict({place: experts() for place in PLACES}) for _ in backbone.text.blocks)
        self.vision = nn.ModuleList(_QueriesValues({"q": lora(), "v": lora()}) for _ in backbone.vision.blocks)

    def begin_task(self, index: int) -> None:
        """Do nothing, because all tasks share all adapters."""

    def end_task(self, index: int) -> None:
        """Do nothing, because all tasks share all adapters."""

    def text_seams(self, task: int | None) -> Seams:
        """Return hooks (`BlockSeams`), one per text block, that apply the experts of eqs. 2-3; `task` is not used."""
        return group_seams(self.text, LoRAExpertGroup)

    def vision_seams(self) -> Seams:
        """Return hooks (`BlockSeams`), one per vision block, that apply LoRA, eq. 5, and the token reducer."""
        blocks = cast(Iterable[_QueriesValues], self.vision)
        low_rank = [BlockSeams(**_modules(block), fold=block.merged_delta) for block in blocks]
        return combine(self.reducer.seams(), low_rank)

    def groups(self, index: int) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that every task trains, by the name of their group."""
        return {"text": list(self.text.parameters()), "vision": [*self.vision.parameters(), *self.reducer.parameters()]}


class TaskAwareAdapters(nn.Module):
    """Adapters of the released code, as in FrameFusionMoE: routed experts with task prototypes and frame fusion.

    The first task uses only expert 0, which is then copied to all experts. Later, captions that search videos of the
    first task also use only expert 0.
    """

    def __init__(
        self,
        backbone: Clip,
        num_experts: int,
        top_k: int,
        text_rank: int,
        text_alpha: float,
        text_dropout: float,
        fusion_layers: int,
        reducer: TokenReducer,
    ) -> None:
        """Build adapters; the last `fusion_layers` blocks have frame fusion with alternating directions.

        Raises:
            ValueError: if token i has different image positions in the frames under this reducer.
        """
        super().__init__()
        self.reducer = reducer
        text, vision = backbone.text, backbone.vision
        self.width = text.width

        def experts() -> TaskAwareExperts:
            adapter = TaskAwareExperts(text.width, text.width, text_rank, text_alpha / text_rank, text_dropout)
            adapter.grow(num_experts, top_k)
            return adapter

        self.text = nn.ModuleList(nn.ModuleDict({place: experts() for place in PLACES}) for _ in text.blocks)
        self.prototypes = nn.ParameterList()  # one (D,) for each task so far
        self.first = max(0, len(vision.blocks) - fusion_layers)
        self.vision = nn.ModuleList(
            FrameFusion(
                vision.width, cast(int, vision.heads), "next" if layer % 2 else "previous", "convex", init="torch"
            )
            for layer in range(self.first, len(vision.blocks))
        )
        for fusion in self.vision:
            for name, parameter in fusion.named_parameters():
                if name.endswith(".bias"):
                    nn.init.zeros_(parameter)
        self.vision_seams()  # raises an error if token i has different positions in the frames under this reducer

    def begin_task(self, index: int) -> None:
        """Add a prototype (D,) for the task, initialized from N(0, 1 / D)."""
        like = next(self.text.parameters())
        self.prototypes.append(nn.Parameter(torch.randn(self.width, device=like.device) * self.width**-0.5))

    def end_task(self, index: int) -> None:
        """After the first task, copy expert 0 to all experts; after other tasks, do nothing."""
        if index == 0:
            for adapter in self._experts():
                adapter.experts.copy_first()

    def _experts(self) -> list[TaskAwareExperts]:
        return [adapter for block in self.text for adapter in _modules(block).values()]

    def text_seams(self, task: int | None) -> Seams:
        """Return hooks (`BlockSeams`), one per text block, for captions that search the videos of `task`.

        If `task` is None, the router does not use a prototype.
        """
        prototype = None if task is None else self.prototypes[task]
        return expert_seams(self.text, prototype, is_routed=task != 0)

    def vision_seams(self) -> Seams:
        """Return hooks (`BlockSeams`), one per vision block: token reducer and, in the last blocks, frame fusion."""
        fusions = [BlockSeams(beside=fusion, needs_alignment=True) for fusion in self.vision]
        return combine(self.reducer.seams(), [*[BlockSeams()] * self.first, *fusions])

    def groups(self, index: int) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that task `index` trains, by the name of their group.

        The first task trains A and expert 0; later tasks train all experts and routers. Each task trains its own
        prototype.
        """
        text: list[nn.Parameter] = []
        for adapter in self._experts():
            text += [adapter.experts.A, adapter.experts.B[0]] if index == 0 else list(adapter.parameters())
        fusions = [cast(FrameFusion, fusion) for fusion in self.vision]
        return {
            "text": text,
            "vision": [
                *(parameter for fusion in fusions for parameter in fusion.attention.parameters()),
                *self.reducer.parameters(),
            ],
            "other": [*(fusion.alpha for fusion in fusions), self.prototypes[index]],
        }


def make_adapters(
    kind: Literal["lora", "task_aware"],
    backbone: Clip,
    text: tuple[int, int, int, float, float],
    vision: tuple[int, float],
    fusion_layers: int,
    reducer: TokenReducer,
) -> LoRAAdapters | TaskAwareAdapters:
    """Build the adapters of the paper or of the released code.

    Args:
        kind: `lora`, the adapters of the paper, or `task_aware`, those of the released code.
        backbone: frozen CLIP.
        text: number of text experts, number of experts that a caption uses, and the experts' rank, alpha and dropout.
        vision: rank and alpha of LoRA in the vision tower, for `lora`.
        fusion_layers: number of last blocks with frame fusion, for `task_aware`.
        reducer: token reducer of the vision tower.
    """
    if kind == "lora":
        return LoRAAdapters(backbone, *text, *vision, reducer)
    return TaskAwareAdapters(backbone, *text, fusion_layers, reducer)


# Mixture of LoRA experts, each with separate A and B (StructAlign, SIGIR 2026, eqs. 2-3).
#
# The experts of FrameFusionMoE share one A. The paper does not specify which token the router reads. Its gates G have
# one row per caption (B x I), so here the router reads the end-of-text token, as in FrameFusionMoE.
#
# Shapes: B captions, L tokens, D input width, O output width, E experts (I in the paper), r rank, P adapters of a
# group.


class LoRAExperts(UsageCounter):
    """Weights of the experts and the router of one projection of a text block; `LoRAExpertGroup` applies them."""

    def __init__(
        self, num_experts: int, top_k: int, rank: int, alpha: float, in_width: int, out_width: int, dropout: float = 0.0
    ) -> None:
        """Build `num_experts` experts of rank `rank` with factor alpha / rank; each caption uses `top_k` experts.

        Raises:
            ValueError: unless 1 <= top_k <= num_experts and rank >= 1.
        """
        super().__init__()
        check_top_k(top_k, num_experts)
        if rank < 1:
            raise ValueError(f"the rank of an expert must be >= 1, got {rank}.")
        self.scale, self.dropout = alpha / rank, dropout
        self.A = nn.Parameter(torch.empty(num_experts, rank, in_width))  # (E, r, D)
        self.B = nn.Parameter(torch.zeros(num_experts, out_width, rank))  # (E, O, r)
        self.router = Router(in_width, num_experts, top_k, is_noisy=False)  # R of eq. 2
        bound = 1 / math.sqrt(in_width)  # initialization of torch.nn.Linear
        nn.init.uniform_(self.A, -bound, bound)


class LoRAExpertGroup(AdapterGroup):
    """Computes eqs. 2-3, scale * sum_i G_i B_i A_i x, for the experts of several layers.

    The output of every expert is computed, then weighted. An expert outside the top k therefore has a gradient of
    zeros, not None. So all workers of a distributed run have gradients for the same parameters.
    """

    def __init__(self, layers: Sequence[Sequence[LoRAExperts]]) -> None:
        self.experts = layers
        first, flat = layers[0][0], [each for row in layers for each in row]
        routers = RouterStack([[each.router for each in row] for row in layers], None)
        super().__init__(layers, routers, len(first.A), first.dropout)
        shape = (len(layers), self.places)
        down, up = (in_autocast(torch.stack(weights)) for weights in zip(*((each.A, each.B) for each in flat)))
        self.down = down.flatten(1, 2).unflatten(0, shape).unbind()  # (P, E * r, D) for each layer
        up = _ScaledTranspose.apply(up, first.scale / (1 - self.dropout))
        self.up = up.flatten(2).unflatten(0, shape).unbind()  # (P, O, E * r)

    def delta(self, layer: int, x: Tensor, gates: Tensor) -> Tensor:
        down = torch.bmm(x.flatten(1, 2), self.down[layer].mT)  # (P, B * L, E * r)
        weight = gates.transpose(0, 1).to(down.dtype)  # (P, B, E)
        weighted = down.unflatten(1, x.shape[1:3]).unflatten(-1, (self.num_experts, -1)) * weight[:, :, None, :, None]
        return torch.bmm(weighted.flatten(3).flatten(1, 2), self.up[layer].mT).unflatten(1, x.shape[1:3])


class _ScaledTranspose(torch.autograd.Function):
    """Autograd function factor * x.transpose(1, 2), whose output and gradient are contiguous, to avoid a later copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return _scaled_transpose(x, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scaled_transpose(gradient, ctx.factor), None


def _scaled_transpose(x: Tensor, factor: float) -> Tensor:
    turned = x.transpose(1, 2)
    return torch.mul(turned, factor, out=x.new_empty(turned.shape))
