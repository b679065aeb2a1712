from itertools import product

import pytest
import torch

from ctvr.methods.backbone.clip import TokenState, record_tokens
from ctvr.methods.base import l2_normalize
from ctvr.methods.clip_vip import CLIPViP, CLIPViPConfig, VideoProxies, between
from tests.methods.conftest import make_batch

PROXIES, FRAMES, PATCHES = 2, 3, 16


def make(clip, time=True, **settings):
    """Return a method whose time embeddings are not zero."""
    torch.manual_seed(0)
    method = CLIPViP(CLIPViPConfig(**{"num_proxies": PROXIES, "temporal_size": FRAMES, **settings}), clip)
    if time:
        method.video.time.data.normal_(0, 0.3)
    return method.eval()


def tokens(method, batch=2, seed=0):
    torch.manual_seed(seed)
    return torch.randn(batch, 1 + PROXIES + FRAMES * PATCHES, method.backbone.vision.width)


def attend(method, x):
    attention = method.backbone.vision.blocks[0].attn
    return method.video.attend(attention, x, FRAMES, TokenState(len(x), FRAMES))


def patches_of(frame):
    start = 1 + PROXIES + frame * PATCHES
    return slice(start, start + PATCHES)


def test_without_proxies_and_time_an_image_is_clips_image(small_clip):
    method, frames = make(small_clip, time=False, num_proxies=0, temporal_size=1), make_batch(frames=1).frames
    torch.testing.assert_close(
        method.encode_video(frames), l2_normalize(small_clip.vision(frames)[:, 0]), rtol=1e-4, atol=1e-5
    )


def test_repeating_a_frame_is_not_the_image(small_clip):
    method, frames = make(small_clip, time=False, num_proxies=0), make_batch(frames=1).frames
    image, video = method.encode_video(frames), method.encode_video(frames.expand(-1, FRAMES, -1, -1, -1))
    assert not torch.allclose(image, video, atol=1e-3)  # the class token weighs less against three times the patches


def test_the_two_softmaxes_are_one_masked_softmax(small_clip):
    method = make(small_clip)
    x = tokens(method)
    attention = method.backbone.vision.blocks[0].attn
    q, k, v = (
        attention.heads_first(z)
        for z in (torch.nn.functional.linear(x, attention.in_weight, attention.in_bias)).chunk(3, -1)
    )
    frame = torch.arange(x.shape[1]).sub(1 + PROXIES).div(PATCHES, rounding_mode="floor")
    frame[: 1 + PROXIES] = -1
    allowed = (frame[:, None] == -1) | (frame[None] == -1) | (frame[:, None] == frame[None])
    assert int(allowed[-1].sum()) == 1 + PROXIES + PATCHES  # what the softmax of a patch runs over
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    torch.testing.assert_close(
        attend(method, x), attention.out(expected.transpose(1, 2).flatten(2)), rtol=1e-4, atol=1e-5
    )


def test_patches_of_one_frame_do_not_see_those_of_another_within_a_block(small_clip):
    method = make(small_clip)
    x = tokens(method)
    other = x.clone()
    other[:, patches_of(0)] += 1.0
    before, after = attend(method, x), attend(method, other)
    torch.testing.assert_close(after[:, patches_of(1)], before[:, patches_of(1)])
    assert not torch.allclose(after[:, : 1 + PROXIES], before[:, : 1 + PROXIES], atol=1e-3)
    assert not torch.allclose(after[:, patches_of(0)], before[:, patches_of(0)], atol=1e-3)


def test_frames_exchange_information_through_global_prompts(small_clip):
    method, frames = make(small_clip), make_batch().frames
    other = frames.clone()
    other[:, 0] += 1.0
    assert not torch.allclose(method.encode_video(frames), method.encode_video(other), atol=1e-4)


def test_frame_order_matters_only_with_time_embeddings(small_clip):
    frames = make_batch().frames
    for has_time in (False, True):
        method = make(small_clip, time=has_time)
        same = torch.allclose(method.encode_video(frames.flip(1)), method.encode_video(frames), atol=1e-5)
        assert same != has_time


def test_time_embeddings_are_interpolated_to_other_lengths(small_clip):
    video = make(small_clip, temporal_size=4).video
    assert torch.equal(video.time_embedding(4), video.time)
    torch.testing.assert_close(
        torch.nn.functional.interpolate(video.time.mT, size=4, mode="linear").mT, video.time
    )  # and interpolating to its own length is the identity
    video.time.data = torch.tensor([0.0, 1.0, 2.0, 3.0])[None, :, None].expand(1, 4, 32).clone()
    eight = video.time_embedding(8)[0, :, 0]
    assert eight.shape == (8,)
    for size, frames in product((1, 3, 4, 12), (1, 2, 5, 8, 12)):
        tau = torch.randn(1, size, 6)
        expected = torch.nn.functional.interpolate(tau.mT, size=frames, mode="linear").mT
        torch.testing.assert_close(between(size, frames, tau.device) @ tau, expected)
    assert (eight.diff() >= 0).all()
    assert video.time_embedding(1).shape == (1, 1, 32)
    for frames in (1, 2, 7):
        method = make(small_clip, temporal_size=4)
        assert method.encode_video(make_batch(frames=frames).frames).shape == (6, 16)


def test_proxies_stand_at_the_place_of_the_class_token_and_out_of_time(small_clip):
    method = make(small_clip)
    small_clip.vision.class_embedding.data = method.video.proxies[0].detach().clone()
    x = method.video._embed(small_clip.vision, make_batch().frames)
    torch.testing.assert_close(x[:, 1], x[:, 0])  # equal embeddings stay equal
    frames = make_batch().frames[:, :1].expand(-1, FRAMES, -1, -1, -1)
    x = method.video._embed(small_clip.vision, frames)
    assert not torch.allclose(x[:, patches_of(0)], x[:, patches_of(1)], atol=1e-3)


@pytest.mark.parametrize("init", ["normal", "copy_cls", "zeros"])
def test_proxies_start_as_asked(small_clip, init):
    proxies = make(small_clip, proxy_init=init, num_proxies=200).video.proxies
    if init == "normal":
        assert float(proxies.std()) == pytest.approx(1.0, abs=0.05)
    elif init == "copy_cls":
        own = small_clip.vision.class_embedding
        assert 0 < float((proxies - own).abs().max()) < 0.2 * float(own.std())
    else:
        assert not proxies.any()


def test_multiply_adds_count_the_attention_that_is_done(small_clip):
    method = make(small_clip)
    with record_tokens() as states:
        method.encode_video(make_batch(pairs=2).frames)
    (state,) = states
    whole, all_ = 1 + PROXIES, 1 + PROXIES + FRAMES * PATCHES
    assert state.log == [(1, all_, all_)] * 4
    saved = all_**2 - whole * all_ - FRAMES * PATCHES * (whole + PATCHES)
    assert state.extra_macs == -2 * 4 * 2 * 32 * saved


@pytest.mark.parametrize(("proxies", "frames", "total"), [(4, 12, 151_289_601), (3, 12, 151_288_833)])
def test_the_printed_parameters_are_these(proxies, frames, total):
    class Tower:
        width, class_embedding = 768, torch.empty(768, device="meta")

    with torch.device("meta"):
        added = VideoProxies(Tower(), CLIPViPConfig(num_proxies=proxies, temporal_size=frames))
    assert 151_277_313 + sum(p.numel() for p in added.parameters()) == total
