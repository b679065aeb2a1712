"""UMT as a method: the ranking, the drawn negatives, and the parts of its losses."""

import pytest
import torch

from ctvr.methods.base import Batch, l2_normalize
from ctvr.methods.layers.losses.matching import matching, negative_weights, shared_contrastive
from ctvr.methods.umt import OUT, UMT, UmtConfig
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.backbone.test_umt import released_umt
from tests.methods.conftest import awake, make_batch, make_task, reducer_config
from tests.methods.released import FIXTURES, floats, read
from tests.refusing import refuses


@pytest.fixture
def made(small_clip):
    def make(**settings: object) -> UMT:
        torch.manual_seed(3)
        return awake(UMT(UmtConfig(**settings), small_clip))

    return make


@torch.no_grad()
def test_scores_are_means_of_cosines_and_the_heads_logits(made):
    method, batch = made(), make_batch(4, 3)
    videos, texts = method.encode_video(batch.frames), method.encode_text(batch.tokens)
    tokens, pooled, _ = method.backbone.vision.tokens(batch.frames)
    frames = l2_normalize(method.backbone.vision.proj(pooled))  # (V, T, d)
    ids = method.backbone.text.without_end(batch.tokens)
    words, feature = method.backbone.text.read(ids)
    scores = method.score(texts, videos)
    torch.testing.assert_close(scores[..., 0], torch.einsum("qd,vtd->qv", l2_normalize(feature), frames) / 3)
    for video in range(4):
        logits = method.backbone.match(words, ids, method.backbone.text.bert.memory(tokens[video : video + 1]))
        torch.testing.assert_close(scores[:, video, 1], logits[:, 1])
    torch.testing.assert_close(made(rerank=0).score(texts, videos), scores[..., 0])


def test_head_reorders_the_best_candidates_in_each_direction(made):
    method = made(rerank=2)
    similar = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6], [0.3, 0.4, 0.5]])
    logits = torch.tensor([[-1.0, 2.0, 9.0], [8.0, 1.0, 3.0], [7.0, -5.0, -4.0]])
    scores = torch.stack([similar, logits], dim=-1)
    assert method.normalize_scores(scores).tolist() == [[-1, 2, OUT], [OUT, 1, 3], [OUT, -5, -4]]
    assert method.normalize_scores_v2t(scores).tolist() == [[-1, 2, OUT], [OUT, 1, 3], [7, OUT, -4]]
    assert torch.equal(made().normalize_scores(scores), logits)
    plain = made(rerank=0)
    assert not plain.declared.normalizes_scores
    assert plain.normalize_scores(similar) is similar


def test_losses_of_drawn_negatives_repeat(made):
    batch = make_batch(6, 3)
    first, again = made(), made()
    for method in (first, again):
        method.begin_task(make_task(1))
    terms = first.losses(batch)
    assert {name: float(term.detach()) for name, term in again.losses(batch).items()} == {
        name: float(term.detach()) for name, term in terms.items()
    }
    torch.testing.assert_close(terms["contrastive"], shared_contrastive(again.logits(batch), batch.video_ids))
    assert float(terms["matching"].detach()) != float(first.losses(batch)["matching"].detach())  # others are drawn
    chance = matching(torch.zeros(18, 2))
    torch.testing.assert_close(chance, torch.tensor(2.0).log())


def test_the_second_loss_reads_pairs_then_wrong_videos_then_wrong_captions(made):
    method, batch, weighed = made(), make_batch(5, 3), []
    drawn = [torch.tensor([1, 2, 3, 4, 0]), torch.tensor([2, 3, 4, 0, 1])]
    method._draw = lambda weights: (weighed.append(weights), drawn[len(weighed) - 1])[1]
    found = method.losses(batch)["matching"]
    similar = method.logits(batch)
    torch.testing.assert_close(weighed[0], negative_weights(similar, batch.video_ids))
    torch.testing.assert_close(weighed[1], negative_weights(similar.mT, batch.video_ids))
    tokens, ids = method.backbone.vision.tokens(batch.frames)[0], method.backbone.text.without_end(batch.tokens)
    words = method.backbone.text.read(ids)[0]
    rows = range(5)
    chosen = [*zip(rows, rows), *zip(rows, drawn[0].tolist()), *zip(drawn[1].tolist(), rows)]
    memory = method.backbone.text.bert.memory
    logits = [method.backbone.match(words[[t]], ids[[t]], memory(tokens[[v]])) for t, v in chosen]
    torch.testing.assert_close(found, matching(torch.cat(logits)))


def test_a_batch_and_its_scores_equal_the_released_code(shared, compared):
    """The method runs on UMT's towers with the reference weights; negatives are those of the reference."""
    folder = shared / "reference" / "umt"
    method, io = UMT(UmtConfig(), released_umt(folder)).eval(), read(folder / "umt_s_io.npz")
    ends = io["attention_mask"].sum(dim=1, keepdim=True)
    tokens = torch.nn.functional.pad(io["input_ids"], (0, 1)).scatter(1, ends, 127)
    frames, facts = io["video"].float(), floats(io, "loss_distinct/")
    drawn = [facts["vision_neg"].long(), facts["text_neg"].long()]
    method._draw = lambda weights: drawn.pop(0)
    rows = torch.arange(4)
    batch = Batch(frames=frames, tokens=tokens, video_ids=rows, categories=torch.zeros(4, dtype=torch.int64))
    terms = method.losses(batch)
    compared("umt", "loss", terms["contrastive"], facts["vtc"])
    compared("umt", "loss", terms["matching"], facts["vtm"])
    with torch.no_grad():
        scores = method.score(method.encode_text(tokens), method.encode_video(frames))
    compared("umt", "forward", scores[..., 0].mT, io["sim_v2t_temp1"])
    compared("umt", "forward", scores[rows, rows, 1], io["vtm_logits_pairs"][:, 1])


def test_losses_of_stored_similarities_equal_the_released_ones(compared):
    file = read(FIXTURES / "umt_released.npz")
    facts, similar = floats(file, "loss_distinct/"), file["sim_t2v"]
    compared("umt", "loss", shared_contrastive(similar, facts["idx"]), facts["vtc"])
    compared("umt", "loss", negative_weights(similar, facts["idx"]), facts["weights_t2v"])
    compared("umt", "loss", negative_weights(file["sim_v2t"], facts["idx"]), facts["weights_v2t"])
    compared("umt", "loss", matching(facts["vtm_logits"]), facts["vtm"])


def test_wrong_pairs_are_drawn_by_their_weights_and_never_of_one_video(made):
    method = made()
    weights = torch.tensor([[0.0, 3.0, 1.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    drawn = torch.stack([method._draw(weights) for _ in range(2000)])
    shares = torch.nn.functional.one_hot(drawn, 3).double().mean(dim=0)
    expected = weights / weights.sum(dim=1, keepdim=True)
    torch.testing.assert_close(shares, expected.double(), rtol=0, atol=0.05)  # the seeds are fixed
    assert bool((shares[expected == 0] == 0).all())


def test_both_losses_train_all_weights_within_temperature_bounds(made):
    method = made(attends="frame", reducer=reducer_config("tempme", num_frames=4))
    terms = method.losses(make_batch(6, 4))
    terms["matching"].backward(retain_graph=True)
    assert method.backbone.head.weight.grad is not None
    assert method.backbone.vision.conv1.weight.grad is not None  # through the fusion layers
    terms["contrastive"].backward()
    unused = {name for name, p in method.named_parameters() if p.grad is None}
    assert unused == set()
    for value, kept in ((0.9, 0.5), (0.0, 0.001)):
        method.backbone.temp.data.fill_(value)
        method.after_step()
        assert float(method.backbone.temp.detach()) == pytest.approx(kept)


def test_strategies_that_compare_a_batch_want_the_first_stage_alone():
    settings = {"method": "lwf", "method.base": "umt", "stream": "s"}
    with refuses("base.rerank=0", where="method.base"):
        resolve(settings)
    assert resolve({**settings, "base.rerank": 0}).base.rerank == 0
