"""StructAlign's adapters of the towers: the form of its paper, and the form of its released code.

Both classes hold adapters alone, so that a copy of them is a copy of the whole trained model: the
backbone never changes and is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, Seams
from ctvr.methods.layers.experts import PLACES, TaskAwareExperts
from ctvr.methods.layers.lora import LoRA
from ctvr.methods.layers.lora_experts import LoRAExperts
from ctvr.methods.layers.reduction.plan import TokenReducer
from ctvr.methods.layers.reduction.reducers import combine
from ctvr.methods.layers.temporal import FrameFusion


def _modules(block: nn.Module) -> dict[str, Any]:
    return dict(cast(nn.ModuleDict, block).items())


class _QueriesValues(nn.ModuleDict):
    """LoRA on q and v of a block."""

    def merged_delta(self) -> Tensor:
        """Return the addition of both to the fused projection, (3D, D)."""
        q, v = (cast(LoRA, self[place]).merged_delta() for place in "qv")
        return torch.cat([q, torch.zeros_like(q), v])


class LoRAAdapters(nn.Module):
    """The paper's form: LoRA experts on q, k, v and out of every text block, LoRA on q and v of every vision block."""

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
        """Do nothing: all tasks share all adapters."""

    def end_task(self, index: int) -> None:
        """Do nothing."""

    def text_seams(self, task: int | None) -> Seams:
        """Build the seams of eqs. 2-3, the same for every task."""
        return [BlockSeams(**_modules(block), by_token=True) for block in self.text]

    def vision_seams(self) -> Seams:
        """Build the seams of eq. 5 and of the reducer."""
        blocks = cast(Iterable[_QueriesValues], self.vision)
        low_rank = [BlockSeams(**_modules(block), fold=block.merged_delta) for block in blocks]
        return combine(self.reducer.seams(), low_rank)

    def groups(self, index: int) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that task `index` trains."""
        return {"text": list(self.text.parameters()), "vision": [*self.vision.parameters(), *self.reducer.parameters()]}


class TaskAwareAdapters(nn.Module):
    """The released code's form, as in FrameFusionMoE: routed experts with task prototypes, cross-frame attention.

    In the first task, and for its videos afterwards, only expert 0 is used; it is then copied into the others.
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
        """Build adapters; frames are fused in the last `fusion_layers` blocks, in alternating directions.

        Raises:
            ValueError: for a reducer under which a token does not have the same position in all frames.
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
        self.vision_seams()  # refuses a reducer that breaks the frames' alignment

    def begin_task(self, index: int) -> None:
        """Draw the task's prototype from N(0, 1/sqrt(D))."""
        like = next(self.text.parameters())
        self.prototypes.append(nn.Parameter(torch.randn(self.width, device=like.device) * self.width**-0.5))

    def end_task(self, index: int) -> None:
        """Copy expert 0 into every expert after the first task."""
        if index == 0:
            for adapter in self._experts():
                adapter.experts.copy_first()

    def _experts(self) -> list[TaskAwareExperts]:
        return [adapter for block in self.text for adapter in _modules(block).values()]

    def text_seams(self, task: int | None) -> Seams:
        """Build the seams for captions that search the videos of `task`; None: routed without a prototype."""
        given: dict[str, Any] = {"prototype": None if task is None else self.prototypes[task], "is_routed": task != 0}
        seams = []
        for block in self.text:
            fill: dict[str, Any] = {place: partial(adapter, **given) for place, adapter in _modules(block).items()}
            seams.append(BlockSeams(**fill, by_token=True))
        return seams

    def vision_seams(self) -> Seams:
        """Build the seams of cross-frame attention, parallel to CLIP's own, in the last blocks, and of the reducer."""
        fusions = [BlockSeams(beside=fusion, needs_alignment=True) for fusion in self.vision]
        return combine(self.reducer.seams(), [*[BlockSeams()] * self.first, *fusions])

    def groups(self, index: int) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of task `index`: in the first one expert, no router; then all; its own prototype."""
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
    """Build the adapters of the paper, or those of its released code.

    Args:
        text: number of experts, number of active experts, their rank, alpha and dropout.
        vision: rank and alpha of `lora`.
        fusion_layers: number of last blocks in which `task_aware` uses cross-frame attention.
        reducer: reduces the tokens of the vision tower.
    """
    if kind == "lora":
        return LoRAAdapters(backbone, *text, *vision, reducer)
    return TaskAwareAdapters(backbone, *text, fusion_layers, reducer)
