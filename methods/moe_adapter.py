"""MoE-Adapters: frozen CLIP with small experts in every block, which a separate router for each task selects.

Yu et al., "Boosting Continual Learning of Vision-Language Models via Mixture-of-Experts Adapters",
arXiv:2403.11549 (CVPR 2024), section 3.2, in the form of a baseline of CTVR (arXiv:2503.10111, table 1).
In every block of both towers, with h the tokens after attention and c one token of the sample:

    E_e(h) = 0.1 (ReLU(h W_down + b) W_up + b),  W_up and biases start at 0
    gates  = softmax(Top2(c R_t)); in training c R_t + eps (softplus(c N_t) + 0.01), R_t and N_t start at 0
    x      = h + MLP(LN2 h) + sum_e gates_e E_e(h)

c is the mean of the frames' class tokens; for captions it is the start-of-text token, as in both released
codes. That token does not depend on the caption, so all captions share their gates; with `text_gate=eot`, gates
depend on the caption. After a task the two most used experts of each block are frozen.

CTVR's trainer was not released. The method needs the task of a query, and the paper does not specify its source. Here a
caption that searches the videos of task i uses router i (`query_router=block`), so the query does not need a task
label. Two parts of the original are omitted: autoencoders that predict the task of an *image* (DDAS), and the
load-balancing term, which its code computes but never adds to the loss. The printed 59.8 M parameters include one
autoencoder. The learning rate for retrieval is unpublished; the original uses 1e-3.

Shapes: B videos or captions, T frames, G = B * T groups, N tokens of a group, D width, E experts, K chosen experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import AttentionTrace, BlockSeams, Clip, TokenState, is_recomputing
from ctvr.methods.base import (
    Batch,
    Capabilities,
    Method,
    Override,
    ParamGroup,
    Recipe,
    SeparableEncoders,
    Task,
    l2_normalize,
)
from ctvr.methods.families.released_recipes import MTIL, MTIL_LEFT_OUT
from ctvr.methods.layers.experts import Router, RoutingRecorder, check_top_k
from ctvr.methods.layers.gather import world_size
from ctvr.methods.layers.pooling import frame_mean, mean_pool
from ctvr.methods.settings import require, setting

SCALE = 0.1  # factor of an expert's output, in both codes
_SCRIPT = "mtil/scripts/train/train_full_shot_router11_experts22_1000iters.sh"
ORIGINAL = Recipe(
    "JiazuoYu/MoE-Adapters4CL@4572d97",
    {
        "method.lr": (1e-3, f"{_SCRIPT}: --lr of 7 of its 11 tasks"),
        "method.num_experts": (22, f"{_SCRIPT}: --experts_num 22"),
        "method.top_k": (2, "mtil/clip/model.py"),
        "method.bottleneck": (64, "mtil/clip/adapter.py: 64 rows, whatever is set"),
        "method.dropout": (0.1, "mtil/clip/adapter.py"),
        "method.frozen_per_task": (2, "mtil/src/models/finetune.py: the two that were chosen most"),
        "method.text_gate": ("sot", "mtil/clip/model.py: the first token of a text"),
        **MTIL,
    },
    (*MTIL_LEFT_OUT, "the autoencoders that guess the task of an image (DDAS)"),
)


@dataclass(frozen=True, kw_only=True)
class MoEAdapterConfig:
    """Settings of MoE-Adapters, with ranges in search_spaces/."""

    UNPUBLISHED = ("optim.weight_decay", "optim.warmup")

    lr: float = setting(1e-3, doc="learning rate of experts and routers", unpublished=True, part="recipe")
    num_experts: int = setting(22, doc="number of experts E", unpublished=True)
    top_k: int = setting(
        2, doc="number K of experts for each video or caption", unpublished=True, at_most="num_experts"
    )
    bottleneck: int = setting(64, doc="hidden width of an expert", unpublished=True)
    dropout: float = setting(0.1, doc="dropout rate in the bottleneck of an expert")
    frozen_per_task: int = setting(2, doc="number of experts of each block that are frozen after a task")
    text_gate: Literal["sot", "eot"] = setting(
        "sot", doc="caption token that the router reads. sot: start of text; eot: end of text", unpublished=True
    )
    query_router: Literal["block", "last"] = setting(
        "block",
        doc="task whose router is used for a query. block: the task whose videos are searched; last: the current task",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr")
        check_top_k(self.top_k, self.num_experts)
        require(self, ">= 1", "bottleneck", hint="The paper uses 64.")
        require(self, "in [0, 1)", "dropout")
        require(self, ">= 0", "frozen_per_task", hint="Use 0 to keep all experts trainable.")


class Expert(nn.Module):
    """Expert, a bottleneck MLP whose output is multiplied by 0.1: (..., D) -> (..., D)."""

    def __init__(self, width: int, bottleneck: int, dropout: float) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, bottleneck), nn.Linear(bottleneck, width)
        self.dropout = dropout
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, h: Tensor) -> Tensor:
        return SCALE * self.up(F.dropout(self.down(h).relu(), self.dropout, self.training))


class Mixture(RoutingRecorder):
    """Experts of one block, and its routers: one for each task of the stream."""

    EPOCH_STATE = ("used",)
    frozen: Tensor  # (E,) bool
    used: Tensor  # (E,) int64: number of samples of the current task that chose each expert

    def __init__(self, width: int, config: MoEAdapterConfig) -> None:
        super().__init__()
        self.width, self.config = width, config
        self.experts = nn.ModuleList(
            Expert(width, config.bottleneck, config.dropout) for _ in range(config.num_experts)
        )
        self.routers = nn.ModuleList()
        self.register_buffer("frozen", torch.zeros(config.num_experts, dtype=torch.bool))
        self.register_buffer("used", torch.zeros(config.num_experts, dtype=torch.int64), persistent=False)

    def by_expert(self) -> Iterable[Iterable[nn.Parameter]]:
        return (expert.parameters() for expert in self.experts)

    def add_routers(self, count: int) -> None:
        for _ in range(count):
            router = Router(self.width, self.config.num_experts, self.config.top_k)
            nn.init.zeros_(router.route)
            self.routers.append(router.train(self.training))

    def trained(self, tasks: Sequence[int], frozen: Sequence[bool]) -> list[nn.Parameter]:
        """Return the parameters of all experts except those with `frozen` (E,) true, and of the routers of `tasks`."""
        free = [e for e, is_frozen in zip(self.experts, frozen) if not is_frozen]
        return [p for module in (*free, *(self.routers[task] for task in tasks)) for p in module.parameters()]

    def gates(self, c: Tensor, task: int) -> Tensor:
        """Compute gates (B, E) float32 from tokens c (B, D) by the router of `task`: K values per row, which sum to 1.

        All other values are 0. In training, `used` counts the samples that choose each expert.
        """
        gates = self.routers[task](c)
        if self.training and not is_recomputing():
            self.used += (gates > 0).sum(dim=0)
        return gates

    def forward(self, h: Tensor, gates: Tensor) -> Tensor:
        """Compute sum_e gates_e E_e(h) for groups h (G, N, D) and gates (B, E), G a multiple of B.

        Only chosen experts are computed.
        """
        if h.is_meta:  # a meta tensor has a shape, but not values
            return torch.zeros_like(h)
        if h.device.type == "cpu":
            return self.one_by_one(h, gates.repeat_interleave(len(h) // len(gates), dim=0))
        if torch.is_grad_enabled():
            self.note((gates > 0).any(dim=0))
        return self.side_by_side(h, gates)

    def side_by_side(self, h: Tensor, gates: Tensor) -> Tensor:
        """Compute `forward` on a GPU, where each sample gathers the weights of its K experts, of hidden width H.

        So the host does not wait for the device to choose the experts.
        """
        x = h.unflatten(0, (len(gates), -1)).flatten(1, 2)  # (B, G / B * N, D)
        best, chosen = gates.topk(min(self.config.top_k, gates.shape[1]), dim=-1)  # (B, K)
        down, up, low, high = (
            torch.stack([getattr(getattr(expert, layer), what) for expert in self.experts])[chosen]
            for layer, what in (("down", "weight"), ("up", "weight"), ("down", "bias"), ("up", "bias"))
        )  # (B, K, H, D), (B, K, D, H), (B, K, H), (B, K, D)
        inner = (x @ down.flatten(1, 2).mT.to(x.dtype) + low.flatten(1)[:, None].to(x.dtype)).relu()
        inner = F.dropout(inner, self.config.dropout, self.training).unflatten(-1, down.shape[1:3])
        inner = (inner * best[:, None, :, None].to(inner.dtype)).flatten(2)  # (B, ., K H)
        y = inner @ up.mT.flatten(1, 2).to(inner.dtype) + (best[..., None] * high).sum(dim=1)[:, None].to(inner.dtype)
        return (SCALE * y).to(h.dtype).unflatten(1, (-1, h.shape[1])).flatten(0, 1)

    def one_by_one(self, h: Tensor, gates: Tensor) -> Tensor:
        """Compute `forward` on a CPU, expert by expert, for groups (G, N, D) with gates (G, E)."""
        y = torch.zeros_like(h)
        for e in (gates > 0).any(dim=0).nonzero()[:, 0].tolist():
            rows = (gates[:, e] > 0).nonzero()[:, 0]
            answer = self.experts[e](h[rows]) * gates[rows, e, None, None].to(h.dtype)
            y = y.index_add(0, rows, answer.to(h.dtype))
        return y

    @torch.no_grad()
    def freeze_most_used(self) -> None:
        """Freeze the experts that most samples of all workers chose in this task; if counts are equal, the first."""
        if world_size() > 1:
            dist.all_reduce(self.used)
        chosen = self.used.argsort(descending=True, stable=True)[: self.config.frozen_per_task]
        self.frozen[chosen] = self.frozen[chosen] | (self.used[chosen] > 0)


class _Beside:
    """Hooks for one forward pass of a block: its mixture reads h after the attention and is added after the MLP."""

    def __init__(self, mixture: Mixture, task: int, gate: Literal["class", "sot", "eot"]) -> None:
        self.mixture, self.task, self.gate = mixture, task, gate
        self.answer: Tensor | None = None

    def seams(self) -> BlockSeams:
        return BlockSeams(between=self.listen, after=self.add)

    def listen(self, h: Tensor, attended: AttentionTrace, state: TokenState) -> Tensor:
        gates = self.mixture.gates(self.token(h, state), self.task)  # (B, E)
        self.answer = self.mixture(h, gates)
        chosen = self.mixture.config.top_k * self.mixture.config.bottleneck
        state.extra_macs += 2 * h.numel() * chosen
        return h

    def add(self, x: Tensor, state: TokenState) -> Tensor:
        assert self.answer is not None
        return x + self.answer

    def token(self, h: Tensor, state: TokenState) -> Tensor:
        """Return the tokens c (B, D) that the router reads."""
        if self.gate == "class":
            return frame_mean(h[:, 0].unflatten(0, (state.batch, -1)))
        if self.gate == "sot" or state.eot is None:
            return h[:, 0]
        return h[torch.arange(len(h), device=h.device), state.eot]


class MoEAdapter(Method):
    """Frozen CLIP with a mixture of experts in every block of both towers."""

    Config = MoEAdapterConfig
    ON_FEATURES = {"method.lr": 1e-2}
    PRESETS = {
        "paper": {},
        "shapes": {"method.lr": 2e-4},
        "original": ORIGINAL,
        "caption-gate": Override({"method.text_gate": "eot"}),
    }

    @classmethod
    def capabilities(cls, config: MoEAdapterConfig) -> Capabilities:
        is_by_task = config.query_router == "block"
        return Capabilities(
            fits_vectors=True,
            joins_tasks=True,
            task_conditioned_text=is_by_task,
        )

    def __init__(self, config: MoEAdapterConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.vision = nn.ModuleList(Mixture(backbone.vision.width, config) for _ in backbone.vision.blocks)
        self.text = nn.ModuleList(Mixture(backbone.text.width, config) for _ in backbone.text.blocks)
        self._index = 0

    @property
    def mixtures(self) -> Sequence[Mixture]:
        return [*self.vision, *self.text]

    def begin_task(self, task: Task) -> None:
        self._index = task.index
        for mixture in self.mixtures:
            if not mixture.routers:
                mixture.add_routers(task.num_tasks)
            mixture.used.zero_()

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        for mixture in self.mixtures:
            mixture.freeze_most_used()

    def param_groups(self) -> list[ParamGroup]:
        kept = torch.stack([mixture.frozen for mixture in self.mixtures])  # one transfer to the host
        frozen = [[False] * row.numel() for row in kept] if kept.is_meta else kept.tolist()
        tasks = range(0 if self.is_joint else self._index, self._index + 1)
        trained = (mixture.trained(tasks, row) for mixture, row in zip(self.mixtures, frozen))
        parameters = [p for of_block in trained for p in of_block]
        return [ParamGroup(name="experts_and_router", params=parameters, lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        """Compute unit features (B, d) of frames (B, T, 3, H, W) with the current task's router."""
        return self._video(frames, self._index)

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """Encode videos as `encode_video` does; if tasks are trained jointly, use the router of the videos' task."""
        return self._video(frames, task if self.is_joint else self._index)

    def _video(self, frames: Tensor, router: int) -> Tensor:
        return mean_pool(self.backbone.vision(frames, self._seams(self.vision, router, "class")))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Compute unit features (B, d) of captions (B, L) that search the videos of `task`; None: the current task."""
        index = task if task is not None and self.declared.task_conditioned_text else self._index
        return l2_normalize(self.backbone.text(tokens, self._seams(self.text, index, self.config.text_gate)))

    def separable_encoders(self) -> SeparableEncoders | str:
        """Return the encoders, marked as stateful because experts count the videos and captions that choose them."""
        return SeparableEncoders(self, is_stateful=True)

    def _seams(
        self, mixtures: nn.ModuleList, task: int, gate: Literal["class", "sot", "eot"]
    ) -> list[BlockSeams] | None:
        """Return the hooks (seams) of a tower's blocks; None before the first task, when the model equals CLIP."""
        if not self.mixtures[0].routers:
            return None
        return [_Beside(mixture, task, gate).seams() for mixture in mixtures]  # type: ignore[arg-type]

    def paper_parameters(self) -> int:
        """Return the number of parameters added to CLIP: all experts, and the routers of all tasks.

        Call it after `begin_task`, which adds the routers.
        """
        return sum(p.numel() for mixture in self.mixtures for p in mixture.parameters())
