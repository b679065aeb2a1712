import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.camoe import STREAMS, CAMoE, CAMoEConfig, FrameAttention, SqueezeExcitation
from ctvr.methods.layers.losses.contrastive import contrastive
from tests.methods.conftest import make_batch, maker
from tests.methods.steps import train_stream, weights
from tests.refusing import refuses

VOCABULARY = ("man", "plays", "a", "dog", "red", "guitar", "sings", "in", "kitchen", "slowly")  # ids 1.. in turns
SCHEMES = ("mean", "se", "attention")


@pytest.fixture
def readable_clip(small_clip):
    """Return the small backbone with a tokenizer whose ids map back to words."""
    small_clip.tokenize = Readable()
    return small_clip


class Readable:
    """A vocabulary of 90 ids that repeats ten words."""

    def __init__(self) -> None:
        self.decoder = {i: VOCABULARY[(i - 1) % len(VOCABULARY)] + "</w>" for i in range(1, 91)}


@pytest.fixture
def make(readable_clip):
    return maker(CAMoE, readable_clip)


def sentence(*ids: int) -> torch.Tensor:
    row = torch.zeros(1, 16, dtype=torch.int64)
    row[0, : len(ids) + 2] = torch.tensor([98, *ids, 99])
    return row


def all_settings():
    for kind in ("muw", "rkw", "akwe"):
        yield {"sentences": kind}
    for scheme in SCHEMES:
        yield {"fusion": scheme, "entity": scheme, "action": scheme, "gate": scheme}
    yield {"mask_mode": "filler"}
    yield {"streams": "whole"}
    yield {"gates": "multi"}
    yield {"tasks": "sentence"}
    yield {"loss": "dual_softmax"}
    yield {"mask_same_video": True, "train_scale": True}


@pytest.mark.parametrize("settings", list(all_settings()), ids=str)
def test_every_variant_trains_on_two_tasks(make, settings):
    method = make(lr=1e-3, lr_experts=1e-3, **settings)
    before = weights(method)
    losses = train_stream(method, tasks=2, steps=2, lr=0.01)
    assert all(loss > 0 for loss in losses)
    assert not torch.equal(weights(method), before)
    batch = make_batch()
    with torch.no_grad():
        videos, texts = method.encode_video(batch.frames), method.encode_text(batch.tokens)
    torch.testing.assert_close(videos.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(6))


def test_gates_sum_to_one_and_start_equal(make):
    method, x = make(), torch.randn(5, 4, 16)
    gate = method.gates["sentence"]
    torch.testing.assert_close(gate(x), torch.full((5, 3), 1 / 3))
    torch.nn.init.normal_(gate.project.weight)
    torch.testing.assert_close(gate(x).sum(dim=1), torch.ones(5))
    assert not torch.allclose(gate(x), torch.full((5, 3), 1 / 3), atol=0.05)


def test_the_shares_of_experts_are_logged_and_sum_to_one(make):
    for gates, streams in (("single", ["gate"]), ("multi", ["gate", "gate_action", "gate_entity"])):
        method = make(gates=gates).train()
        assert method.batch_metrics() == {}
        method.losses(make_batch(4))
        metrics = method.batch_metrics()
        assert sorted({name.partition("/")[0] for name in metrics}) == streams
        assert sum(float(metrics[f"gate/{stream}"]) for stream in ("sentence", "entity", "action")) == pytest.approx(1)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_gate_that_chooses_one_expert_returns_it(make, index):
    method, x = make(), torch.randn(5, 4, 16)
    experts = {name: torch.randn(5, 16) for name in STREAMS}
    method.gates["sentence"] = torch.nn.Module()
    method.gates["sentence"].forward = lambda x: F.one_hot(torch.tensor(index), 3).float().expand(len(x), 3)
    torch.testing.assert_close(method.mix(x, experts)["sentence"], experts[STREAMS[index]])


def test_one_gate_serves_the_sentence_alone(make):
    experts = {name: torch.randn(5, 16) for name in STREAMS}
    x = torch.randn(5, 4, 16)
    single, multi = make().mix(x, experts), make(gates="multi").mix(x, experts)
    assert single["entity"] is experts["entity"]
    assert single["action"] is experts["action"]
    torch.testing.assert_close(multi["entity"], sum(experts.values()) / 3)
    torch.testing.assert_close(single["sentence"], multi["sentence"])


def test_mean_pooled_experts_are_clip4clip_at_the_start(make):
    method, batch = make(fusion="mean", entity="mean", action="mean", gate="mean"), make_batch()
    with torch.no_grad():
        mean = F.normalize(method.backbone.vision(batch.frames).mean(dim=1), dim=-1)
        torch.testing.assert_close(method.encode_video(batch.frames), mean, atol=1e-5, rtol=1e-4)


def test_a_frame_counts_by_a_score_between_zero_and_one():
    x = torch.randn(3, 5, 16)
    expert = SqueezeExcitation(8, 2)
    scores = expert.scores(x)
    assert scores.shape == (3, 5)
    assert ((scores > 0) & (scores < 1)).all()
    torch.testing.assert_close(expert(x), torch.einsum("bt,btd->bd", scores, x))


def test_attention_agrees_with_the_equations():
    x, expert = torch.randn(2, 4, 16), FrameAttention(16, 4)
    k, q, v = ((x + expert.positions) @ w.mT + b for w, b in zip(
        expert.project.weight.chunk(3), expert.project.bias.chunk(3)))  # fmt: skip
    frames = expert.out((q @ k.mT / 4.0).softmax(dim=-1) @ v)
    torch.testing.assert_close(expert(x), frames.mean(dim=1))


def test_more_frames_than_weights_are_refused_in_one_line(make):
    with refuses("num_frames=2", "3", "method.num_frames=3", kind=ValueError, settings=("num_frames",)):
        make(num_frames=2).encode_video(make_batch().frames)


def test_a_caption_without_verbs_takes_no_part_in_the_action_matching(make):
    method, batch = make(), make_batch(4)
    rows = [sentence(1, 2, 6), sentence(4, 7), sentence(3, 5, 4), sentence(1, 7, 8, 9)]  # the third has no verb
    batch = type(batch)(batch.frames, torch.cat(rows), batch.video_ids, batch.categories)
    texts = method.texts(batch.tokens)
    assert texts["action"][1].tolist() == [True, True, False, True]
    assert texts["entity"][1].all()
    action = method.losses(batch)["action"]
    view = F.normalize(method.views(batch.frames)["action"], dim=-1)[[0, 1, 3]]
    logits = method.scale() * texts["action"][0][[0, 1, 3]] @ view.mT
    torch.testing.assert_close(action, contrastive(logits, "sum"))


def test_captions_without_any_verb_leave_the_loss_finite(make):
    method, batch = make(), make_batch(2)
    batch = type(batch)(batch.frames, torch.cat([sentence(3, 4), sentence(3, 6)]), batch.video_ids, batch.categories)
    terms = method.losses(batch)
    assert float(terms["action"]) == 0
    sum(terms.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)


def test_three_captions_of_the_multi_task_ablation_are_one(make):
    texts = make(streams="whole").texts(make_batch().tokens)
    assert all(torch.equal(text, texts["sentence"][0]) for text, _ in texts.values())


def test_the_single_task_has_a_single_loss(make):
    assert set(make(tasks="sentence").losses(make_batch())) == {"sentence"}
    assert set(make().losses(make_batch())) == set(STREAMS)


def test_the_search_reads_the_whole_caption_by_default(make):
    tokens = torch.cat([sentence(1, 2, 6), sentence(1, 7, 6)])  # "man plays guitar", "man sings guitar"
    with torch.no_grad():
        one, other = make().encode_text(tokens)
        entity, same = make(search_with="entity").encode_text(tokens)
    assert not torch.allclose(one, other, atol=1e-3)
    torch.testing.assert_close(entity, same)


def test_a_backbone_without_words_serves_where_no_words_are_needed(small_clip):
    small_clip.tokenize = lambda texts: texts
    CAMoE(CAMoEConfig(streams="whole"), small_clip)
    CAMoE(CAMoEConfig(tasks="sentence"), small_clip)
    with pytest.raises(ValueError, match="cannot turn tokens back into words"):
        CAMoE(CAMoEConfig(), small_clip)


def test_scores_are_revised_on_request_only(make):
    scores = torch.tensor([[0.30, 0.10], [0.29, 0.28]])
    plain, revised = make(), make(revise=True)
    assert plain.normalize_scores(scores) is scores
    assert not plain.declared.is_transductive
    assert revised.declared.is_transductive
    assert scores[1].argmax() == 0
    assert revised.normalize_scores(scores)[1].argmax() == 1  # video 0 belongs to query 0


def test_two_rates_and_every_weight_in_one_group(make):
    method = make(train_scale=True)
    groups = method.param_groups()
    assert [group["lr"] for group in groups] == [1e-7, 1e-4]
    handed = [id(p) for group in groups for p in group["params"]]
    assert len(handed) == len(set(handed))
    assert set(handed) == {id(p) for p in method.parameters()}


def test_at_the_papers_size_the_added_weights_are_a_hundredth_of_clip():
    with torch.device("meta"):
        attention, excitation = FrameAttention(512, 16), SqueezeExcitation(16, 2)
    assert sum(p.numel() for p in attention.parameters()) == 4 * (512 * 512 + 512) + 16 * 512
    assert sum(p.numel() for p in excitation.parameters()) == 16 * 8 + 8 + 8 * 16 + 16
