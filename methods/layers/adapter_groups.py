"""Joint computation of routed adapters that have the same input, with one router product and one top-k for all of them.

At the papers' batch size of 8, a GPU needs less time to run a kernel than the host needs to launch it. Computed one
by one, the 48 adapters of a text tower would need most of a step's kernels. So the parameters of all layers are
stacked once per forward pass. In each block the adapters of q, k and v are one group, and that of `out` is another.
Random numbers are drawn as if adapters were computed one by one: for each adapter first router noise, then dropout.

Shapes: B captions, L tokens, D input width, O output width, P adapters of a group, E experts, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, TokenState
from ctvr.methods.backbone.recompute import is_recomputing
from ctvr.methods.layers.expert_usage import UsageCounter
from ctvr.methods.layers.experts import Router, RoutingRecorder, TaskAwareExperts, top_k_gates
from ctvr.methods.layers.precision import in_autocast

GROUPS = (("q", "k", "v"), ("out",))  # projections of a text block with the same input


class RouterStack:
    """Routers of several layers, P per layer, with stacked weights (CTVR, arXiv:2503.10111, eq. 4)."""

    def __init__(self, layers: Sequence[Sequence[Router]], prototype: Tensor | None) -> None:
        first = layers[0][0]
        self.top_k, self.places, self.num_experts = first.top_k, len(layers[0]), len(first.route)
        self.is_noisy = first.noise is not None and first.training
        weights: list[Tensor] = [
            weight
            for layer in layers
            for router in layer
            for weight in ((router.route, router.noise) if self.is_noisy else (router.route,))
            if weight is not None
        ]
        whole = in_autocast(torch.stack(weights)).unflatten(0, (len(layers), -1)).flatten(1, 2)  # (layers, P.E, D)
        self.weights, self.numbers = whole.unbind(), torch.arange(self.num_experts, device=whole.device)
        # R (u + p) = R u + R p, so the prototype p needs one product for all layers
        self.shifts = [None] * len(layers) if prototype is None else (whole @ in_autocast(prototype)).unbind()

    def gates(self, layer: int, u: Tensor, eps: Tensor | None = None) -> Tensor:
        """Compute gates (B, P, E) float32 from router inputs u (B, D); `eps` (P, B, E) is the noise of a training step.

        The softmax includes only the `top_k` largest logits of a row; the other gates are 0.
        """
        read = F.linear(u, self.weights[layer], self.shifts[layer]).float()
        parts = read.unflatten(-1, (self.places, -1, self.num_experts)).unbind(2)
        logits = parts[0]
        if self.is_noisy and eps is not None:
            logits = torch.addcmul(logits, eps.transpose(0, 1), F.softplus(parts[1]) + 0.01)
        return top_k_gates(logits, self.top_k, self.numbers)


class AdapterGroup:
    """Base class of a group: in each layer, the P adapters that read the same input. Each forward pass has new groups.

    A block calls the group at its hook point `qkv` or `out`. A subclass sets `experts`: for each layer, the P modules
    that record how much each expert is used.
    """

    experts: Sequence[Sequence[UsageCounter]]

    def __init__(
        self, layers: Sequence[Sequence[nn.Module]], routers: RouterStack | None, num_experts: int, dropout: float
    ) -> None:
        self.routers, self.num_experts, self.places = routers, num_experts, len(layers[0])
        self.is_training = layers[0][0].training
        self.dropout = dropout if self.is_training else 0.0
        self._gates: dict[int, Tensor] = {}
        self._rows: Tensor | None = None  # indices of the captions

    def __call__(self, layer: int, x: Tensor, projected: Tensor, state: TokenState) -> Tensor:
        """Add the outputs of the adapters for x (B, L, D) to the frozen projections (B, L, P * O).

        Gates are computed from the end-of-text token, whose position is `state.eot`.
        """
        assert state.eot is not None, "experts read the end-of-text token: use them in a text tower"
        x = in_autocast(x)
        eps, keep = self._draw(x)
        gates = self.gates(layer, x, state.eot, eps)
        self._record(layer, gates)
        added = self.delta(layer, x.expand(self.places, *x.shape) if keep is None else x * keep, gates)
        return (projected.unflatten(-1, (self.places, -1)) + added.permute(1, 2, 0, 3)).flatten(2)

    def gates(self, layer: int, x: Tensor, eot: Tensor, eps: Tensor | None = None) -> Tensor:
        """Compute gates (B, P, E) of captions x (B, L, D); without routers, expert 0 has gate 1 and the others 0."""
        if self.routers is None:
            alone = torch.arange(self.num_experts, device=x.device) == 0
            return alone.float().expand(len(x), self.places, -1)
        if self._rows is None or len(self._rows) != len(x):
            self._rows = torch.arange(len(x), device=x.device)
        return self.routers.gates(layer, x[self._rows, eot], eps)

    def delta(self, layer: int, x: Tensor, gates: Tensor) -> Tensor:
        """Compute the outputs (P, B, L, O) of the adapters from inputs x (P, B, L, D).

        In training, dropout has set inputs to zero without scaling the others, so `delta` includes 1 / (1 - dropout).
        """
        raise NotImplementedError(f"{type(self).__name__} does not declare what its experts compute")

    @torch.no_grad()
    def _draw(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Draw the router noise (P, B, E) and the dropout mask (P, B, L, D), 1 or 0; each is None if it is not used."""
        is_noisy = self.routers is not None and self.routers.is_noisy
        eps = x.new_empty(self.places, len(x), self.num_experts, dtype=torch.float32) if is_noisy else None
        keep = x.new_empty(self.places, *x.shape) if self.dropout else None
        for place in range(self.places):
            if eps is not None:
                eps[place].normal_()
            if keep is not None:
                keep[place].bernoulli_(1 - self.dropout)
        return eps, keep

    def _record(self, layer: int, gates: Tensor) -> None:
        """Store a layer's gates; after the last layer, record for all layers which experts were used."""
        is_counted, is_noted = self.is_training and not is_recomputing(), torch.is_grad_enabled()
        if not (is_counted or is_noted):
            return
        self._gates[layer] = gates.detach()
        if len(self._gates) < len(self.experts):
            return
        whole = torch.stack([self._gates[layer] for layer in range(len(self.experts))])  # (layers, B, P, E)
        self._gates.clear()
        sums, chosen = whole.sum(dim=1), (whole > 0).any(dim=1)
        for i, row in enumerate(self.experts):
            for j, each in enumerate(row):
                if is_counted:
                    each.count(sums[i, j])
                if is_noted and isinstance(each, RoutingRecorder):
                    each.note(chosen[i, j])


class SharedExpertGroup(AdapterGroup):
    """Group of task-aware experts that share one A (TAME, eq. 4-6): scale * sum_i w_i B_i A x.

    The experts of a caption are merged into one matrix sum_i w_i B_i, which is then applied to all its tokens.
    `drop_unchosen` removes the zero gradient of an expert that no caption of the step chose. The optimizer then neither
    updates nor decays that expert, as in the released code.
    """

    def __init__(
        self, layers: Sequence[Sequence[TaskAwareExperts]], prototype: Tensor | None = None, is_routed: bool = True
    ) -> None:
        """Stack the parameters of all layers.

        Args:
            layers: the P adapters of each layer.
            prototype: (D,) prototype of the task whose videos are searched; None adds no prototype.
            is_routed: whether routers weight the experts. If not, or if the adapters lack routers, only expert 0 acts.
        """
        flat = [adapter.experts for layer in layers for adapter in layer]
        routers = [[adapter.router for adapter in layer if adapter.router is not None] for layer in layers]
        stack = RouterStack(routers, prototype) if is_routed and routers[0] else None
        super().__init__(layers, stack, len(flat[0].B), flat[0].dropout)
        shape = (len(layers), self.places)
        self.experts = [flat[start : start + self.places] for start in range(0, len(flat), self.places)]
        down = torch.stack([each.A for each in flat]) * (flat[0].scale / (1 - self.dropout))
        up = torch.stack([b for each in flat for b in (list(each.B) if stack else [each.B[0]])])
        self.down = in_autocast(down).unflatten(0, shape).unbind()  # (P, r, D) for each layer
        self.up = in_autocast(up).unflatten(0, (*shape, -1)).unbind()  # (P, E, O, r), where E is 1 without routers

    def delta(self, layer: int, x: Tensor, gates: Tensor) -> Tensor:
        up = self.up[layer]
        places, captions, tokens, _ = x.shape
        down = torch.bmm(x.flatten(1, 2), self.down[layer].mT)  # (P, B * L, r)
        if self.routers is None:
            return torch.bmm(down, up[:, 0].mT).unflatten(1, (captions, tokens))
        merged = torch.bmm(gates.transpose(0, 1).to(up.dtype), up.flatten(2))  # (P, B, O * r)
        merged = merged.view(places * captions, *up.shape[2:])
        return torch.bmm(down.view(places * captions, tokens, -1), merged.mT).unflatten(0, (places, captions))


def group_seams(blocks: nn.ModuleList, make: Callable[[Sequence[Sequence[Any]]], AdapterGroup]) -> list[BlockSeams]:
    """Return one `BlockSeams` per text block that applies its adapters at q, k, v and out.

    The hook functions hold copies of the parameters, so build new ones after each optimizer step.

    Args:
        blocks: the adapters of each block, by the names in `PLACES` (experts.py).
        make: builds a group from the P adapters of each layer.
    """
    layers: list[Any] = list(blocks)
    qkv, out = (make([[block[place] for place in group] for block in layers]) for group in GROUPS)
    return [BlockSeams(qkv=partial(qkv, layer), out=partial(out, layer), by_token=True) for layer in range(len(layers))]


def expert_seams(blocks: nn.ModuleList, prototype: Tensor | None, is_routed: bool) -> list[BlockSeams]:
    """Return one `BlockSeams` per text block that applies its task-aware experts; see `group_seams`.

    Args:
        blocks: a `TaskAwareExperts` for each projection of each block.
        prototype: see `SharedExpertGroup`.
        is_routed: see `SharedExpertGroup`.
    """
    return group_seams(blocks, partial(SharedExpertGroup, prototype=prototype, is_routed=is_routed))
