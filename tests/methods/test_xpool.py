import copy
import math

import pytest
import torch
import torch.nn.functional as F

import ctvr.methods.xpool as xpool
from ctvr.methods.xpool import Pooling, XPool, XPoolConfig
from tests.methods.conftest import make_batch


@pytest.fixture
def head():
    """Return a head whose weights are not the initial ones."""
    torch.manual_seed(0)
    head = Pooling(8, 0.3).eval()
    for parameter in head.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return head


@pytest.fixture
def method(small_clip):
    torch.manual_seed(0)
    method = XPool(XPoolConfig(), small_clip).eval()
    for parameter in method.pooling.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return method


def pooled(head, q, f):
    return head.pool(head.ask(q), *head.read(f))


def features(queries=5, videos=4, frames=3, width=8):
    return torch.randn(queries, width), torch.randn(videos, frames, width)


def test_the_head_is_the_papers_equations(head):
    q, f = features()
    y, asked = head.ln_1(f), head.q(head.ln_1(q))
    weights = torch.softmax(torch.einsum("vtd,qd->vtq", head.k(y), asked) / math.sqrt(8), dim=1)
    o = head.out(torch.einsum("vtd,vtq->vqd", head.v(y), weights))
    a = head.ln_2(o)
    torch.testing.assert_close(pooled(head, q, f), head.ln_3(a + head.linear(a)))


def test_at_the_start_the_pooled_frames_are_the_attention_average():
    head = Pooling(8, 0.3)
    q, f = features()
    keys, values = head.read(f)
    torch.testing.assert_close(keys, head.ln_1(f))
    torch.testing.assert_close(values, head.ln_1(f))
    average = head.attention(head.ask(q), keys) @ values
    torch.testing.assert_close(head.eval().pool(head.ask(q), keys, values), head.ln_3(2 * head.ln_2(average)))


def test_a_score_is_the_cosine_of_a_caption_and_its_view_of_a_video(method):
    q, f = features(width=16)
    r = pooled(method.pooling, q, f)  # (V, Q, d)
    expected = torch.stack([F.cosine_similarity(q[j], r[:, j], dim=-1) for j in range(len(q))])
    torch.testing.assert_close(method.score(q, f), expected)


def test_chunks_change_nothing(method, monkeypatch):
    q, f = features(queries=7, width=16)
    whole = method.score(q, f)
    monkeypatch.setattr(xpool, "CHUNK", 7 * 4)  # one video at a time
    torch.testing.assert_close(method.score(q, f), whole)


def test_the_length_of_features_matters_to_attention_alone(method):
    q, f = features(width=16)
    torch.testing.assert_close(method.score(3 * q, 3 * f), method.score(q, f), rtol=1e-3, atol=1e-3)  # LayerNorm


def test_the_gallery_holds_frames_and_is_searched_without_the_tower(method, monkeypatch):
    batch = make_batch()
    gallery = method.encode_video(batch.frames)
    assert gallery.shape == (6, 3, 16)
    torch.testing.assert_close(gallery, method.backbone.vision(batch.frames))  # not normalized
    queries = method.encode_text(batch.tokens)
    assert not torch.allclose(queries.norm(dim=-1), torch.ones(6))
    monkeypatch.setattr(method.backbone.vision, "forward", None)
    assert method.score(queries, gallery).shape == (6, 6)


def test_dropout_acts_in_training_only(method):
    q, f = features(width=16)
    assert torch.equal(method.score(q, f), method.score(q, f))
    method.train()
    assert not torch.equal(method.score(q, f), method.score(q, f))


def test_workers_that_score_the_same_pairs_drop_the_same_numbers(method, monkeypatch):
    monkeypatch.setattr("ctvr.methods.xpool.world_size", lambda: 2)
    workers, ones = [copy.deepcopy(method.pooling).train() for _ in range(2)], torch.ones(40, 16)
    for seed, worker in enumerate(workers):
        torch.manual_seed(seed)
        worker.dropout = 0.5
        worker.masks = [worker._drop(ones) for _ in range(2)]
    assert torch.equal(workers[0].masks[0], workers[1].masks[0])
    assert not torch.equal(*workers[0].masks)


def test_clip_and_head_are_trained_at_their_own_rates(small_clip):
    method = XPool(XPoolConfig(), small_clip)
    clip, head = method.param_groups()
    assert (clip["lr"], head["lr"]) == (1e-6, 1e-5)
    ids = [id(p) for group in (clip, head) for p in group["params"]]
    assert len(set(ids)) == len(ids)
    assert set(ids) == {id(p) for p in method.parameters()}
    assert not any(
        p is small_clip.logit_scale
        for g in XPool(XPoolConfig(train_scale=False), small_clip).param_groups()
        for p in g["params"]
    )


def test_the_temperature_is_clamped(small_clip):
    method = XPool(XPoolConfig(), small_clip)
    small_clip.logit_scale.data.fill_(9.0)
    method.after_step()
    assert float(method.scale().detach()) == pytest.approx(100.0, rel=1e-5)


def test_the_printed_parameters_are_these():
    with torch.device("meta"):
        head = Pooling(512, 0.3)
    assert 151_277_313 + sum(p.numel() for p in head.parameters()) == 152_593_665
