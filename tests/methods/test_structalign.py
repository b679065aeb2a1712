"""StructAlign: the invariants of the paper's equations, and the released code's numbers under its preset."""

import copy
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.backbone.clip import Clip, record_tokens
from ctvr.methods.base import Batch, Task, l2_normalize
from ctvr.methods.layers.losses.etf import misalignment, simplex_etf
from ctvr.methods.layers.replay.statistics import dispersion
from ctvr.methods.layers.word_features import frame_word_similarity, is_word
from ctvr.methods.structalign import StructAlign, StructAlignConfig
from ctvr.methods.structalign.recipes import RELEASED
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation.evaluate import all_scores, caption_features
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from tests.methods.conftest import make_batch, make_task, reducer_config
from tests.methods.layers.reduction.token_log import token_log
from tests.methods.released import shape_of, transformers_clip
from tests.refusing import refuses

FIXTURE = Path(__file__).parent / "fixtures" / "structalign_released.npz"
PARTS = ("text", "vision", "heads")
SMALL = {"num_experts": 3, "text_rank": 4, "text_alpha": 8.0, "vision_rank": 2, "vision_alpha": 2.0}
RELEASED_METHOD = {name.removeprefix("method."): value for name, value in RELEASED.items() if "method." in name}


def make(clip: Clip, **settings) -> StructAlign:
    torch.manual_seed(0)
    return StructAlign(StructAlignConfig(**{**SMALL, **settings}), clip).eval()


def shake(method: StructAlign, size: float = 0.2) -> None:
    """Change the weights as training would."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in method.adapters.parameters():
            parameter.add_(size * torch.randn_like(parameter))


def after_one_task(clip: Clip, **settings) -> StructAlign:
    method = make(clip, **settings)
    method.begin_task(make_task(0))
    shake(method)
    method.end_task(make_task(0), [make_batch(seed=1), make_batch(seed=2)])
    method.begin_task(make_task(1))
    return method


def second(pairs: int = 6) -> Batch:
    return make_batch(pairs, seed=5, categories=(2, 3))


@pytest.mark.parametrize("released", [False, True])
def test_fresh_adapters_give_clip_features(small_clip, batch, released):
    settings = {**RELEASED_METHOD, "pads_are_words": False, "score": "words"} if released else {}
    method = make(small_clip, **settings)
    method.begin_task(make_task(0))
    torch.testing.assert_close(method.encode_video(batch.frames), l2_normalize(small_clip.vision(batch.frames)))
    hidden, eot = small_clip.text.hidden(batch.tokens)
    words = method.encode_text(batch.tokens)
    for row, end in enumerate(eot.tolist()):
        torch.testing.assert_close(words[row, : end - 1], l2_normalize(hidden[row, 1:end]), atol=1e-5, rtol=1e-5)
        assert words[row, end - 1 :].eq(0).all()


def test_scores_are_eq_6_and_do_not_depend_on_the_batch(small_clip, batch):
    method = after_one_task(small_clip)
    queries, gallery = method.encode_text(batch.tokens), method.encode_video(batch.frames)
    assert gallery.shape == (6, 3, 16)
    scores = method.score(queries, gallery)
    torch.testing.assert_close(scores, frame_word_similarity(queries, gallery))
    shortest = batch.tokens.argmax(dim=1).argmin()
    alone = method.encode_text(batch.tokens[shortest][None])
    torch.testing.assert_close(method.score(alone, gallery)[0], scores[shortest], atol=1e-5, rtol=1e-5)


def test_released_words_depend_only_on_caption_width(small_clip, batch):
    method = after_one_task(small_clip, pads_are_words=True)
    gallery = method.encode_video(batch.frames)
    shortest = batch.tokens.argmax(dim=1).argmin()
    together = method.score(method.encode_text(batch.tokens), gallery)[shortest]
    alone = batch.tokens[shortest][None]
    torch.testing.assert_close(method.score(method.encode_text(alone), gallery)[0], together, atol=1e-5, rtol=1e-5)
    narrow = alone[:, : int(alone.argmax()) + 1]
    assert not torch.allclose(method.score(method.encode_text(narrow), gallery)[0], together, atol=1e-3)


def test_released_scores_do_not_depend_on_the_encoding_batch(small_clip, batch):
    method = after_one_task(small_clip, pads_are_words=True, score="fused").eval()
    with torch.no_grad():
        gallery = method.encode_video(batch.frames)
    where = torch.arange(6)
    queries = [Queries(torch.nn.functional.pad(batch.tokens, (0, 5)), where, -torch.ones_like(where))]
    found = []
    for config in (EvaluationConfig(batch_size=1), EvaluationConfig(batch_size=6)):
        asked = caption_features(method, queries, config, torch.device("cpu"))
        found.append(method.normalize_scores(all_scores(method, asked, [gallery], config, torch.device("cpu"))))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


def test_fused_scores_are_z_scores_over_the_whole_gallery(small_clip, batch):
    method = after_one_task(small_clip, score="fused")
    both = method.score(method.encode_text(batch.tokens), method.encode_video(batch.frames))
    assert both.shape == (6, 6, 2)
    z = (both - both.mean(1, keepdim=True)) / both.std(1, keepdim=True, correction=0)
    torch.testing.assert_close(method.normalize_scores(both), z.mean(dim=-1))
    torch.testing.assert_close(method.normalize_scores(both).mean(dim=1), torch.zeros(6), atol=1e-5, rtol=0)


def test_the_base_task_has_eq_18_without_relations(small_clip, batch):
    method = make(small_clip)
    method.begin_task(make_task(0))
    losses = method.losses(batch)
    assert set(losses) == {"contrastive", "etf"}
    similarity = method.score(method.encode_text(batch.tokens), method.encode_video(batch.frames))
    logits, target = similarity * small_clip.logit_scale.exp(), torch.arange(6)
    expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    torch.testing.assert_close(losses["contrastive"], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(method.logits(batch), logits, atol=1e-4, rtol=1e-4)


def test_alignment_is_eqs_10_to_13(small_clip, batch):
    method = make(small_clip)
    method.begin_task(make_task(0))
    seams = method.adapters.text_seams(None)
    words, frames = method._words(batch.tokens, seams), method._frames(batch.frames)
    total = torch.tensor(0.0)
    for w, f, c in zip(words, frames, batch.categories.tolist()):
        p = method.prototypes.reference[c]
        w, f = method.g_text(w[is_word(w)]), method.g_video(f)
        pooled = [(x @ p).softmax(dim=0) @ x for x in (w, f)]
        total = total + sum(1 - F.cosine_similarity(x, p, dim=0) for x in pooled)
    torch.testing.assert_close(method.losses(batch)["etf"], 0.1 * total / len(words))
    assert 0 <= float(total / len(words)) <= 4


def test_alignment_is_zero_at_the_prototypes_and_four_opposite(small_clip):
    method = make(small_clip)
    method.begin_task(make_task(0))
    rows = torch.tensor([0, 1, 5])
    p = method.prototypes.reference[rows]
    torch.testing.assert_close(misalignment(3 * p, p, p), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(misalignment(-p, -2 * p, p), torch.tensor(4.0))


def test_relations_vanish_with_their_gradient_at_the_previous_model(small_clip):
    method = after_one_task(small_clip)
    loss = method.losses(second())["crp"]
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(0.0), atol=1e-5, rtol=0)
    moved = [p.grad.abs().max() for p in method.adapters.parameters() if p.grad is not None]
    assert max(moved) < 1e-4
    shake(method)
    assert method.losses(second())["crp"] > 1e-3


@pytest.mark.parametrize("rows", ["both", "text"])
def test_relations_are_eq_17(small_clip, rows):
    method = make(small_clip, crp_rows=rows, tau2=0.2)
    now, before = torch.randn(5, 5), torch.randn(5, 5)

    def kl(old, new):
        old, new = (old / 0.2).softmax(dim=1), (new / 0.2).softmax(dim=1)
        return (old * (old / new).log()).sum(dim=1).mean()

    expected = kl(before, now) if rows == "text" else (kl(before, now) + kl(before.T, now.T)) / 2
    torch.testing.assert_close(method._relations(now, before), expected)
    assert expected > 0


def test_the_teacher_is_the_model_as_the_former_task_left_it(small_clip):
    method = after_one_task(small_clip)
    kept = copy.deepcopy(method.teacher.module.state_dict())
    shake(method)
    method.begin_task(make_task(2))
    now = method.adapters.state_dict()
    assert all(torch.equal(value, now[name]) for name, value in method.teacher.module.state_dict().items())
    assert any(not torch.equal(value, now[name]) for name, value in kept.items())
    assert not any(name.startswith("teacher") for name in method.state_dict())


def test_categories_take_rows_in_order_of_first_appearance(small_clip):
    method = make(small_clip, etf_num_classes=9)
    for index, categories in enumerate([(7, 2), (0, 5)]):
        method.begin_task(Task(index, "", 2, categories, 4))
    assert len(method.prototypes.reference) == 9
    assert method.prototypes.indices(torch.tensor([5, 7, 0, 2])).tolist() == [3, 0, 2, 1]


def test_more_categories_than_prototypes_are_refused(small_clip):
    method = make(small_clip, etf_num_classes=2)
    method.begin_task(make_task(0))
    with refuses("2", "task_02", "4", kind=ValueError, settings=("etf_num_classes",)):
        method.begin_task(make_task(1))


@pytest.mark.parametrize("pseudo", ["inputs", "shared", "clip"])
def test_pseudo_pairs_without_noise_are_the_category_means(small_clip, pseudo):
    method = after_one_task(small_clip, sigma=0.0, pseudo=pseudo)
    torch.manual_seed(4)
    categories, *drawn = method.statistics.draw(20, 0.0)
    assert set(categories.tolist()) == {0, 1}
    batches = [make_batch(seed=1), make_batch(seed=2)]
    for side, (encode, head) in enumerate((("_words", method.g_text), ("_frames", method.g_video))):
        parts = [getattr(method, encode)(*((b.tokens, None) if side == 0 else (b.frames,))) for b in batches]
        if side == 0:
            parts = [method._words(b.tokens, method.adapters.text_seams(None)) for b in batches]
        for c in (0, 1):
            means = []
            for batch, tokens in zip(batches, parts):
                for row in (batch.categories == c).nonzero()[:, 0]:
                    own = tokens[row][tokens[row].abs().sum(dim=-1) > 0]
                    if pseudo == "shared":
                        p = method.prototypes.reference[method.prototypes.order.tolist().index(c)]
                        own = head(own)
                        means.append(l2_normalize((own * (own @ p).softmax(0)[:, None]).sum(0)))
                    else:
                        means.append(l2_normalize(own.sum(0)) if pseudo == "clip" else own.mean(0))
            expected = torch.stack(means).mean(0)
            expected = l2_normalize(expected) if pseudo == "shared" else expected
            torch.testing.assert_close(drawn[side][categories == c][0], expected, atol=1e-5, rtol=1e-4)
    torch.manual_seed(4)
    text, video = drawn if pseudo == "shared" else (method.g_text(drawn[0]), method.g_video(drawn[1]))
    expected = misalignment(text, video, method.prototypes.of(categories))
    torch.testing.assert_close(method._pseudo_misalignment(20), expected)


def test_pseudo_pairs_scatter_with_sigma(small_clip):
    method = after_one_task(small_clip)
    categories, text, _ = method.statistics.draw(4000, 0.3)
    mean = method.statistics.means[0, method.statistics.categories.tolist().index(1)]
    drawn = text[categories == 1]
    assert 1800 < len(drawn) < 2200
    torch.testing.assert_close((drawn - mean).std(), torch.tensor(0.3), atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.mean(dim=0), mean, atol=0.05, rtol=0)


def test_sigma_is_the_spread_of_one_coordinate(small_clip):
    method = after_one_task(small_clip, pseudo="clip")
    batches = [make_batch(seed=1), make_batch(seed=2)]
    features = torch.cat([l2_normalize(method._frames(b.frames).sum(dim=1)) for b in batches])
    keep = torch.cat([b.categories for b in batches]) == 0
    trace = torch.cov(features[keep].T).trace()
    index = method.statistics.categories.tolist().index(0)
    torch.testing.assert_close(method.statistics.sigmas[1, index] ** 2 * 16, trace, atol=1e-5, rtol=1e-4)
    assert method.statistics.means.norm(dim=-1).max() <= 1.0


@pytest.mark.parametrize(
    ("settings", "moves"),
    [
        ({}, True),
        ({"pseudo": "clip"}, True),
        ({"pseudo": "shared"}, False),
        ({"pseudo": "shared", "prototypes": "learned"}, True),
    ],
)
def test_pseudo_pairs_after_the_heads_train_prototypes_only(small_clip, settings, moves):
    method = after_one_task(small_clip, **settings)
    loss = method.losses(second())["etf_pseudo"]
    assert loss > 0
    assert loss.requires_grad is moves


def test_learned_prototypes_pay_for_leaving_the_simplex(small_clip, batch):
    method = make(small_clip, prototypes="learned", prototype_weight=2.0)
    method.begin_task(make_task(0))
    assert method.losses(batch)["prototypes"] < 1e-10
    with torch.no_grad():
        method.prototypes.learned.add_(0.1 * torch.randn_like(method.prototypes.learned))
    expected = 2.0 * (l2_normalize(method.prototypes.learned) - method.prototypes.reference).square().sum()
    torch.testing.assert_close(method.losses(batch)["prototypes"], expected)


def test_diagnostics_are_of_aligned_pairs(small_clip):
    """layers/replay/test_statistics.py tests the numbers themselves."""
    method = after_one_task(small_clip)
    batches = [make_batch(seed=1), make_batch(seed=2)]
    texts, labels = (torch.cat(x) for x in zip(*((method._observed(b)[2][0], b.categories) for b in batches)))
    expected = torch.stack([dispersion(texts[labels == c]) for c in (0, 1)]).mean()
    found = method.task_metrics()
    assert found["micd_text"] == pytest.approx(float(expected), abs=1e-5)
    assert set(found) == {"etf_weight", "micd_text", "micd_video", "modality_gap", "angle_text", "angle_video"}
    assert found["angle_text"] == pytest.approx(0.0, abs=1e-5)  # two centered means are opposite
    method.statistics.add(9, torch.randn(2, 3, 16), l2_normalize(torch.randn(2, 3, 16)), False)
    third = method.statistics.aligned[0]
    centred = l2_normalize(third - third.mean(0))
    drawn = method.similarities()
    assert {name: tuple(matrix.shape) for name, matrix in drawn.items()} == dict.fromkeys(drawn, (3, 3))
    torch.testing.assert_close(drawn["mean texts"], centred @ centred.mT, atol=1e-5, rtol=0)
    assert float(drawn["mean videos"][0, 1]) != pytest.approx(float(drawn["mean texts"][0, 1]), abs=1e-4)
    assert float(drawn["ideal prototypes"][0, 1]) == pytest.approx(
        -1 / (len(method.prototypes.reference) - 1), abs=1e-5
    )
    assert make(small_clip).similarities() == {}
    batch = second()
    method.losses(batch)
    aligned = method._observed(batch)[2]
    own = torch.stack([dispersion(aligned[0][batch.categories == c]) for c in (2, 3)]).mean()
    told = method.batch_metrics()
    assert told["micd_text"] == pytest.approx(float(own), abs=1e-5)
    assert float(told["angle_video"]) == pytest.approx(0.0, abs=1e-5)


def test_the_first_task_learns_at_its_own_rate(small_clip):
    method = make(small_clip)
    for index, rate in enumerate((2e-5, 3e-6)):
        method.begin_task(make_task(index))
        assert {group["name"]: group["lr"] for group in method.param_groups()} == dict.fromkeys(PARTS, rate)


def test_trained_parameters_are_the_33_9_million_of_the_paper():
    with torch.device("meta"):
        vision = {"layers": 12, "width": 768, "patch_size": 32, "image_size": 224}
        text = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12}
        source = open_clip.CLIP(embed_dim=512, quick_gelu=True, vision_cfg=vision, text_cfg=text)
        method = StructAlign(StructAlignConfig(), Clip(source, lambda _: torch.empty(0), (0, 0, 0), (1, 1, 1)))
        counts = {g["name"]: sum(p.numel() for p in g["params"]) for g in method.param_groups()}
    assert counts == {"text": 31_703_040, "vision": 1_179_648, "heads": 1_050_624}
    assert sum(counts.values()) == 33_933_312


def released(clip: Clip, **settings) -> StructAlign:
    return make(clip, **{**RELEASED_METHOD, "fusion_layers": 3, **settings})


def test_released_alignment_is_a_tenth_of_the_rest_at_every_step(small_clip, batch):
    method = released(small_clip)
    method.begin_task(make_task(0))
    first = method.losses(batch)
    torch.testing.assert_close(first["etf"], 0.1 * first["contrastive"])
    method.end_task(make_task(0), [batch, make_batch(seed=3)])
    method.begin_task(make_task(1))
    shake(method)
    later = method.losses(second())
    assert set(later) == {"contrastive", "crp", "pairs", "etf", "etf_pseudo"}
    torch.testing.assert_close(later["etf"] + later["etf_pseudo"], 0.1 * (later["contrastive"] + later["crp"]))


def test_the_released_teacher_is_always_zero_shot_clip(small_clip, batch):
    method = released(small_clip)
    method.begin_task(make_task(0))
    method.begin_task(make_task(1))
    torch.testing.assert_close(method.losses(second())["crp"], torch.tensor(0.0), atol=1e-3, rtol=0)
    assert method.teacher is None
    shake(method)
    assert method.losses(second())["crp"] > 0.1


def test_released_heads_are_never_trained_and_pseudo_pairs_train_nothing(small_clip):
    method = released(small_clip)
    method.begin_task(make_task(0))
    method.end_task(make_task(0), [make_batch(seed=1)])
    assert {group["name"] for group in method.param_groups()} == {"text", "vision", "other"}
    trained = [p for group in method.param_groups() for p in group["params"]]
    grads = torch.autograd.grad(method._pseudo_misalignment(8), trained, allow_unused=True)
    assert all(grad is None for grad in grads)


def test_released_first_task_trains_one_expert_which_then_becomes_all(small_clip, batch):
    method = released(small_clip)
    method.begin_task(make_task(0))
    ids = {id(p) for g in method.param_groups() for p in g["params"]}
    adapter = method.adapters.text[0]["q"]
    assert id(adapter.experts.B[0]) in ids
    assert id(adapter.experts.B[1]) not in ids
    shake(method)
    method.end_task(make_task(0), [batch])
    assert torch.equal(adapter.experts.B[0], adapter.experts.B[2])
    method.begin_task(make_task(1))
    ids = {id(p) for g in method.param_groups() for p in g["params"]}
    assert id(method.adapters.prototypes[0]) not in ids
    assert id(method.adapters.prototypes[1]) in ids


def test_released_similarities_and_losses_agree_with_the_authors_code(compared, small_clip):
    """Reference: an extract of shared/reference/structalign, the released code (f7291b8) on a tiny random model."""
    reference = {name: torch.tensor(value) for name, value in np.load(FIXTURE).items()}
    compared("structalign", "forward", simplex_etf(20, 32, "gaussian"), reference["etf_C20_d32"].T, 1e-6)
    for padding in ("padeos", "pad0"):
        losses_agree(compared, released(copy.deepcopy(small_clip)), reference, padding)


def losses_agree(compared, method: StructAlign, reference: dict[str, torch.Tensor], padding: str) -> None:
    parts = reference[f"{padding}/text"].split(reference[f"{padding}/text/len"].tolist())
    words, frames = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True), reference["padeos/frames"]
    method.begin_task(Task(0, "task_01", 3, (0, 1), 20))
    method.g_text, method.g_video = (torch.nn.Linear(32, 32, bias=False) for _ in range(2))
    with torch.no_grad():
        method.g_text.weight.copy_(reference["g_text"])
        method.g_video.weight.copy_(reference["g_video"])
    method.prototypes.reference = simplex_etf(20, 32, "gaussian").float()
    similarity = frame_word_similarity(words, frames)
    compared("structalign", "forward", similarity.T, reference[f"{padding}/sim_v2t"], 1e-6)
    losses = method._terms(words, frames, reference["categories"], None)  # with gradients: it notes its weight
    found = {"loss_scl": losses["contrastive"], "lambda_etf": method._weight}
    found |= {"loss_etf": losses["etf"] / method._weight, "loss_total": losses["contrastive"] + losses["etf"]}
    for name, value in found.items():
        compared("structalign", "loss", value.detach(), reference[f"{padding}/{name}"])


def load_reference(method: StructAlign, state: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for layer, block in enumerate(method.adapters.text):
            for name, adapter in block.items():
                prefix = f"clipmodel.text_model.encoder.layers.{layer}.self_attn.{name}_lora."
                adapter.experts.A.copy_(state[prefix + "lora_A.weight"])
                adapter.router.route.copy_(state[prefix + "lora_route.weight"])
                for i, expert in enumerate(adapter.experts.B):
                    expert.copy_(state[f"{prefix}lora_Bs.{i}.weight"])
        for layer, fusion in enumerate(method.adapters.vision, method.adapters.first):
            prefix = f"clipmodel.vision_model.encoder.layers.{layer}.self_attn."
            fusion.alpha.copy_(state[prefix + "alpha"][0])
            for name, parameter in fusion.attention.named_parameters():
                place, kind = name.split(".")
                parameter.copy_(state[f"{prefix}frame_cross_attention.{place}_proj.{kind}"])
        method.g_text.weight.copy_(state["etf_proj1.weight"])
        method.g_video.weight.copy_(state["etf_proj2.weight"])


def test_released_words_frames_and_losses_agree_with_the_authors_model(compared, shared):
    from safetensors.torch import load_file

    folder = shared / "reference" / "structalign"
    state = {name: value.float() for name, value in load_file(folder / "state.safetensors").items()}
    inputs, reference = np.load(folder / "inputs.npz"), np.load(folder / "base_task1.npz")
    shape = shape_of((48, 12, 4), (32, 12, 4), embed=32, image=32, patch=16, context=16, vocab=99, mlp=2)
    clip = transformers_clip(shape, {name.removeprefix("clipmodel."): value for name, value in state.items()})
    tokens, categories = torch.tensor(inputs["input_ids_pad0"]).long(), torch.tensor(inputs["categories_task1"])
    batch = Batch(torch.tensor(inputs["video"]), tokens, torch.arange(4), categories)
    for padding in ("padeos", "pad0"):
        method = make(
            clip, **{**RELEASED_METHOD, "text_alpha": 16.0, "pads_are_words": padding == "padeos", "score": "words"}
        )
        method.begin_task(Task(0, "task_01", 3, (0, 1), 20))
        load_reference(method, state)
        with torch.no_grad():
            words, frames = method._features(batch)
            losses = method.losses(batch)
        expected = {key.removeprefix(f"{padding}/"): torch.tensor(reference[key]) for key in reference}
        compared("structalign", "forward", words[is_word(words)], expected["text"])
        compared("structalign", "forward", frames, expected["frames"])
        compared("structalign", "loss", losses["contrastive"], expected["loss_scl"], 5e-5)
        compared("structalign", "loss", losses["contrastive"] + losses["etf"], expected["loss_total"], 5e-5)


def test_released_prototypes_agree_with_the_authors(compared):
    """Only the first 64 of their 512 numbers are compared."""
    with np.load(FIXTURE.with_name("structalign_prototypes.npz")) as file:
        compared("structalign", "forward", simplex_etf(20, 512, "gaussian").float().T[:64], file["etf_C20_d512"], 1e-6)


@pytest.mark.parametrize(
    ("setting", "term", "pseudo"), [("lambda2", "crp", "inputs"), ("pair_weight", "pairs", "clip")]
)
def test_a_weight_counts_as_often_as_it_says(small_clip, setting, term, pseudo):
    terms = []
    for weight in (0.5, 2.0):
        method = after_one_task(copy.deepcopy(small_clip), pseudo=pseudo, **{setting: weight})
        shake(method, 0.1)
        torch.manual_seed(0)
        terms.append(float(method.losses(second())[term].detach()))
    assert terms[1] == pytest.approx(4 * terms[0], rel=1e-4)
    assert terms[0] > 0


@pytest.mark.parametrize("name", ["tome", "evit", "tempme", "testa"])
def test_teacher_keeps_its_own_token_reduction(small_clip, name):
    """The teacher has a copy of the reducer's own weights, also if these are trained."""
    frames = make_batch(4).frames.shape[1]
    method = StructAlign(StructAlignConfig(reducer=reducer_config(name, num_frames=frames)), small_clip)
    for index in range(2):
        method.begin_task(make_task(index))
        batch = make_batch(4, categories=make_task(index).categories)
        with record_tokens() as states:
            sum(method.losses(batch).values()).backward()
        log = token_log(method.adapters.reducer.steps, small_clip.vision.num_tokens, frames)
        assert [state.log for state in states] == [log] * (1 + index)
        method.end_task(make_task(index), [batch])
    handed = {id(p) for group in method.param_groups() for p in group["params"]}
    added = list(method.adapters.reducer.parameters())
    assert all(id(p) in handed and p.grad is not None for p in added)
    taught = method.teacher.module.reducer
    assert taught is not method.adapters.reducer
    assert method.encode_video(batch.frames).shape == (4, frames, 16)


def test_frames_with_cross_attention_need_the_same_patches(small_clip):
    config = {"adapters": "task_aware", "fusion_layers": 2}
    assert StructAlign(StructAlignConfig(**config), small_clip).frozen_blocks == 2
    assert (
        StructAlign(StructAlignConfig(**config, reducer=reducer_config("tome_shared")), small_clip).frozen_blocks == 0
    )
    with pytest.raises(ValueError, match="Set reducer.name=tome_shared"):
        StructAlign(StructAlignConfig(**config, reducer=reducer_config("evit")), small_clip)
