"""Routed LoRA experts that share one encoder A (TAME, arXiv:2503.10111, section 3.4).

Shapes: B captions, L tokens, D width in, O width out, E experts, K of them chosen, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, TokenState
from ctvr.methods.layers.expert_usage import UsageCounter
from ctvr.methods.layers.gather import world_size
from ctvr.methods.settings import SettingError

PLACES = ("q", "k", "v", "out")  # the projections of a text block that task-aware experts adapt


def check_top_k(top_k: int, num_experts: int) -> None:
    """Refuse a `top_k` outside 1..`num_experts`: a larger one would be the same model under another name.

    Raises:
        ValueError: unless 1 <= top_k <= num_experts.
    """
    if not 1 <= top_k <= num_experts:
        raise SettingError(
            f"<top_k> chooses among <num_experts>={num_experts} experts, got {top_k}",
            f"Use <top_k>={min(max(top_k, 1), max(num_experts, 1))}, or more experts.",
        )


class Router(nn.Module):
    """Eq. 4: w = softmax(TopK(R(u))): one decision for each caption."""

    def __init__(self, width: int, num_experts: int, top_k: int, is_noisy: bool = True) -> None:
        """Build R, and N if `is_noisy`: training then adds eps * (softplus(N u) + 0.01) to R(u), eps ~ N(0, 1).

        Raises:
            ValueError: unless 1 <= top_k <= num_experts.
        """
        super().__init__()
        check_top_k(top_k, num_experts)
        self.top_k = top_k
        self.route = nn.Parameter(torch.empty(num_experts, width))
        nn.init.kaiming_uniform_(self.route, a=math.sqrt(5))
        self.noise = nn.Parameter(torch.zeros(num_experts, width)) if is_noisy else None

    def forward(self, u: Tensor, eps: Tensor | None = None) -> Tensor:
        """Compute gates (B, E) float32 of router inputs u (B, D): K non-zeros in each row, which sum to 1.

        The softmax runs over the K kept logits, not over all. `eps` (B, E) replaces the noise of a
        training step; evaluation adds no noise.
        """
        logits = F.linear(u, self.route).float()
        if self.noise is not None and self.training:
            eps = torch.randn_like(logits) if eps is None else eps
            logits = logits + eps * (F.softplus(F.linear(u, self.noise).float()) + 0.01)
        best, chosen = logits.topk(self.top_k, dim=-1)
        places = F.one_hot(chosen, logits.shape[1]).to(best.dtype)  # (B, K, E); a scatter is sorted first on CUDA
        return (places * best.softmax(dim=-1)[..., None]).sum(dim=1)


class RoutingRecorder(nn.Module):
    """Experts of which each step selects a subset; on a GPU the selection is recorded for `drop_unchosen`."""

    uses_all_parameters = False  # as of a method
    chosen: Tensor | None = None  # (E,) bool, since the last step

    def by_expert(self) -> Iterable[Iterable[nn.Parameter]]:
        """Return the parameters of each expert, in order."""
        raise NotImplementedError(f"{type(self).__name__} does not declare which parameters each of its experts has")

    def note(self, gates: Tensor) -> None:
        """Record the gates (., E) of a pass with a gradient."""
        if torch.is_grad_enabled() and gates.device.type == "cuda":
            used = (gates > 0).any(dim=0)
            self.chosen = used if self.chosen is None else self.chosen | used

    def note_first(self, num_experts: int, device: torch.device) -> None:
        """Record a pass through expert 0 alone."""
        if device.type == "cuda":
            self.note(torch.arange(num_experts, device=device)[None] == 0)


class SharedLoRAExperts(RoutingRecorder, UsageCounter):
    """Eq. 5 with its factor: scale * sum_i w_i B_i A x."""

    def __init__(
        self, in_width: int, out_width: int, num_experts: int, rank: int, scale: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.A = nn.Parameter(torch.empty(rank, in_width))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.B = nn.ParameterList(torch.zeros(out_width, rank) for _ in range(num_experts))

    def forward(self, x: Tensor, gates: Tensor | None) -> Tensor:
        """Map (B, L, D) to (B, L, O). `gates` (B, E), or None: expert 0 alone, with gate 1.

        Each caption's experts are merged into one matrix sum_i w_i B_i before it is applied to its tokens. An
        expert that no caption of the step chose takes no part: its gradient is None, so an
        optimizer neither updates nor decays it, as in the released code. On a GPU it is None only after
        `drop_unchosen` (see `RoutingRecorder`).
        """
        down = F.linear(F.dropout(x, self.dropout, self.training), self.A)  # (B, L, r)
        if gates is None:
            self.note_first(len(self.B), x.device)
            self.count(F.one_hot(torch.zeros(len(x), dtype=torch.int64, device=x.device), len(self.B)))
            return self.scale * F.linear(down, self.B[0])
        self.note(gates)
        self.count(gates)
        up, kept = torch.stack(tuple(self.B)), gates
        if _reads(gates):
            used = (gates > 0).any(dim=0).nonzero()[:, 0].tolist()
            up, kept = torch.stack([self.B[i] for i in used]), gates[:, used]  # (used, O, r)
        merged = (kept.to(down.dtype) @ up.flatten(1)).unflatten(1, up.shape[1:])  # (B, O, r)
        return self.scale * (down @ merged.mT.to(down.dtype))

    def by_expert(self) -> Iterable[Iterable[nn.Parameter]]:
        return ([expert] for expert in self.B)

    @torch.no_grad()
    def copy_first(self) -> None:
        """Make all experts equal to expert 0."""
        for other in list(self.B)[1:]:
            other.copy_(self.B[0])

    def grow(self, num_experts: int) -> None:
        """Add copies of expert 0, up to `num_experts`."""
        first, self.counted = self.B[0].detach(), None
        self.B.extend(first.clone() for _ in range(num_experts - len(self.B)))


def _reads(gates: Tensor) -> bool:
    """Return whether the host may read which experts were chosen: on a CPU in training, where reading costs nothing."""
    return torch.is_grad_enabled() and gates.device.type == "cpu"


def drop_unchosen(method: nn.Module) -> None:
    """Before an optimizer's step, remove gradients of experts that no sample of the step chose on any worker.

    The choices of all layers are read at once; reading them one by one would synchronise with the GPU each time.
    """
    layers = [
        module for module in method.modules() if isinstance(module, RoutingRecorder) and module.chosen is not None
    ]
    masks = [module.chosen for module in layers if module.chosen is not None]
    if not masks:
        return
    whole = torch.cat(masks).to(torch.int32)
    if world_size() > 1:
        dist.all_reduce(whole, op=dist.ReduceOp.MAX)
    is_chosen = iter(whole.tolist())
    for module in layers:
        module.chosen = None
        for parameters in module.by_expert():
            if not next(is_chosen):
                for parameter in parameters:
                    parameter.grad = None


class TaskAwareExperts(nn.Module):
    """One TAME adapter: eq. 4-6 for one projection; fills the seams q, k, v, out of a text block.

    It starts with expert 0 alone; `grow` adds the others and their router.
    """

    def __init__(self, in_width: int, out_width: int, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.router: Router | None = None
        self.experts = SharedLoRAExperts(in_width, out_width, 1, rank, scale, dropout)

    def grow(self, num_experts: int, top_k: int, is_noisy: bool = True) -> None:
        """Add the router, and copies of the current expert 0."""
        router = Router(self.experts.A.shape[1], num_experts, top_k, is_noisy)
        self.router = router.to(self.experts.A.device).train(self.training)
        self.experts.grow(num_experts)

    def gates(self, x: Tensor, eot: Tensor, prototype: Tensor | None, eps: Tensor | None = None) -> Tensor:
        """Compute gates (B, E) of captions x (B, L, D) from the end-of-text token `eot` (B,) plus prototype (D,)."""
        if self.router is None:
            raise ValueError("this adapter has one expert and no router yet: call grow() before you request gates.")
        u = x[torch.arange(len(x), device=x.device), eot]
        return self.router(u if prototype is None else u + prototype, eps)

    def forward(
        self, x: Tensor, projected: Tensor, state: TokenState, prototype: Tensor | None = None, is_routed: bool = True
    ) -> Tensor:
        """Add the experts' output for x (B, L, D) to the frozen projection (B, L, O).

        Args:
            x: the input of the frozen projection.
            projected: its output.
            state: state of the forward pass; its `eot` is read.
            prototype: (D,) of the task whose videos are searched.
            is_routed: False applies expert 0 alone, without the router.
        """
        assert state.eot is not None, "experts read the end-of-text token: use them in a text tower"
        # Before they grow, all experts are expert 0, and gates that sum to 1 do not change its output
        gates = self.gates(x, state.eot, prototype) if is_routed and self.router is not None else None
        return projected + self.experts(x, gates)


def expert_seams(blocks: nn.ModuleList, prototype: Tensor | None, is_routed: bool) -> list[BlockSeams]:
    """Build the seams of every text block from its adapters, named as in `PLACES`, conditioned on one task."""
    seams = []
    for block in blocks:
        adapters: Any = block
        q, k, v, out = (partial(adapters[place], prototype=prototype, is_routed=is_routed) for place in PLACES)
        seams.append(BlockSeams(q=q, k=k, v=v, out=out, by_token=True))
    return seams
