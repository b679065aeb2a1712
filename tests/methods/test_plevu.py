import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.plevu import PLEVU, PLEVUConfig
from ctvr.methods.zero_shot import ZeroShot, ZeroShotConfig
from ctvr.orchestrator.catalog.cost_table import estimate
from ctvr.orchestrator.learning.evaluation.cost import trained_parameters
from tests.methods.conftest import make_batch
from tests.methods.released import FIXTURES, Weights, floats, read, shape_of, tiny_clip

SHAPE = shape_of((64, 1, 1), (32, 3, 4), embed=32, image=32, patch=16, context=77, vocab=100)


def make(clip, **settings) -> PLEVU:
    """Return a method whose vectors are as long as words."""
    torch.manual_seed(0)
    method = PLEVU(PLEVUConfig(**{"prefix": 2, "postfix": 3, "num_frames": 4, **settings}), clip)
    with torch.no_grad():
        method.vectors.normal_(0, 0.5)
        method.times.normal_(0, 0.5)
    return method.eval()


# ------------------------------------------------------------------------------------- the released code


def ours(state: Weights) -> Weights:
    """Return the release's new parameters under our names."""
    made = {"vectors": state["embedding.weight"], "times": state["temporalEmbedding.weight"]}
    for name, value in floats(state, "temporalModelling.resblocks.").items():
        if "." in name and name[0].isdigit():
            made[f"frames.{name}".replace("in_proj_", "in_").replace("out_proj", "out")] = value
    return made


def released(folder: Path) -> tuple[PLEVU, Weights]:
    state = floats(read(folder / "plevu_state.npz"))
    clip = tiny_clip(SHAPE, floats(state, "clipmodel."))
    method = PLEVU(PLEVUConfig(prefix=4, postfix=3, layers=2, num_frames=6, directions="video"), clip)
    found = method.load_state_dict(ours({n: v for n, v in state.items() if "clipmodel" not in n}), strict=False)
    assert found.unexpected_keys == []
    return method, read(folder / "plevu_io.npz")


def test_captions_frames_losses_and_gradients_equal_the_released_code(shared, compared):
    folder = shared / "reference" / "adapters"
    method, io = released(folder)
    facts = json.loads((folder / "plevu.json").read_text())
    text = method.backbone.text
    x, state = text.embed(io["tokens"][:4])
    put = method.placed(x, state) - text.positional_embedding[: x.shape[1] + 7]
    compared("plevu", "forward", put, io["prompted_embedding"][:, : put.shape[1]])
    frames = io["frame_features"].float()
    compared("plevu", "forward", frames + method.times, io["temporal_in"])
    videos, texts = method.over_frames(frames), method.encode_text(io["tokens"])
    compared("plevu", "forward", videos, io["video_raw"])
    compared("plevu", "forward", texts, l2_normalize(io["text_raw"]))
    logits = method.scale() * method.score(texts, l2_normalize(videos))
    compared("plevu", "forward", logits.mT, io["logits_v2t"], 5e-5)
    loss = F.cross_entropy(logits.mT, io["target"])
    compared("plevu", "loss", loss, facts["loss"], 2e-5)
    loss.backward()
    mine = dict(method.named_parameters())
    for name, gradient in ours(floats(io, "grad/")).items():
        compared("plevu", "gradients", mine[name].grad, gradient, 1e-4)
    for name, norm in ours({name: torch.tensor(value) for name, value in facts["grad_norms"].items()}).items():
        compared("plevu", "gradients", mine[name].grad.norm(), norm, 1e-4)


def test_similarities_and_loss_of_stored_features_equal_the_released_ones(compared, small_clip):
    file = read(FIXTURES / "plevu_released.npz")
    method = make(small_clip)
    logits = method.scale() * method.score(l2_normalize(file["text"]), l2_normalize(file["video"]))
    compared("plevu", "forward", logits.mT, file["logits"], 5e-5)
    compared("plevu", "loss", F.cross_entropy(logits.mT, file["target"].long()), file["loss"], 2e-5)


# ------------------------------------------------------------------------------------- invariants


def test_counts_are_the_papers():
    for settings, count in (
        ({}, 6_350_336),
        ({"layers": 1, "num_frames": 16}, 3_200_000),
        ({"num_frames": 16}, 6_352_384),
        ({"layers": 4, "num_frames": 16}, 12_657_152),
    ):
        assert trained_parameters(estimate("plevu", settings, backbone="ViT-B-16-quickgelu")[0]) == count


def test_without_vectors_and_layers_it_is_clip(small_clip):
    batch = make_batch(4, 4)
    plain, method = ZeroShot(ZeroShotConfig(), small_clip), make(small_clip, prefix=0, postfix=0, layers=0)
    torch.testing.assert_close(method.encode_text(batch.tokens), plain.encode_text(batch.tokens))
    torch.testing.assert_close(method.encode_video(batch.frames), plain.encode_video(batch.frames))
    changed = make(small_clip)
    assert not torch.allclose(changed.encode_text(batch.tokens), plain.encode_text(batch.tokens), atol=1e-3)
    assert not torch.allclose(changed.encode_video(batch.frames), plain.encode_video(batch.frames), atol=1e-3)


def test_position_vectors_after_the_end_have_no_effect(small_clip):
    """Row 0 is the position of the start; a caption of k words uses rows 1, 2 and k + 3 .. k + 5."""
    method = make(small_clip)
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    tokens[0, :5] = torch.tensor([98, 4, 5, 6, 99])  # three words
    method.encode_text(tokens).sum().backward()
    used = method.vectors.grad.abs().sum(dim=1).nonzero()[:, 0].tolist()
    assert used == [1, 2, 6, 7, 8]
    x, state = small_clip.text.embed(tokens)
    put = method.placed(x, state) - small_clip.text.positional_embedding[:10]
    own = small_clip.text.token_embedding.weight
    torch.testing.assert_close(put[0, [0, 3, 4, 5, 9]], own[[98, 4, 5, 6, 99]])
    assert torch.allclose(put[0, used], method.vectors[used], atol=1e-6)


def test_a_caption_that_is_too_long_is_cut_and_keeps_its_end(small_clip):
    method = make(small_clip)
    tokens = torch.randint(1, 90, (1, 16))
    tokens[0, 0], tokens[0, -1] = 98, 99
    cut = tokens[:, :11].clone()
    cut[0, -1] = 99
    torch.testing.assert_close(method.encode_text(tokens), method.encode_text(cut))
    assert make(small_clip, prefix=16, postfix=16).around == (4, 4)


def test_the_order_of_frames_reaches_the_video_through_the_times_alone(small_clip):
    frames, order = make_batch(2, 4).frames, torch.tensor([2, 0, 3, 1])
    method = make(small_clip)
    assert not torch.allclose(method.encode_video(frames), method.encode_video(frames[:, order]), atol=1e-4)
    with torch.no_grad():
        method.times.zero_()
    torch.testing.assert_close(method.encode_video(frames), method.encode_video(frames[:, order]), atol=1e-5, rtol=1e-4)


def test_the_loss_is_of_both_directions_or_of_videos_over_captions(small_clip):
    batch = make_batch(4, 4)
    both, video = make(small_clip), make(small_clip, directions="video")
    logits = both.logits(batch)
    torch.testing.assert_close(both.losses(batch)["contrastive"], contrastive(logits))
    torch.testing.assert_close(video.losses(batch)["contrastive"], F.cross_entropy(logits.mT, torch.arange(4)))
    assert float(make(small_clip, tau=0.2).scale()) == pytest.approx(5)
