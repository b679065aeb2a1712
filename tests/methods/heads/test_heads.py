import copy

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods import find_method
from ctvr.methods.base import l2_normalize
from tests.methods.conftest import make_small_clip, make_task
from tests.methods.vectors import WIDTH, batch, drawn, towers

HEADS = ("head_linear", "head_low_rank", "head_mlp")


def made(name, table, **settings):
    cls = find_method(name)
    torch.manual_seed(0)
    return cls(cls.Config(**settings), towers(table))


def learn(method, frames, steps=5):
    method.begin_task(make_task(0))
    groups = method.param_groups()
    optimizer = torch.optim.AdamW(groups[0]["params"], lr=1e-2, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(method.losses(batch(frames, range(8), 0)).values()).backward()
        optimizer.step()
        method.after_step()
    return method.eval()


@pytest.mark.parametrize("side", ["queries", "videos", "both"])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_starts_as_its_towers_and_moves_its_side_alone(name, side):
    frames, table = drawn()
    method = made(name, table, side=side)
    tokens = torch.arange(10)[:, None]
    weight, center = method.backbone.text.start()
    captions = l2_normalize((l2_normalize(method.backbone.text.vectors(tokens)) - center) @ weight)
    videos = l2_normalize(frames[:10, :, 0].mean(dim=1))
    torch.testing.assert_close(method.encode_text(tokens), captions, rtol=0, atol=1e-6)
    torch.testing.assert_close(method.encode_video(frames[:10]), videos, rtol=0, atol=1e-6)
    before = method.encode_video(frames[:10]), method.encode_text(tokens)
    learn(method, frames)
    assert torch.equal(method.encode_video(frames[:10]), before[0]) == (side == "queries")
    assert torch.equal(method.encode_text(tokens), before[1]) == (side == "videos")


def test_a_linear_head_is_one_matrix_and_a_shift():
    frames, table = drawn()
    method = learn(made("head_linear", table), frames)
    x = l2_normalize(method.backbone.text.vectors(torch.arange(6)[:, None])).double()
    mapped = method.maps["queries"]
    expected = (x - mapped.center.double()) @ mapped.start.double() + x @ mapped.weight.double() + mapped.bias.double()
    found = method.encode_text(torch.arange(6)[:, None]).double()
    torch.testing.assert_close(found, F.normalize(expected, dim=-1), rtol=0, atol=1e-6)


def test_the_addition_of_a_low_rank_head_has_that_rank():
    frames, table = drawn()
    method = learn(made("head_low_rank", table, rank=3), frames)
    mapped = method.maps["queries"]
    assert int(torch.linalg.matrix_rank(mapped.down @ mapped.up)) == 3


@pytest.mark.parametrize("name", HEADS)
def test_a_head_learns_on_clips_own_towers(name, batch):
    cls = find_method(name)
    method = cls(cls.Config(side="both"), make_small_clip())
    clip = copy.deepcopy(method.backbone.state_dict())
    method.begin_task(make_task(0))
    optimizer = torch.optim.AdamW(method.param_groups()[0]["params"], lr=1e-2)
    before = method.losses(batch)["contrastive"].item()
    for _ in range(5):
        optimizer.zero_grad()
        method.losses(batch)["contrastive"].backward()
        optimizer.step()
    assert method.losses(batch)["contrastive"].item() < before
    assert all(torch.equal(v, clip[k]) for k, v in method.backbone.state_dict().items() if k != "logit_scale")


def test_one_width_starts_as_the_identity():
    method = made("head_linear", drawn(text=WIDTH)[1])
    tokens = torch.arange(5)[:, None]
    assert torch.equal(method.encode_text(tokens), l2_normalize(l2_normalize(method.backbone.text.vectors(tokens))))
