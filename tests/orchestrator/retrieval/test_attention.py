"""Pictures of a model show its own attention, the tokens that it merges, and its scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ctvr.methods import find_method
from ctvr.methods.backbone.clip import BlockSeams
from ctvr.methods.layers.temporal import FrameFusion
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.learning.evaluation.cost import video_cost
from ctvr.orchestrator.retrieval.attention import attention_maps, enlarged, expert_weights, merges, score_matrices
from ctvr.orchestrator.retrieval.model import Model
from tests.methods.conftest import reducer_config
from tests.refusing import refuses


def model_of(learned, name: str) -> Model:
    return load(name, ExecutionConfig(runs=learned))


def with_method(model: Model, name: str, **settings) -> Model:
    """Return a model with the same streams and an untrained method of that name."""
    cls = find_method(name)
    method = cls(cls.Config(**settings), model.trained.method if cls.wraps else model.trained.clip).eval()
    return replace(model, trained=replace(model.trained, method=method))


@pytest.fixture(scope="module")
def zero_shot(learned) -> Model:
    return model_of(learned, "zero_shot")


@pytest.fixture(scope="module")
def items(zero_shot):
    return zero_shot.gallery()[-1].items[:3]


@pytest.mark.parametrize(("gates", "names"), [("single", ["sentence"]), ("multi", ["sentence", "entity", "action"])])
def test_expert_weights_are_those_by_which_the_gate_mixes(zero_shot, items, gates, names):
    model = with_method(zero_shot, "camoe", gates=gates)
    method = model.trained.method
    torch.manual_seed(0)
    for gate in method.gates.values():
        torch.nn.init.normal_(gate.project.weight)  # zero at first: equal weights
    pictures, found = expert_weights(model, items)
    assert list(found) == names
    assert len(pictures) == len(items)
    frames = torch.cat(list(model.frames_of(items)))
    with torch.no_grad():
        x = method.backbone.vision(frames).float()
        experts = torch.stack([method.experts[name](x) for name in ("sentence", "entity", "action")], dim=1)
        weights = torch.tensor(list(found["sentence"].values())).T
        mixed = (weights[..., None] * experts).sum(dim=1)
        torch.testing.assert_close(mixed, method.views(frames)["sentence"], rtol=1e-4, atol=1e-5)
    assert len(weights.unique(dim=0)) == len(items)


@pytest.mark.parametrize("block", [1, 4])
def test_attention_within_frames_is_the_towers_own(zero_shot, items, block):
    found = attention_maps(zero_shot, items, block)
    rows = []

    def between(x, attended, state):
        rows.append(attended.class_row)
        return x

    seams = [None] * 4
    seams[block - 1] = BlockSeams(between=between, wants_class_row=True)
    zero_shot.trained.clip.vision(torch.cat(list(zero_shot.frames_of(items))), seams)
    torch.testing.assert_close(found.spatial.flatten(0, 1), rows[0][:, 1:].detach(), rtol=1e-4, atol=1e-6)
    assert found.temporal is None
    assert (found.block, found.rows) == (block - 1, 4)


def test_frames_are_drawn_as_they_were_decoded(zero_shot, items):
    found = attention_maps(zero_shot, items)
    source = zero_shot.data(items).frames
    assert np.array_equal(found.frames.numpy(), np.stack([source.load(item) for item in items]))


def test_queries_of_attention_between_frames_are_the_neighbours(learned, items, monkeypatch):
    model = model_of(learned, "framefusion_moe")
    fusions = [each for each in model.trained.method.modules() if isinstance(each, FrameFusion)]
    found = attention_maps(model, items)
    assert found.block == 3
    assert found.temporal.shape == found.spatial.shape == (3, found.frames.shape[1], 16)
    last = fusions[-1].attention
    with torch.no_grad():
        last.q.bias.zero_()
        last.q.weight.zero_()  # nothing is asked: every token alike
    torch.testing.assert_close(attention_maps(model, items, 4).temporal, torch.full_like(found.temporal, 1 / 17))
    still = torch.cat(list(model.frames_of(items)))[:, :1].expand(-1, found.frames.shape[1], -1, -1, -1)
    monkeypatch.setattr(Model, "frames_of", lambda self, items: iter([still]))
    maps = attention_maps(model, items, 2).temporal
    torch.testing.assert_close(maps, maps[:, :1].expand_as(maps))  # every neighbor is the frame itself


@pytest.mark.parametrize("block", [1, 2])  # one fuses with the frame before, the other with the frame after
def test_attention_between_frames_is_that_of_the_papers_equation(learned, items, monkeypatch, block):
    model = model_of(learned, "framefusion_moe")
    fusion = [each for each in model.trained.method.modules() if isinstance(each, FrameFusion)][block - 1]
    size = next(model.frames_of(items)).shape[2:]
    frames = torch.randn(3, 4, *size, generator=torch.Generator().manual_seed(0))  # unlike each other
    monkeypatch.setattr(Model, "frames_of", lambda self, items: iter([frames]))
    seen = []
    fusion.register_forward_pre_hook(lambda module, given: seen.append(given[0].unflatten(0, (3, 4))))
    found = attention_maps(model, items, block).temporal
    frames_y, heads = seen[0].double(), fusion.attention.heads
    step = {"previous": -1, "next": 1}[fusion.direction]
    for video, t in [(0, 1), (2, 2), (1, 0), (1, 3)]:
        beside = min(max(t + step, 0), 3)  # a border frame is its own neighbor
        asks, answers = (
            F.linear(y, layer.weight.double(), layer.bias.double()).chunk(heads, dim=-1)
            for y, layer in (
                (frames_y[video, beside, :1], fusion.attention.q),
                (frames_y[video, t], fusion.attention.k),
            )
        )
        rows = [torch.softmax(q @ k.T / k.shape[-1] ** 0.5, dim=-1)[0] for q, k in zip(asks, answers)]
        torch.testing.assert_close(found[video, t], torch.stack(rows).mean(0)[1:].float(), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found[:, 1], found[:, 2], atol=1e-3)


@pytest.mark.parametrize("settings", [reducer_config("tome", r=3), reducer_config("tempme", num_frames=4)])
def test_as_many_tokens_are_drawn_as_leave_the_tower(zero_shot, items, settings, monkeypatch):
    model = with_method(zero_shot, "lora", reducer=settings)
    frames = torch.cat(list(zero_shot.frames_of(items)))[:, [0, 0, 0, 0]]
    monkeypatch.setattr(Model, "frames_of", lambda self, items: iter([frames]))
    found = merges(model, items)
    cost = video_cost(model.trained.method, frames)
    for tokens in found.tokens:
        assert len(tokens.unique()) == cost.tokens_out - 4  # one class token for each frame
    apart = [set(tokens.flatten().tolist()) for tokens in found.tokens]
    assert not apart[0] & apart[1], "videos share no token"


def test_scores_are_those_of_the_search(zero_shot):
    model = with_method(zero_shot, "dsl")
    plain, calibrated, names = score_matrices(model, 2)
    block = zero_shot.gallery()[-1]
    assert names == [item.video for item in block.items[:2]]
    texts = zero_shot.encode_text([item.captions[0] for item in block.items[:2]])
    torch.testing.assert_close(plain, texts @ block.features[:2].mT, rtol=1e-4, atol=1e-5)
    assert torch.equal(calibrated, model.trained.method.normalize_scores(plain).float())
    assert not torch.allclose(calibrated / calibrated.max(), plain / plain.max(), atol=1e-3)


def test_what_a_model_does_not_do_is_one_line(zero_shot, items):
    with refuses("--block", "1", "4", "5", where="plot"):
        attention_maps(zero_shot, items, 5)
    with refuses("zero_shot"):
        merges(zero_shot, items)
    with refuses("zero_shot"):
        score_matrices(zero_shot, 3)
    with refuses("dsl", "camoe"):  # one of several is made
        score_matrices(with_method(zero_shot, "structalign"), 3)
    with refuses("--block", "framefusion_moe"):
        attention_maps(with_method(zero_shot, "clip_vip"), items)
    with refuses("--block", 4):
        attention_maps(with_method(zero_shot, "lora", reducer=reducer_config("tome", r=3)), items)


def test_a_map_is_enlarged_between_0_and_1_and_keeps_its_place():
    maps = torch.zeros(1, 2, 16)
    maps[0, 0, 5] = 1
    large = enlarged(maps, 4, 64)
    assert large.shape == (1, 2, 64, 64)
    assert large.amin() == 0
    assert large[0, 0].argmax() // 64 in range(16, 32)
    assert large[0, 0].argmax() % 64 in range(16, 32)
    assert not large[0, 1].any()
