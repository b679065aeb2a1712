import pytest
import torch

from ctvr.methods.backbone.clip import BlockSeams
from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.moe_adapter import SCALE, Mixture, MoEAdapter, MoEAdapterConfig
from tests.methods.conftest import make_batch, make_task
from tests.methods.steps import train_stream, train_task

SMALL = {"num_experts": 5, "bottleneck": 4}


def make(clip, is_random=False, tasks=3, **settings):
    torch.manual_seed(0)
    method = MoEAdapter(MoEAdapterConfig(**{**SMALL, **settings}), clip)
    method.begin_task(make_task(0, tasks))
    if is_random:
        for mixture in method.mixtures:
            for parameter in mixture.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
    return method.eval()


@pytest.fixture
def mixture():
    torch.manual_seed(0)
    mixture = Mixture(8, MoEAdapterConfig(**SMALL))
    mixture.add_routers(2)
    for parameter in mixture.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return mixture.eval()


def test_a_fresh_model_is_clip_whatever_the_gates(small_clip):
    method, batch = make(small_clip), make_batch()
    all_tokens = [*[None] * 3, BlockSeams(after=lambda x, state: x)]
    assert torch.equal(method.encode_video(batch.frames), mean_pool(small_clip.vision(batch.frames, all_tokens)))
    assert torch.equal(method.encode_text(batch.tokens), l2_normalize(small_clip.text(batch.tokens)))
    for mixture in method.mixtures:
        for router in mixture.routers:
            assert not router.route.any()
            assert not router.noise.any()
            router.route.data.normal_()
    assert torch.equal(method.encode_video(batch.frames), mean_pool(small_clip.vision(batch.frames, all_tokens)))


@pytest.mark.parametrize("is_training", [False, True])
def test_gates_have_k_non_zeros_that_sum_to_one(mixture, is_training):
    gates = mixture.train(is_training).gates(torch.randn(6, 8), 1)
    assert ((gates > 0).sum(dim=1) == 2).all()
    torch.testing.assert_close(gates.sum(dim=1), torch.ones(6))


def test_the_mixture_is_the_gated_sum_of_its_experts(mixture):
    h, gates = torch.randn(6, 4, 8), mixture.gates(torch.randn(6, 8), 0)
    expected = torch.zeros_like(h)
    for e, expert in enumerate(mixture.experts):
        answer = SCALE * (
            torch.relu(h @ expert.down.weight.mT + expert.down.bias) @ expert.up.weight.mT + expert.up.bias
        )
        expected += gates[:, e, None, None] * answer
    torch.testing.assert_close(mixture(h, gates), expected)


def test_choosing_all_experts_is_the_dense_mixture():
    torch.manual_seed(0)
    mixture = Mixture(8, MoEAdapterConfig(num_experts=3, top_k=3, bottleneck=4)).eval()
    mixture.add_routers(1)
    mixture.routers[0].route.data.normal_()
    c = torch.randn(4, 8)
    torch.testing.assert_close(mixture.gates(c, 0), (c @ mixture.routers[0].route.mT).softmax(dim=-1))


def test_a_block_adds_the_answer_to_the_tokens_after_attention(small_clip):
    method = make(small_clip, is_random=True)
    tower, frames = small_clip.vision, make_batch(pairs=2).frames
    x, state = tower.embed(frames)
    for block, mixture in zip(tower.blocks, method.vision):
        h = x + block.attn(block.ln_1(x), seams=_no_seams(), state=state)[0]
        c = h[:, 0].view(2, 3, -1).mean(dim=1)  # over the frames' class tokens
        gates = mixture.gates(c, 0).repeat_interleave(3, dim=0)
        x = h + block.mlp(block.ln_2(h)) + mixture(h, gates)
    expected = mean_pool(tower.read(x[:, 0]).view(2, 3, -1))
    torch.testing.assert_close(method.encode_video(frames), expected, rtol=1e-4, atol=1e-5)


def _no_seams():
    from ctvr.methods.backbone.clip import BlockSeams

    return BlockSeams()


def caption_gates(method, tokens, monkeypatch):
    seen = []
    gates = Mixture.gates
    monkeypatch.setattr(Mixture, "gates", lambda self, c, task: seen.append(gates(self, c, task)) or seen[-1])
    method.encode_text(tokens)
    return seen


def test_gates_differ_by_caption_at_the_end_token_only(small_clip, monkeypatch):
    for gate, is_same in (("sot", True), ("eot", False)):
        method = make(small_clip, is_random=True, text_gate=gate)
        for row in caption_gates(method, make_batch().tokens, monkeypatch)[-4:]:
            assert torch.allclose(row, row[:1].expand_as(row), atol=1e-5) == is_same


def test_frozen_experts_and_clip_do_not_move_in_later_tasks(small_clip):
    method = make(small_clip, lr=1.0)
    clip = {name: value.clone() for name, value in small_clip.state_dict().items()}
    train_stream(method, tasks=1)
    assert all(int(mixture.frozen.sum()) == 2 for mixture in method.mixtures)
    kept = [
        (p, p.detach().clone())
        for m in method.mixtures
        for e, is_frozen in zip(m.experts, m.frozen)
        if is_frozen
        for p in e.parameters()
    ]
    kept += [(p, p.detach().clone()) for m in method.mixtures for p in m.routers[0].parameters()]
    train_task(method, make_task(1), [make_batch(4, 2, seed=i) for i in range(4)])
    assert all(torch.equal(p, before) for p, before in kept)
    assert all(torch.equal(value, clip[name]) for name, value in small_clip.state_dict().items())


def test_a_task_keeps_the_experts_that_it_used_most(mixture):
    mixture.used = torch.tensor([1, 7, 0, 9, 7])
    mixture.freeze_most_used()
    assert mixture.frozen.tolist() == [False, True, False, True, False]
    mixture.used = torch.tensor([0, 0, 5, 9, 0])
    mixture.freeze_most_used()
    assert mixture.frozen.tolist() == [False, True, True, True, False]  # expert 3 again counts as its own


def test_ties_keep_the_lower_experts_and_unused_ones_are_not_kept(mixture):
    mixture.used = torch.tensor([0, 7, 7, 7, 0])
    mixture.freeze_most_used()
    assert mixture.frozen.tolist() == [False, True, True, False, False]
    mixture.frozen.zero_()
    mixture.used = torch.tensor([0, 0, 0, 0, 3])
    mixture.freeze_most_used()
    assert mixture.frozen.tolist() == [False, False, False, False, True]


def test_only_free_experts_and_the_tasks_own_router_are_trained(small_clip):
    method = make(small_clip)
    method.mixtures[0].frozen[1] = True
    method.begin_task(make_task(2))
    ids = {id(p) for group in method.param_groups() for p in group["params"]}
    first = method.mixtures[0]
    assert {id(p) for p in first.experts[0].parameters()} <= ids
    assert not {id(p) for p in first.experts[1].parameters()} & ids
    assert {id(p) for p in first.routers[2].parameters()} <= ids
    assert not {id(p) for p in first.routers[0].parameters()} & ids
    assert not {id(p) for p in small_clip.parameters()} & ids


def test_a_caption_takes_the_router_of_the_task_that_it_searches(small_clip):
    tokens = make_batch().tokens
    method = make(small_clip, is_random=True)
    assert method.declared.task_conditioned_text
    first = method.encode_text(tokens, 0)
    method.begin_task(make_task(1))
    assert torch.equal(method.encode_text(tokens, 0), first)  # nothing that router 0 uses has moved
    assert not torch.equal(method.encode_text(tokens, 1), first)
    last = make(small_clip, is_random=True, query_router="last")
    last.begin_task(make_task(1))
    assert not last.declared.task_conditioned_text
    assert torch.equal(last.encode_text(tokens, 0), last.encode_text(tokens, None))


@pytest.mark.parametrize(("tasks", "total"), [(10, 50_383_872), (11, 51_059_712), (20, 57_142_272)])
def test_the_added_parameters_are_these(tasks, total):
    with torch.device("meta"):
        towers = [Mixture(width, MoEAdapterConfig()) for width in (768, 512)]
        for mixture in towers:
            mixture.add_routers(tasks)
    assert 12 * sum(p.numel() for mixture in towers for p in mixture.parameters()) == total


def test_training_counts_who_was_chosen_and_evaluation_does_not(mixture):
    mixture.eval().gates(torch.randn(6, mixture.width), 0)
    assert not mixture.used.any()
    torch.manual_seed(0)
    gates = mixture.train().gates(torch.randn(6, mixture.width), 0)
    assert mixture.used.tolist() == [int((column > 0).sum()) for column in gates.T]
    assert int(mixture.used.sum()) == 6 * mixture.config.top_k
