import copy

import pytest
import torch

from ctvr.methods.backbone.clip import TextTower
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.layers.replay.mixup import (
    embed_mixed,
    mix_features,
    mixed_captions,
    mixed_features,
    sample_lambda,
)
from tests.methods.conftest import make_batch
from tests.refusing import refuses


@pytest.fixture
def captions():
    """Return two groups of captions whose lengths differ pair by pair."""
    return make_batch(4, seed=1).tokens, make_batch(4, seed=2).tokens


def mixed(clip, first, second, share, encode=TextTower.forward):
    with mixed_captions(clip, first, second, share):
        return encode(clip.text, first)


@pytest.mark.parametrize("alpha", [0.4, 1.0])
def test_the_share_has_the_moments_of_its_beta_distribution(alpha):
    torch.manual_seed(0)
    shares = torch.tensor([sample_lambda(alpha) for _ in range(4000)])
    assert shares.mean().item() == pytest.approx(0.5, abs=0.03)
    assert shares.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), abs=0.01)


def test_all_of_one_caption_is_that_caption(small_clip, captions):
    first, second = captions
    torch.testing.assert_close(mixed(small_clip, first, second, 1.0), small_clip.text(first))
    torch.testing.assert_close(mixed(small_clip, first, second, 0.0), small_clip.text(second))


def test_a_mixed_caption_does_not_depend_on_longer_ones(small_clip, captions):
    first, second = captions
    order = torch.maximum(first.argmax(dim=-1), second.argmax(dim=-1)).argsort()
    shortest = order[:1]
    alone = mixed(small_clip, first[shortest], second[shortest], 0.6)
    torch.testing.assert_close(alone, mixed(small_clip, first, second, 0.6)[shortest], atol=1e-6, rtol=1e-5)
    (longest,) = order[-1:].tolist()  # the tower's own embeddings, where no kernel can round otherwise
    together, _ = embed_mixed(small_clip.text, first, second, 0.6)
    own, _ = embed_mixed(small_clip.text, first[shortest], second[shortest], 0.6)
    assert longest != int(shortest)
    assert torch.equal(together[shortest, : own.shape[1]], own)
    assert not together[shortest, own.shape[1] :].any()


def test_swapping_captions_and_share_changes_nothing(small_clip, captions):
    first, second = captions
    torch.testing.assert_close(mixed(small_clip, first, second, 0.3), mixed(small_clip, second, first, 0.7))


def test_captions_are_mixed_before_the_blocks_and_not_after_them(small_clip, captions):
    first, second = captions
    found = mixed(small_clip, first, second, 0.5)
    behind = (small_clip.text(first) + small_clip.text(second)) / 2
    assert (found - behind).abs().max() > 0.01


def test_words_follow_the_caption_that_is_named(small_clip, captions):
    first, second = captions
    _, eot = mixed(small_clip, first, second, 0.6, TextTower.hidden)
    assert torch.equal(eot, first.argmax(dim=-1))


def test_copies_of_the_captions_are_mixed_copy_by_copy(small_clip, captions):
    first, second = captions
    with mixed_captions(small_clip, first, second, 0.6):
        twice = small_clip.text(first.repeat(2, 1))
        once = small_clip.text(first)
    torch.testing.assert_close(twice, once.repeat(2, 1))


def test_a_tower_and_its_copy_both_mix(small_clip, captions):
    """A momentum encoder reads the same mixture as the encoder that it follows."""
    pair = torch.nn.ModuleList([small_clip, copy.deepcopy(small_clip)])
    with mixed_captions(pair, *captions, 0.6):
        assert torch.equal(pair[0].text(captions[0]), pair[1].text(captions[0]))


def test_rewritten_captions_are_refused_and_the_tower_restored(small_clip, captions):
    first, second = captions
    plain = small_clip.text(first)
    with (
        refuses("mix_level=feature", kind=ValueError, settings=("mix_level",)),
        mixed_captions(small_clip, first, second, 0.6),
    ):
        small_clip.text(first.flip(0))
    assert torch.equal(small_clip.text(first), plain)


def test_a_retriever_that_goes_around_the_tower_is_refused(small_clip, captions):
    with (
        refuses(kind=ValueError, settings=("mix_level",)),
        mixed_captions(small_clip, *captions, 0.6),
    ):
        pass


def test_mixing_of_features_that_the_loss_does_not_use_is_refused(small_clip, captions):
    retriever = Clip4Clip(Clip4ClipConfig(), small_clip)
    with (
        refuses("Clip4Clip", kind=ValueError, settings=("mix_level",)),
        mixed_features(retriever, *captions, 0.6, "encode_text"),
    ):
        retriever.encode_text(captions[1])
    assert "encode_text" not in vars(retriever)


def test_mixing_keeps_unit_vectors_and_mean_lengths():
    torch.manual_seed(0)
    first, second = torch.randn(5, 8), 3 * torch.randn(5, 8)
    lengths = 0.3 * first.norm(dim=-1) + 0.7 * second.norm(dim=-1)
    torch.testing.assert_close(mix_features(first, second, 0.3).norm(dim=-1), lengths)
    torch.testing.assert_close(mix_features(first, second, 1.0), first)
    unit = mix_features(first / first.norm(dim=-1, keepdim=True), second / second.norm(dim=-1, keepdim=True), 0.3)
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(5))


def test_pads_stay_pads_and_have_finite_gradients():
    first, second = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    first[:, 2], second[:, 4] = 0, 0
    first.requires_grad_()
    found = mix_features(first, second, 0.5)
    assert found.shape == (2, 5, 4)
    assert found[:, 4].abs().max() == 0
    assert found[:, 2].abs().min() > 0
    found.sum().backward()
    assert torch.isfinite(first.grad).all()
