import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.layers.reduction.merge import plan_bipartite
from ctvr.methods.layers.reduction.reducers import make_reducer
from ctvr.methods.layers.reduction.testa import TemporalAttention, most_frequent, plan_frames
from tests.methods.conftest import reducer_config


def made(clip, **settings):
    return make_reducer(reducer_config("testa", **settings), clip.vision)


def encode(clip, reducer, frames):
    with torch.no_grad():
        return clip.vision(frames, reducer.seams())


def test_equal_votes_count_once_and_ties_go_to_the_smallest_value():
    keys = torch.randn(3, 1, 9, 8)
    voted, alone = plan_frames(keys.expand(3, 5, 9, 8), 3), plan_bipartite(keys[:, 0], 3, protected=0)
    assert torch.equal(voted.target, alone.target)
    values = torch.tensor([[3.0, 1.0], [2.0, 1.0], [3.0, 0.0], [2.0, 4.0]])[None]
    assert most_frequent(values).tolist() == [[2.0, 1.0]]
    assert torch.equal(most_frequent(torch.arange(12.0).reshape(1, 4, 3).flip(1)), torch.arange(3.0)[None])


def test_frames_alike_everywhere_merge_before_those_equal_in_one_place():
    here = torch.eye(6)  # what a place shows in six frames
    here[3] = torch.tensor([0.0, 0.0, 0.9, 0.4, 0.0, 0.0])
    there = here.clone()
    there[1] = there[0]
    assert plan_frames(torch.stack([here, there])[None], 1).moved.tolist() == [[2]]


def test_merging_equal_frames_loses_nothing_and_keeps_embeddings(small_clip):
    """The gate is closed, so only merging could change the result. The order of frames changes, embeddings do not."""
    twins = torch.randn(2, 3, 3, 32, 32).repeat_interleave(2, dim=1)
    reducer = made(small_clip, r=0, stages=(0, 1), r_frames=(2, 1))
    with record_tokens() as states:
        found = encode(small_clip, reducer, twins)
    assert [groups for groups, _, _ in states[0].log] == [4, 3, 3, 3]
    torch.testing.assert_close(found, small_clip.vision(twins), rtol=0, atol=1e-5)
    sizes = states[0].sizes.unflatten(0, (2, 3))
    assert sizes.sum(1).eq(6).all()


def test_an_open_gate_mixes_frames_place_by_place(small_clip):
    reducer, frames = made(small_clip, r=0, r_frames=0), torch.randn(1, 4, 3, 32, 32)
    (attention,) = reducer.temporal.values()
    plain = encode(small_clip, reducer, frames)
    torch.nn.init.ones_(attention.scalar)
    assert not torch.allclose(encode(small_clip, reducer, frames), plain)
    x, order = torch.randn(2, 4, 6, 32), torch.randperm(6)
    with torch.no_grad():
        torch.testing.assert_close(attention(x)[0][:, :, order], attention(x[:, :, order])[0])
    assert not any(name.endswith("weight") for name in reducer.state_dict())  # copies of CLIP's are not stored again


@pytest.mark.parametrize("gate", ["scalar", "linear"])
def test_the_multiply_adds_of_temporal_attention_are_those_that_run(small_clip, gate):
    attention = TemporalAttention(small_clip.vision.blocks[0], rank=2, gate=gate)
    x = torch.randn(2, 5, 7, attention.out_weight.shape[0])  # 2 videos of 5 frames of 7 places
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        attention(x)
    with FlopCounterMode(display=False) as of_lora, torch.no_grad():
        attention.lora(x, torch.zeros(*x.shape[:-1], 3 * x.shape[-1]))
    assert attention.macs(2, 5, 7) == (counter.get_total_flops() - of_lora.get_total_flops()) // 2


def test_frames_that_share_a_class_token_have_one_embedding(small_clip):
    found = encode(small_clip, made(small_clip, one_class=True), torch.randn(2, 5, 3, 32, 32))
    torch.testing.assert_close(found, found[:, :1].expand_as(found))
    assert not torch.allclose(found[0], found[1])
