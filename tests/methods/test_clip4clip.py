import copy
import dataclasses
import math

import pytest
import torch

from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.zero_shot import ZeroShot, ZeroShotConfig
from tests.methods.conftest import make_batch, make_small_clip, reducer_config
from tests.methods.layers.reduction.token_log import token_log


def make(backbone, **settings):
    return Clip4Clip(Clip4ClipConfig(**settings), backbone)


def train(method, batch, steps=2):
    groups = method.param_groups()
    optimizer = torch.optim.AdamW([{"params": group["params"], "lr": group["lr"]} for group in groups])
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack(list(method.losses(batch).values())).sum().backward()
        optimizer.step()
        method.after_step()
    return method


def test_a_learning_rate_of_zero_is_the_zero_shot_model(small_clip, batch):
    zero_shot = ZeroShot(ZeroShotConfig(), copy.deepcopy(small_clip))
    method = train(make(small_clip, lr=0.0), batch)
    assert torch.equal(method.encode_video(batch.frames), zero_shot.encode_video(batch.frames))
    assert torch.equal(method.encode_text(batch.tokens), zero_shot.encode_text(batch.tokens))


def test_all_of_clip_is_handed_over_once(small_clip):
    for is_trained in (True, False):
        groups = make(small_clip, train_scale=is_trained).param_groups()
        ids = {id(p) for group in groups for p in group["params"]}
        assert sum(len(group["params"]) for group in groups) == len(ids)
        assert ids | {id(small_clip.logit_scale)} == {id(p) for p in small_clip.parameters()}
        assert (id(small_clip.logit_scale) in ids) == is_trained


def test_frozen_parts_have_no_group_and_start_scale_is_the_first_scale(small_clip):
    method = make(small_clip, frozen=("vision.conv1", "text.token_embedding", "vision.blocks.0"), start_scale=50.0)
    handed = {id(p) for group in method.param_groups() for p in group["params"]}
    left = {name for name, p in small_clip.named_parameters() if id(p) not in handed}
    assert {"vision.conv1.weight", "text.token_embedding.weight"} <= left
    assert all(name.startswith(("vision.conv1", "text.token_embedding", "vision.blocks.0.")) for name in left)
    assert float(method.scale().detach()) == pytest.approx(50.0)


def test_the_temperature_stays_between_1_and_200(small_clip):
    method = make(small_clip)
    for start, kept in ((9.0, 200.0), (-3.0, 1.0), (3.0, math.exp(3.0))):
        small_clip.logit_scale.data.fill_(start)
        method.after_step()
        assert float(method.scale().detach()) == pytest.approx(kept, rel=1e-5)


def test_other_captions_of_a_video_can_be_spared(small_clip, batch):
    twice = dataclasses.replace(batch, video_ids=torch.tensor([0, 1, 2, 0, 4, 5]))
    plain, masked = make(small_clip), make(small_clip, mask_same_video=True)
    assert masked.losses(twice)["contrastive"] < plain.losses(twice)["contrastive"]
    assert torch.equal(masked.losses(batch)["contrastive"], plain.losses(batch)["contrastive"])


@pytest.mark.parametrize("header", ["seqLSTM", "seqTransf"])
def test_a_sequential_header_sees_the_order_of_frames_and_is_trained(header):
    clip = make_small_clip(embed_dim=32)
    batch = make_batch(6, 3)
    method = make(clip, sim_header=header, lr=1e-3, lr_head=1e-3)
    flipped = method.encode_video(batch.frames.flip(1))
    assert not torch.allclose(flipped, method.encode_video(batch.frames), atol=1e-4)
    (_, group) = method.param_groups()
    assert group["name"] == "header"
    assert {id(p) for p in group["params"]} == {id(p) for p in method.header.parameters()}
    before = {name: value.clone() for name, value in method.header.state_dict().items()}
    train(method, batch, steps=3)
    still = [name for name, value in method.header.state_dict().items() if torch.equal(before[name], value)]
    assert not still


@pytest.mark.parametrize("name", ["tome", "evit", "tempme", "testa"])
def test_it_can_be_trained_with_fewer_tokens(small_clip, batch, name):
    frames = batch.frames.shape[1]
    method = Clip4Clip(
        Clip4ClipConfig(reducer=reducer_config(name, num_frames=frames), sim_header="seqLSTM"), small_clip
    )
    with record_tokens() as states:
        sum(method.losses(batch).values()).backward()
    assert states[0].log == token_log(method.reducer.steps, small_clip.vision.num_tokens, frames)
    assert all(p.grad is not None for p in [*small_clip.vision.parameters(), *method.reducer.parameters()])
    handed = {id(p) for group in method.param_groups() for p in group["params"]}
    assert all(id(p) in handed for p in method.reducer.parameters())
