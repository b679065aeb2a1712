"""Routed LoRA experts that share the down-projection A (TAME, arXiv:2503.10111, section 3.4).

Shapes: B captions, L tokens, D input width, O output width, E experts, K chosen experts, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.layers.expert_usage import UsageCounter
from ctvr.methods.layers.gather import world_size
from ctvr.methods.settings import SettingError

PLACES = ("q", "k", "v", "out")  # the projections of a text block that task-aware experts adapt


def check_top_k(top_k: int, num_experts: int) -> None:
    """Reject a `top_k` outside 1 to `num_experts`, because a larger value would have the effect of `num_experts`.

    Raises:
        ValueError: unless 1 <= top_k <= num_experts.
    """
    if not 1 <= top_k <= num_experts:
        raise SettingError(
            f"<top_k> chooses among <num_experts>={num_experts} experts, got {top_k}",
            f"Use <top_k>={min(max(top_k, 1), max(num_experts, 1))}, or more experts.",
        )


class Router(nn.Module):
    """Router of eq. 4, w = softmax(TopK(R(u))), which selects experts once for each caption."""

    def __init__(self, width: int, num_experts: int, top_k: int, is_noisy: bool = True) -> None:
        """Build the linear map R and, if `is_noisy`, another, N: training adds eps (softplus(N u) + 0.01) to R(u).

        eps is standard normal noise.

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
        """Compute gates (B, E) float32 from router inputs u (B, D); each row has K non-zero gates that sum to 1.

        The softmax includes only the K largest logits of a row. `eps` (B, E) replaces the random noise of a
        training step; evaluation does not add noise.
        """
        logits = F.linear(u, self.route).float()
        if self.noise is not None and self.training:
            eps = torch.randn_like(logits) if eps is None else eps
            logits = logits + eps * (F.softplus(F.linear(u, self.noise).float()) + 0.01)
        return top_k_gates(logits, self.top_k)


def top_k_gates(logits: Tensor, top_k: int, experts: Tensor | None = None) -> Tensor:
    """Compute gates (..., E): the softmax over the `top_k` largest logits (..., E) of a row, and 0 for other experts.

    `torch.topk` breaks ties, so exactly `top_k` gates are positive. The function masks the other logits; `scatter`
    would be slower on CUDA, where it sorts its indices first.

    Args:
        experts: (E,) indices 0 to E - 1; pass them to avoid creating them in each call.
    """
    chosen = logits.detach().topk(top_k, dim=-1).indices  # (..., K)
    experts = torch.arange(logits.shape[-1], device=logits.device) if experts is None else experts
    left_out = (chosen[..., None] != experts).all(dim=-2)
    return logits.masked_fill(left_out, float("-inf")).softmax(dim=-1)


class RoutingRecorder(nn.Module):
    """Base class of a layer of experts that records, for `drop_unchosen`, which experts a step selects."""

    uses_all_parameters = False  # same meaning as in a method's `Capabilities`
    chosen: Tensor | None = None  # (E,) bool: experts chosen since the last optimizer step

    def by_expert(self) -> Iterable[Iterable[nn.Parameter]]:
        """Return the parameters of each expert, in the order of the experts."""
        raise NotImplementedError(f"{type(self).__name__} does not declare which parameters each of its experts has")

    def note(self, chosen: Tensor) -> None:
        """Add to `chosen` the experts that a forward pass with gradients selected, given as a mask (E,) bool."""
        self.chosen = chosen if self.chosen is None else self.chosen | chosen


class SharedLoRAExperts(RoutingRecorder, UsageCounter):
    """Parameters A, B_i and `scale` of eq. 5, scale * sum_i w_i B_i A x; adapter_groups.py computes the sum."""

    def __init__(
        self, in_width: int, out_width: int, num_experts: int, rank: int, scale: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.A = nn.Parameter(torch.empty(rank, in_width))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.B = nn.ParameterList(torch.zeros(out_width, rank) for _ in range(num_experts))

    def by_expert(self) -> Iterable[Iterable[nn.Parameter]]:
        return ([expert] for expert in self.B)

    @torch.no_grad()
    def copy_first(self) -> None:
        """Copy the weights of expert 0 to all other experts."""
        for other in list(self.B)[1:]:
            other.copy_(self.B[0])

    def grow(self, num_experts: int) -> None:
        """Append copies of expert 0 until there are `num_experts` experts."""
        first, self.counted = self.B[0].detach(), None
        self.B.extend(first.clone() for _ in range(num_experts - len(self.B)))


def drop_unchosen(method: nn.Module) -> None:
    """Remove the gradients of unused experts before the optimizer step, so that it does not change these experts.

    An expert is unused if no sample of the step selected it on any worker. Its gradients are set to None. All layers
    are read together, because each read waits for the GPU.
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
    """Weights of one TAME adapter (eq. 4-6) for one projection of a text block; adapter_groups.py applies them.

    A new adapter has expert 0 but neither other experts nor a router; `grow` adds these.
    """

    def __init__(self, in_width: int, out_width: int, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.router: Router | None = None
        self.experts = SharedLoRAExperts(in_width, out_width, 1, rank, scale, dropout)

    def grow(self, num_experts: int, top_k: int, is_noisy: bool = True) -> None:
        """Add a router, and append copies of expert 0 until there are `num_experts` experts.

        Raises:
            ValueError: unless 1 <= top_k <= num_experts.
        """
        router = Router(self.experts.A.shape[1], num_experts, top_k, is_noisy)
        self.router = router.to(self.experts.A.device).train(self.training)
        self.experts.grow(num_experts)
