"""CLIP's activation, its gradient and the tensors that it stores."""

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.backbone.quick_gelu import QuickGELU


def by_autograd(x: torch.Tensor) -> torch.Tensor:
    return F.silu(1.702 * x) / 1.702


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_values_and_gradients_are_those_of_autograd_bit_for_bit(dtype: torch.dtype, is_transposed: bool) -> None:
    torch.manual_seed(0)
    x, gradient = (4 * torch.randn(33, 65)).to(dtype), torch.randn(33, 65).to(dtype)
    if is_transposed:
        x, gradient = x.mT, gradient.mT
    kept = x.clone(), gradient.clone()
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    made = QuickGELU()(ours)
    expected = by_autograd(theirs)
    made.backward(gradient)
    expected.backward(gradient)
    assert made.equal(expected)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.equal(theirs.grad)
    with torch.no_grad():
        assert QuickGELU()(x).equal(expected)
    assert x.equal(kept[0])
    assert gradient.equal(kept[1])


def test_quick_gelu_equals_x_sigmoid_in_value_and_gradient() -> None:
    x = torch.linspace(-6, 6, 41, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(QuickGELU()(x), x * torch.sigmoid(1.702 * x))
    assert torch.autograd.gradcheck(QuickGELU(), x)


def test_the_graph_keeps_one_tensor() -> None:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    x = torch.randn(8, 16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        QuickGELU()(2 * x)
    assert [tensor.shape for tensor in kept if tensor.shape == x.shape] == [x.shape]
