"""UMT's towers, fusion layers, losses and reducers compared with its authors' code, and their invariants."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from ctvr.methods.backbone.bert import FusionBert
from ctvr.methods.backbone.umt import Umt, UmtVision, sine_positions
from ctvr.methods.backbone.umt_weights import under_our_names
from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.losses.matching import matching, negative_weights, shared_contrastive
from ctvr.methods.layers.reduction.config import ReducerConfig
from ctvr.methods.layers.reduction.reducers import make_reducer
from ctvr.orchestrator.learning.evaluation.cost import tower_macs
from tests.methods.conftest import reducer_config
from tests.methods.released import floats, read

VISION = {"image": 32, "patch": 8, "width": 64, "blocks": 4, "heads": 4, "embed": 32}
TEXT = {"width": 48, "layers": 4, "fusion_from": 2, "heads": 4, "hidden": 96, "vocabulary": 128, "places": 40}


def close(found: Tensor, released: Any, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found.detach().double(), torch.as_tensor(released).double(), rtol=0, atol=atol)


def small_umt(attends: str = "video") -> Umt:
    vision = UmtVision(**VISION, attends=attends)  # type: ignore[arg-type]
    bert = FusionBert(**TEXT, video_width=64)
    return Umt(vision, bert, lambda texts: torch.empty(0), (0.5,) * 3, (0.5,) * 3, 32).eval()


def released_umt(folder: Any, attends: str = "video") -> Umt:
    made = small_umt(attends)
    state = floats(read(folder / "umt_s_state.npz"))
    prefixed = {name.replace("text_encoder.", "text_encoder.bert.", 1): value for name, value in state.items()}
    for weights in (state, {**prefixed, "text_encoder.cls.bias": torch.zeros(1)}):
        made.load_state_dict(under_our_names(weights))
    with pytest.raises(ValueError, match="is not a weight of UMT"):
        under_our_names({"another.weight": torch.zeros(1)})
    return made


@torch.no_grad()
def test_towers_fusion_and_scores_equal_the_released_code(shared):
    folder = shared / "reference" / "umt"
    umt, io = released_umt(folder), read(folder / "umt_s_io.npz")
    frames, ids = io["video"].float(), io["input_ids"]
    x, _ = umt.vision.embed(frames[:1])
    close(x, io["block0_in_video0"])
    close(sine_positions(4, 16, 64), io["pos_embed"])
    close(sine_positions(1, 16, 64), io["img_pos_embed"])
    tokens, pooled, state = umt.vision.tokens(frames)
    close(tokens, io["vision_embeds"])
    close(pooled, io["pooled"])
    assert state.log == [(1, 64, 64)] * 4
    words, feature = umt.text.read(ids)
    there = io["attention_mask"].bool()
    close(words[there], io["text_embeds"][there])
    videos = umt.vision.proj(pooled)
    close(videos, io["vision_proj"])
    close(feature, io["text_proj"])
    scores = torch.einsum("vtd,qd->vq", l2_normalize(videos), l2_normalize(feature)) / pooled.shape[1]
    close(scores, io["sim_v2t_temp1"])
    memory = umt.text.bert.memory(tokens)
    close(umt.match(words, ids, memory), io["vtm_logits_pairs"])
    fused = umt.text.bert.fuse(words, ids, memory)
    close(fused[there], io["fusion_hidden2"][there])
    state_of = floats(io, "loss_distinct/")
    similar, idx = scores / umt.temp, state_of["idx"]
    close(similar, io["sim_v2t"], 2e-5)
    close(shared_contrastive(similar.mT, idx), state_of["vtc"])
    close(negative_weights(similar.mT, idx), state_of["weights_t2v"])
    close(negative_weights(similar, idx), state_of["weights_v2t"])
    wrong_video, wrong_text = state_of["vision_neg"].long(), state_of["text_neg"].long()
    rows = torch.arange(4)
    captions, shown = torch.cat([rows, rows, wrong_text]), torch.cat([rows, wrong_video, rows])
    chosen = [(keys[shown], values[shown]) for keys, values in memory]
    logits = umt.match(words[captions], ids[captions], chosen)
    close(logits, state_of["vtm_logits"])
    close(matching(logits), state_of["vtm"])


@torch.no_grad()
def test_frames_apart_and_merged_tokens_equal_the_composed_reference(shared):
    folder = shared / "reference" / "umt"
    umt, io, released = released_umt(folder, "frame"), read(folder / "umt_s_io.npz"), read(folder / "umt4clip_s.npz")
    frames, ids = io["video"].float(), io["input_ids"]
    words, feature = umt.text.read(ids)

    def scored(pooled: Tensor) -> Tensor:
        return (
            torch.einsum("vtd,qd->vq", l2_normalize(umt.vision.proj(pooled)), l2_normalize(feature)) / pooled.shape[1]
        )

    tokens, pooled, state = umt.vision.tokens(frames)
    close(tokens.unflatten(1, (4, 16))[:1], released["umt4clip/embeds_video0"])
    close(pooled, released["umt4clip/pooled"])
    close(scored(pooled), released["umt4clip/sim_v2t_temp1"])
    assert state.log == [(4, 16, 16)] * 4
    facts = json.loads((folder / "umt4clip.json").read_text())["tempme"]
    settings = {"r": facts["r"], "clip_blocks": tuple(facts["blocks"]), "clip_groups": tuple(facts["groups"])}
    config = reducer_config("tempme", num_frames=4, keep_cross=70, keep_intra=90, **settings)
    reducer = make_reducer(config, umt.vision)
    for block in (1, 2):
        reducer.positions[str(block)].copy_(released[f"tempme/positions{block}"])
    tokens, pooled, state = umt.vision.tokens(frames, reducer.seams())
    close(tokens, released["tempme/embeds"])
    close(pooled, released["tempme/pooled_sized"])
    close(scored(pooled), released["tempme/sim_v2t_temp1_sized"])
    assert [tokens for _, _, tokens in state.log] == [step[1] for step in facts["log"]]
    _, plain, _ = umt.vision.tokens(frames, reducer.seams(), weighted=False)
    close(plain, released["tempme/pooled_plain"])
    close(scored(plain), released["tempme/sim_v2t_temp1_plain"])
    close(umt.match(words, ids, umt.text.bert.memory(tokens)), released["tempme/vtm_logits_pairs"])


@torch.no_grad()
def test_re_ranked_scores_equal_the_released_evaluation(shared):
    """Six videos and captions are used, all among the 128 best; keys and values of a video are computed once."""
    folder = shared / "reference" / "umt"
    umt, released = released_umt(folder), read(folder / "umt_eval_one_caption.npz")
    import numpy as np

    drawn = np.random.RandomState(302).standard_normal((6, 4, 3, 32, 32)).astype(np.float16).astype(np.float32)
    tokens, pooled, _ = umt.vision.tokens(torch.from_numpy(drawn))
    ids = released["input_ids"]
    words, feature = umt.text.read(ids)
    dual = torch.einsum("vtd,qd->vq", l2_normalize(umt.vision.proj(pooled)), l2_normalize(feature)) / 4
    close(dual, released["v2t_dual"])
    close(dual.mT, released["t2v_dual"])
    judged = [umt.match(words, ids, umt.text.bert.memory(video[None]))[:, 1] for video in tokens]
    close(torch.stack(judged), released["v2t_rerank"])
    close(torch.stack(judged, dim=1), released["t2v_rerank"])


def test_sizes_and_multiply_adds_at_full_size_are_the_published_models(shared):
    counts = json.loads((shared / "reference" / "umt" / "umt_counts.json").read_text())
    with torch.device("meta"):
        umt = Umt(UmtVision(), FusionBert(), lambda texts: torch.empty(0), (0.5,) * 3, (0.5,) * 3, 224)
    assert sum(parameter.numel() for parameter in umt.parameters()) == counts["B"]["retrieval"]
    vision = sum(parameter.numel() for parameter in umt.vision.parameters()) - 393_728
    assert vision == counts["B"]["vision_encoder"]
    assert sum(parameter.numel() for parameter in umt.text.bert.parameters()) == counts["B"]["text_encoder"]
    frames = torch.empty(1, 12, 3, 224, 224, device="meta")

    def passed(attends: Any, config: ReducerConfig) -> tuple[float, int]:
        with torch.device("meta"):
            vision = UmtVision(attends=attends)
            state = vision.tokens(frames, make_reducer(config, vision).seams())[2]
        return tower_macs(vision, state.log, state.frames) + state.extra_macs, state.log[-1][0] * state.log[-1][2]

    assert passed("video", ReducerConfig()) == (counts["B vision MACs umt 12"], 2352)
    assert passed("frame", ReducerConfig()) == (12 * counts["B vision MACs one frame"], 2352)
    assert passed("frame", reducer_config("tempme"))[1] == 125  # by TempMe's rates for a B/16


# ------------------------------------------------------------------------------------- invariants


def test_positions_begin_as_an_images_and_stretch_over_time():
    assert torch.equal(sine_positions(1, 9, 16), sine_positions(5, 9, 16)[:9])
    assert torch.equal(sine_positions(4, 9, 16, 4), sine_positions(4, 9, 16))
    stretched = sine_positions(8, 9, 16, 4).unflatten(0, (8, 9))
    own = sine_positions(4, 9, 16).unflatten(0, (4, 9))
    torch.testing.assert_close(stretched[0], own[0])
    torch.testing.assert_close(stretched[1], 0.75 * own[0] + 0.25 * own[1])
    fine, frames = UmtVision(**VISION, pretrained_frames=2), torch.zeros(1, 4, 3, 32, 32)
    found = fine.embed(frames)[0] - fine.conv1.bias
    torch.testing.assert_close(found[0].detach(), sine_positions(4, 16, 64, 2))


def test_keys_have_no_trained_bias_and_frames_stay_independent():
    umt, frames = small_umt("frame"), torch.randn(2, 3, 3, 32, 32)
    umt.vision(frames).square().sum().backward()
    attention = umt.vision.blocks[0].attn
    assert attention.q_bias.grad is not None
    torch.nn.init.constant_(attention.q_bias, 0.5)  # it starts at zero
    assert torch.equal(attention.in_bias[64:128], torch.zeros(64))
    other = frames.clone()
    other[:, 1] += 1.0
    before, after = umt.vision(frames), umt.vision(other)
    torch.testing.assert_close(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.allclose(before[:, 1], after[:, 1], atol=1e-3)
    joint = small_umt()
    assert not torch.allclose(joint.vision(frames)[:, 0], joint.vision(other)[:, 0], atol=1e-4)


@torch.no_grad()
def test_features_of_a_caption_do_not_depend_on_longer_ones():
    umt = small_umt()
    tokens = torch.tensor([[1, 5, 9, 127, 0, 0], [1, 5, 9, 7, 8, 127]])
    assert umt.text.without_end(tokens).tolist() == [[1, 5, 9, 0, 0, 0], [1, 5, 9, 7, 8, 0]]
    torch.testing.assert_close(umt.text(tokens[:1, :4]), umt.text(tokens)[:1])
    ids = umt.text.without_end(tokens)
    memory = umt.text.bert.memory(torch.randn(1, 10, 64))
    torch.testing.assert_close(
        umt.match(umt.text.read(ids[:1, :3])[0], ids[:1, :3], memory), umt.match(umt.text.read(ids)[0], ids, memory)[:1]
    )


def test_captions_of_one_video_share_its_mass_and_are_no_negatives():
    scores, videos = torch.randn(4, 4), torch.tensor([3, 5, 3, 7])
    weights = negative_weights(scores, videos)
    assert (weights == 0).tolist() == (videos[:, None] == videos[None, :]).tolist()
    easy = negative_weights(scores, videos, hard=False)
    assert easy[0].tolist() == [0, 1, 0, 1]
    best = torch.where(videos[:, None] == videos[None, :], 50.0, 0.0)
    near = torch.tensor(2.0).log() / 2  # two rows of four share their mass with one other each
    torch.testing.assert_close(shared_contrastive(best, videos), near)
    with pytest.raises(ValueError, match="has only one"):
        negative_weights(scores, torch.zeros(4))


def test_reducer_that_needs_a_class_token_is_refused():
    apart, joint = small_umt("frame"), small_umt()
    with pytest.raises(ValueError, match="Use reducer.name=none, tome, tome_shared or tempme"):
        make_reducer(reducer_config("evit"), apart.vision)
    merging = make_reducer(reducer_config("tome", r=2), apart.vision)
    frames = torch.randn(1, 3, 3, 32, 32)
    assert apart.vision.tokens(frames, merging.seams())[2].log[-1] == (3, 10, 8)
    with pytest.raises(ValueError, match="Set attends=frame"):
        joint.vision.tokens(frames, merging.seams())
    none = make_reducer(ReducerConfig(), apart.vision)
    assert torch.equal(apart.vision(frames), apart.vision(frames, none.seams()))
