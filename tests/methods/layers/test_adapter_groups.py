"""Adapters that are computed together equal the same adapters computed one by one, expert by expert."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import BlockSeams, Seams, TokenState
from ctvr.methods.backbone.clip import TextTower
from ctvr.methods.backbone.recompute import checkpointing
from ctvr.methods.layers.adapter_groups import expert_seams, group_seams
from ctvr.methods.layers.experts import PLACES, TaskAwareExperts, drop_unchosen
from ctvr.methods.structalign.adapters import LoRAExpertGroup, LoRAExperts
from tests.methods.conftest import make_batch, make_small_clip

EXPERTS, TOP_K, RANK, SCALE = 5, 2, 4, 4.0
Form = tuple[nn.ModuleList, Tensor | None]  # adapters of all blocks, prototype


@pytest.fixture(scope="module")
def tower() -> TextTower:
    return make_small_clip(2).text.requires_grad_(False)


def task_aware(tower: TextTower, dropout: float, is_noisy: bool = True, has_prototype: bool = True) -> Form:
    def made() -> TaskAwareExperts:
        adapter = TaskAwareExperts(tower.width, tower.width, RANK, SCALE, dropout)
        adapter.grow(EXPERTS, TOP_K, is_noisy)
        return adapter

    prototype = torch.randn(tower.width, requires_grad=True) if has_prototype else None
    return randomised(tower, made), prototype


def separate(tower: TextTower, dropout: float) -> Form:
    width = tower.width
    return randomised(tower, lambda: LoRAExperts(EXPERTS, TOP_K, RANK, SCALE * RANK, width, width, dropout)), None


def randomised(tower: TextTower, made: Callable[[], nn.Module]) -> nn.ModuleList:
    blocks = nn.ModuleList(nn.ModuleDict({place: made() for place in PLACES}) for _ in tower.blocks)
    for parameter in blocks.parameters():
        nn.init.normal_(parameter, std=0.1)
    return blocks.train()


def one_by_one(form: Form) -> Seams:
    blocks: Any = form[0]
    return [
        BlockSeams(**{place: partial(add_expert_by_expert, block[place], form[1]) for place in PLACES})
        for block in blocks
    ]


def add_expert_by_expert(
    adapter: Any, prototype: Tensor | None, x: Tensor, projected: Tensor, state: TokenState
) -> Tensor:
    """Add gate_i scale B_i A_i x of the chosen experts to each caption; noise is drawn before dropout."""
    shared = isinstance(adapter, TaskAwareExperts)
    holder = adapter.experts if shared else adapter
    u = torch.stack([row[end] for row, end in zip(x, state.eot)])
    u = u if prototype is None else u + prototype
    logits = u @ adapter.router.route.mT
    if adapter.router.noise is not None:
        logits = logits + torch.randn_like(logits) * (F.softplus(u @ adapter.router.noise.mT) + 0.01)
    x = F.dropout(x, holder.dropout, adapter.training)
    rows = []
    for caption in range(len(x)):
        best, chosen = logits[caption].topk(TOP_K)
        row = projected[caption]
        for gate, i in zip(best.softmax(dim=0), chosen.tolist()):
            row = row + SCALE * gate * (x[caption] @ (holder.A if shared else holder.A[i]).mT @ holder.B[i].mT)
        rows.append(row)
    return torch.stack(rows)


def together(form: Form) -> Seams:
    if form[1] is None and isinstance(form[0][0]["q"], LoRAExperts):  # type: ignore[index]
        return group_seams(form[0], LoRAExpertGroup)
    return expert_seams(form[0], form[1], is_routed=True)


def step(tower: TextTower, form: Form, seams: Seams) -> tuple[Tensor, dict[str, Tensor | None], Tensor]:
    """Return features, gradients and the next random number."""
    torch.manual_seed(3)
    features = F.normalize(tower(make_batch(6).tokens, seams), dim=-1)
    parameters = dict(form[0].named_parameters()) | ({} if form[1] is None else {"prototype": form[1]})
    for parameter in parameters.values():
        parameter.grad = None
    (features @ torch.randn(features.shape[1], generator=torch.Generator().manual_seed(0))).square().sum().backward()
    drop_unchosen(form[0])
    return features.detach(), {name: parameter.grad for name, parameter in parameters.items()}, torch.rand(3)


def differences(found: tuple[Any, ...], expected: tuple[Any, ...]) -> Iterator[float]:
    """Yield the largest difference of each tensor over its largest value."""
    assert torch.equal(found[2], expected[2]), "other random numbers were drawn"
    for name, gradient in expected[1].items():
        other = found[1][name]
        assert (other is None) == (gradient is None), name
        if gradient is not None:
            yield float((other - gradient).abs().max() / gradient.abs().max())
    yield float((found[0] - expected[0]).abs().max() / expected[0].abs().max())


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "make",
    [
        task_aware,
        partial(task_aware, is_noisy=False),
        partial(task_aware, has_prototype=False),
        separate,
    ],
    ids=["task_aware", "no noise", "no prototype", "separate"],
)
def test_a_step_equals_that_of_adapters_one_by_one(tower: TextTower, make: Callable[..., Form], dropout: float) -> None:
    torch.manual_seed(0)
    form = make(tower, dropout)
    expected = step(tower, form, one_by_one(form))
    largest = max(differences(step(tower, form, together(form)), expected))
    assert largest < 4e-6
    if make is not separate:
        assert any(gradient is None for gradient in expected[1].values())


def test_activations_that_are_computed_again_give_the_same_gradients(tower: TextTower) -> None:
    torch.manual_seed(0)
    form = task_aware(tower, 0.1)
    expected = step(tower, form, together(form))
    with checkpointing():
        found = step(tower, form, together(form))
    largest = max(differences(found, expected))
    assert largest == 0


def test_experts_use_is_counted_once_a_pass(tower: TextTower) -> None:
    torch.manual_seed(0)
    blocks, prototype = task_aware(tower, 0.0)
    with checkpointing():
        step(tower, (blocks, prototype), expert_seams(blocks, prototype, is_routed=True))
    sums = [adapter.experts.counted.sum() for block in blocks for adapter in block.values()]  # type: ignore
    torch.testing.assert_close(torch.stack(sums), torch.full((len(sums),), 6.0))
