"""LoRA experts with separate A and B, StructAlign eqs. 2-3."""

import pytest
import torch

from ctvr.methods.backbone.clip import TokenState
from ctvr.methods.structalign.adapters import LoRAExpertGroup, LoRAExperts


@pytest.fixture
def experts():
    torch.manual_seed(0)
    module = LoRAExperts(4, 2, 3, 6.0, 8, 5)
    torch.nn.init.normal_(module.B)
    return module


@pytest.fixture
def state():
    return TokenState(6, eot=torch.tensor([3, 1, 2, 3, 0, 2]))


def gates_of(experts, x, state):
    return LoRAExpertGroup([[experts]]).gates(0, x, state.eot)[:, 0]


def apply(experts, x, projected, state):
    return LoRAExpertGroup([[experts]])(0, x, projected, state)


def test_fresh_experts_change_nothing(state):
    projected = torch.randn(6, 4, 5)
    assert torch.equal(apply(LoRAExperts(4, 2, 3, 6.0, 8, 5), torch.randn(6, 4, 8), projected, state), projected)


def test_gates_have_k_nonzeros_that_sum_to_one_and_read_the_end_of_text(experts, state):
    x = torch.randn(6, 4, 8)
    gates = gates_of(experts, x, state)
    assert (gates > 0).sum(dim=1).tolist() == [2] * 6
    torch.testing.assert_close(gates.sum(dim=1), torch.ones(6))
    other = torch.randn_like(x)
    rows = torch.arange(6)
    other[rows, state.eot] = x[rows, state.eot]
    assert torch.equal(gates_of(experts, other, state), gates)


def test_the_output_is_the_gated_sum_of_separate_experts(experts, state):
    x, projected = torch.randn(6, 4, 8), torch.randn(6, 4, 5)
    gates = gates_of(experts, x, state)
    expected = projected.clone()
    for b in range(6):
        for i in range(4):
            expected[b] += 2.0 * gates[b, i] * (x[b] @ experts.A[i].T @ experts.B[i].T)
    torch.testing.assert_close(apply(experts, x, projected, state), expected)


def test_the_softmax_runs_over_the_chosen_alone(experts, state):
    x = torch.randn(6, 4, 8)
    logits = x[torch.arange(6), state.eot] @ experts.router.route.T
    best = logits.topk(2, dim=1).values.softmax(dim=1)
    torch.testing.assert_close(gates_of(experts, x, state).sort(dim=1, descending=True).values[:, :2], best)
