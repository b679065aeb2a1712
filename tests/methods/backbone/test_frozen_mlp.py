"""The MLP of a block that nothing trains: as its layers one after another, and out of the way where it may not be."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from ctvr.methods.backbone.frozen_mlp import pass_mlp
from ctvr.methods.backbone.quick_gelu import QuickGELU


def clips_mlp(width: int = 24) -> nn.Sequential:
    torch.manual_seed(0)
    layers = OrderedDict(c_fc=nn.Linear(width, 96), gelu=QuickGELU(), c_proj=nn.Linear(96, width))
    return nn.Sequential(layers).requires_grad_(False)


def passed(mlp: nn.Module, x: Tensor, gradient: Tensor, by_layers: bool) -> tuple[Tensor, Tensor | None]:
    x = x.clone().requires_grad_()
    made = mlp(x) if by_layers else pass_mlp(mlp, x)
    made.backward(gradient)
    return made, x.grad


def saved_by(mlp: nn.Module, x: Tensor) -> list[torch.Size]:
    shapes: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        pass_mlp(mlp, x.clone().requires_grad_())
    return shapes


@pytest.mark.parametrize("shape", [(5, 24), (3, 7, 24)])
def test_values_and_gradients_are_those_of_its_layers_bit_for_bit(shape: tuple[int, ...]) -> None:
    mlp, x, gradient = clips_mlp(), torch.randn(shape), torch.randn(shape)
    before = x.clone(), gradient.clone()
    for one, other in zip(passed(mlp, x, gradient, True), passed(mlp, x, gradient, False), strict=True):
        assert one is not None
        assert other is not None
        assert one.equal(other)
    with torch.no_grad():
        assert pass_mlp(mlp, x).equal(mlp(x))
    assert not pass_mlp(mlp, x).requires_grad
    assert x.equal(before[0])
    assert gradient.equal(before[1])


def test_the_graph_keeps_one_tensor_of_its_width() -> None:
    assert saved_by(clips_mlp(), torch.randn(5, 24)).count(torch.Size((5, 96))) == 1


def test_one_that_trains_or_is_listened_to_passes_its_own_layers() -> None:
    x = torch.randn(5, 24)
    trained = clips_mlp()
    trained.c_proj.weight.requires_grad_(True)  # type: ignore[union-attr, operator]
    pass_mlp(trained, x).sum().backward()
    assert trained.c_proj.weight.grad is not None  # type: ignore[union-attr]
    heard: list[Tensor] = []
    watched = clips_mlp()
    watched.gelu.register_forward_hook(lambda module, inputs, output: heard.append(output))  # type: ignore[union-attr, operator]
    assert pass_mlp(watched, x).equal(clips_mlp()(x))
    assert [each.shape for each in heard] == [(5, 96)]
    replaced = clips_mlp()
    replaced.c_fc.forward = lambda x: torch.zeros(*x.shape[:-1], 96)  # type: ignore[union-attr, method-assign, assignment]
    assert pass_mlp(replaced, x).equal(replaced(x))
    other = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 24)).requires_grad_(False)
    assert pass_mlp(other, x).equal(other(x))


def test_in_bf16_it_is_what_autocast_makes_of_its_layers() -> None:
    mlp, x = clips_mlp(), torch.randn(5, 24)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made, expected = pass_mlp(mlp, ours), mlp(theirs)
    assert made.dtype is torch.bfloat16
    assert made.equal(expected)
    for each in (made, expected):
        each.backward(torch.ones_like(each))
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.equal(theirs.grad)
