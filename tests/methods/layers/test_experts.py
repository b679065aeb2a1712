from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.clip import TokenState
from ctvr.methods.layers.experts import Router, SharedLoRAExperts, TaskAwareExperts

FIXTURE = Path(__file__).parents[1] / "fixtures" / "framefusion_released.npz"


@pytest.fixture(scope="module")
def released():
    """Origin: `lora/*`, one text adapter of the released FrameFusionMoE code, run unmodified on CPU."""
    with np.load(FIXTURE) as file:
        return {
            name.removeprefix("lora/"): torch.from_numpy(file[name]) for name in file.files if name.startswith("lora/")
        }


def grown(in_width, out_width, top_k, dropout=0.0):
    """Return an adapter with ten experts and a router, as from the second task on."""
    adapter = TaskAwareExperts(in_width, out_width, rank=4, scale=4.0, dropout=dropout)
    adapter.grow(10, top_k)
    return adapter


@pytest.fixture
def adapter(released):
    adapter = grown(48, 40, top_k=2, dropout=0.1).eval()
    state = {
        "router.route": released["lora_route.weight"],
        "router.noise": released["w_noise.weight"],
        "experts.A": released["lora_A.weight"],
    }
    state.update({f"experts.B.{i}": released[f"lora_Bs.{i}.weight"] for i in range(10)})
    adapter.load_state_dict(state)
    return adapter


def answer(adapter, released, prototype=None, is_routed=True):
    state = TokenState(5, eot=released["eof"])
    return adapter(released["x"], torch.zeros(5, 7, 40), state, prototype=prototype, is_routed=is_routed)


def test_gates_and_outputs_equal_the_released_code(compared, adapter, released):
    prototype = released["prototype"]
    for found, name in (
        (adapter.gates(released["x"], released["eof"], prototype), "gates_eval"),
        (answer(adapter, released, prototype), "out_eval_task3"),
        (answer(adapter, released, prototype, is_routed=False), "out_eval_task1"),
        (answer(adapter, released), "out_eval_noproto"),
        (answer(adapter, released), "out_task1_noproto"),
    ):
        compared("framefusion_moe", "forward", found, released[name])


def test_noisy_gates_of_a_training_step_equal_the_released_code(compared, adapter, released):
    adapter.train()
    gates = adapter.gates(released["x"], released["eof"], released["prototype"], released["noise"])
    compared("framefusion_moe", "forward", gates, released["gates_train_noise"])
    adapter.experts.dropout = 0.0
    compared("framefusion_moe", "forward", adapter.experts(released["x"], gates), released["out_train_noise_task3"])


def test_structaligns_adapter_is_the_same_and_equals_its_released_one(compared, shared):
    with np.load(shared / "reference" / "structalign" / "lora_adapter.npz") as file:
        released = {name.removeprefix("param/"): torch.from_numpy(file[name]) for name in file.files}
    adapter = TaskAwareExperts(32, 32, rank=4, scale=4.0, dropout=0.0)
    adapter.grow(3, 2)
    names = {"router.route": "lora_route", "router.noise": "w_noise", "experts.A": "lora_A"}
    names |= {f"experts.B.{i}": f"lora_Bs.{i}" for i in range(3)}
    adapter.load_state_dict({ours: released[f"{theirs}.weight"] for ours, theirs in names.items()})
    x, eof, prototype = (released[name] for name in ("x", "eof", "task_prototype"))

    def answer(prototype: torch.Tensor | None, is_routed: bool = True) -> torch.Tensor:
        return adapter(x, torch.zeros(5, 7, 32), TokenState(5, eot=eof), prototype=prototype, is_routed=is_routed)

    adapter.eval()
    compared("structalign", "forward", answer(prototype), released["out_eval"])
    compared("structalign", "forward", answer(prototype, is_routed=False), released["out_task1"])
    compared("structalign", "forward", answer(None), released["out_noproto_eval"])
    gates = adapter.train().gates(x, eof, prototype, released["noise"])
    compared("structalign", "forward", gates, released["gates_train"])
    compared("structalign", "forward", adapter.experts(x, gates), released["out_train"])


@pytest.mark.parametrize("top_k", [1, 2, 10])
@pytest.mark.parametrize("is_training", [True, False])
def test_each_caption_has_exactly_k_gates_that_sum_to_one(top_k, is_training):
    router = Router(8, 10, top_k).train(is_training)
    gates = router(torch.randn(6, 8))
    assert (gates > 0).sum(dim=1).tolist() == [top_k] * 6
    torch.testing.assert_close(gates.sum(dim=1), torch.ones(6))


def test_noise_is_drawn_in_training_only():
    router, u = Router(8, 10, 2), torch.randn(6, 8)
    assert not torch.equal(router.train()(u), router(u))
    assert torch.equal(router.eval()(u), router(u))
    quiet = Router(8, 10, 2, is_noisy=False).train()
    assert torch.equal(quiet(u), quiet(u))


def random_experts(num_experts=6):
    experts = SharedLoRAExperts(8, 5, num_experts, rank=3, scale=2.0)
    for b in experts.B:
        b.data.normal_()
    return experts


def test_equation_5_with_a_loop():
    experts, x, gates = random_experts(), torch.randn(4, 7, 8), Router(8, 6, 2).eval()(torch.randn(4, 8))
    expected = torch.zeros(4, 7, 5)
    for caption in range(4):
        for i in gates[caption].nonzero()[:, 0]:
            expected[caption] += 2.0 * gates[caption, i] * (x[caption] @ experts.A.mT @ experts.B[i].mT)
    torch.testing.assert_close(experts(x, gates), expected)
    with torch.no_grad():
        torch.testing.assert_close(experts(x, gates), expected)


def test_an_unselected_expert_has_no_gradient_and_no_decay():
    experts, x = random_experts(), torch.randn(2, 7, 8)
    before = [b.detach().clone() for b in experts.B]
    gates = torch.tensor([[0.4, 0, 0.6, 0, 0, 0], [0, 0, 0.5, 0.5, 0, 0]])
    experts(x, gates).square().sum().backward()
    torch.optim.AdamW(experts.parameters(), lr=0.1, weight_decay=0.2).step()
    assert [i for i, b in enumerate(experts.B) if not torch.equal(b, before[i])] == [0, 2, 3]


def test_the_prototype_moves_the_gates_and_learns_from_them():
    adapter = grown(8, 8, top_k=3)
    for b in adapter.experts.B:
        b.data.normal_()
    x, eot, prototype = torch.randn(3, 5, 8), torch.tensor([1, 2, 4]), torch.randn(8, requires_grad=True)
    assert not torch.equal(adapter.eval().gates(x, eot, None), adapter.gates(x, eot, prototype))
    adapter(x, torch.zeros(3, 5, 8), TokenState(3, eot=eot), prototype=prototype).square().sum().backward()
    assert prototype.grad.abs().max() > 0


def test_the_router_reads_the_end_of_text_token_alone():
    adapter = grown(8, 8, top_k=2).eval()
    x, eot = torch.randn(3, 5, 8), torch.tensor([1, 2, 3])
    changed = x.clone()
    changed[:, 0] += 1
    changed[:, 4] += 1
    assert torch.equal(adapter.gates(x, eot, None), adapter.gates(changed, eot, None))


def test_experts_grow_as_copies_of_the_first_without_a_router():
    adapter = TaskAwareExperts(8, 8, rank=4, scale=4.0)
    adapter.experts.B[0].data.normal_()
    x, eot = torch.randn(3, 5, 8), torch.tensor([1, 2, 4])
    alone = adapter(x, torch.zeros(3, 5, 8), TokenState(3, eot=eot), is_routed=False)
    with pytest.raises(ValueError, match="grow"):
        adapter.gates(x, eot, None)
    adapter.grow(4, 2)
    assert len(adapter.experts.B) == 4
    assert all(torch.equal(b, adapter.experts.B[0]) for b in adapter.experts.B)
    torch.testing.assert_close(adapter.eval()(x, torch.zeros(3, 5, 8), TokenState(3, eot=eot)), alone)
