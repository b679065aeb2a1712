from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.clip import TokenState
from ctvr.methods.layers.adapter_groups import SharedExpertGroup
from ctvr.methods.layers.experts import Router, TaskAwareExperts, drop_unchosen, top_k_gates

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


def apply(adapter, x, eot, prototype=None, is_routed=True):
    """Return what an adapter adds to captions x."""
    group = SharedExpertGroup([[adapter]], prototype, is_routed)
    width = adapter.experts.B[0].shape[0]
    return group(0, x, torch.zeros(*x.shape[:2], width), TokenState(len(x), eot=eot))


def gates_of(adapter, x, eot, prototype=None, eps=None):
    group = SharedExpertGroup([[adapter]], prototype)
    return group.gates(0, x, eot, None if eps is None else eps[None])[:, 0]


def weigh(adapter, x, gates):
    """Return the outputs of experts with given gates (B, E)."""
    return SharedExpertGroup([[adapter]]).delta(0, x[None], gates[:, None])[0]


def answer(adapter, released, prototype=None, is_routed=True):
    return apply(adapter, released["x"], released["eof"], prototype, is_routed)


def test_gates_and_outputs_equal_the_released_code(compared, adapter, released):
    prototype = released["prototype"]
    for found, name in (
        (gates_of(adapter, released["x"], released["eof"], prototype), "gates_eval"),
        (answer(adapter, released, prototype), "out_eval_task3"),
        (answer(adapter, released, prototype, is_routed=False), "out_eval_task1"),
        (answer(adapter, released), "out_eval_noproto"),
        (answer(adapter, released), "out_task1_noproto"),
    ):
        compared("framefusion_moe", "forward", found, released[name])


def test_noisy_gates_of_a_training_step_equal_the_released_code(compared, adapter, released):
    adapter.train()
    adapter.experts.dropout = 0.0
    gates = gates_of(adapter, released["x"], released["eof"], released["prototype"], released["noise"])
    compared("framefusion_moe", "forward", gates, released["gates_train_noise"])
    compared("framefusion_moe", "forward", weigh(adapter, released["x"], gates), released["out_train_noise_task3"])


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
        return apply(adapter, x, eof, prototype, is_routed)

    adapter.eval()
    compared("structalign", "forward", answer(prototype), released["out_eval"])
    compared("structalign", "forward", answer(prototype, is_routed=False), released["out_task1"])
    compared("structalign", "forward", answer(None), released["out_noproto_eval"])
    gates = gates_of(adapter.train(), x, eof, prototype, released["noise"])
    compared("structalign", "forward", gates, released["gates_train"])
    compared("structalign", "forward", weigh(adapter, x, gates), released["out_train"])


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


@pytest.mark.parametrize("top_k", [1, 3])
def test_ties_are_broken_as_topk_breaks_them(top_k):
    """Gates of equal logits are those of the experts that `topk` names, and no more."""
    logits = torch.tensor([[1.0, 1, 1, 1, 1], [0, 2, 2, 2, 1], [3, 3, 0, 3, 3]])
    best, chosen = logits.topk(top_k, dim=-1)
    expected = torch.zeros_like(logits).scatter(1, chosen, best.softmax(dim=-1))
    torch.testing.assert_close(top_k_gates(logits, top_k), expected)


def random_adapter(num_experts=6):
    adapter = TaskAwareExperts(8, 5, rank=3, scale=2.0)
    adapter.grow(num_experts, 2)
    for b in adapter.experts.B:
        b.data.normal_()
    return adapter


def test_equation_5_with_a_loop():
    adapter, x, gates = random_adapter(), torch.randn(4, 7, 8), Router(8, 6, 2).eval()(torch.randn(4, 8))
    expected = torch.zeros(4, 7, 5)
    for caption in range(4):
        for i in gates[caption].nonzero()[:, 0]:
            expected[caption] += 2.0 * gates[caption, i] * (x[caption] @ adapter.experts.A.mT @ adapter.experts.B[i].mT)
    torch.testing.assert_close(weigh(adapter, x, gates), expected)
    with torch.no_grad():
        torch.testing.assert_close(weigh(adapter, x, gates), expected)


def test_an_unselected_expert_has_no_gradient_and_no_decay(monkeypatch):
    adapter, x = random_adapter(), torch.randn(2, 7, 8)
    before = [b.detach().clone() for b in adapter.experts.B]
    gates = torch.tensor([[0.4, 0, 0.6, 0, 0, 0], [0, 0, 0.5, 0.5, 0, 0]])
    monkeypatch.setattr(SharedExpertGroup, "gates", lambda *given: gates[:, None])
    apply(adapter, x, torch.tensor([1, 2])).square().sum().backward()
    drop_unchosen(adapter)
    assert [i for i, b in enumerate(adapter.experts.B) if b.grad is not None] == [0, 2, 3]
    torch.optim.AdamW(adapter.experts.parameters(), lr=0.1, weight_decay=0.2).step()
    assert [i for i, b in enumerate(adapter.experts.B) if not torch.equal(b, before[i])] == [0, 2, 3]


def test_the_prototype_moves_the_gates_and_learns_from_them():
    adapter = grown(8, 8, top_k=3)
    for b in adapter.experts.B:
        b.data.normal_()
    x, eot, prototype = torch.randn(3, 5, 8), torch.tensor([1, 2, 4]), torch.randn(8, requires_grad=True)
    assert not torch.equal(gates_of(adapter.eval(), x, eot), gates_of(adapter, x, eot, prototype))
    apply(adapter, x, eot, prototype).square().sum().backward()
    assert prototype.grad.abs().max() > 0


def test_the_router_reads_the_end_of_text_token_alone():
    adapter = grown(8, 8, top_k=2).eval()
    x, eot = torch.randn(3, 5, 8), torch.tensor([1, 2, 3])
    changed = x.clone()
    changed[:, 0] += 1
    changed[:, 4] += 1
    assert torch.equal(gates_of(adapter, x, eot), gates_of(adapter, changed, eot))


def test_experts_grow_as_copies_of_the_first_without_a_router():
    adapter = TaskAwareExperts(8, 8, rank=4, scale=4.0)
    adapter.experts.B[0].data.normal_()
    x, eot = torch.randn(3, 5, 8), torch.tensor([1, 2, 4])
    alone = apply(adapter, x, eot)
    adapter.grow(4, 2)
    assert len(adapter.experts.B) == 4
    assert all(torch.equal(b, adapter.experts.B[0]) for b in adapter.experts.B)
    torch.testing.assert_close(apply(adapter.eval(), x, eot), alone)
