import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.zero_shot import ZeroShot, ZeroShotConfig
from tests.methods.conftest import make_batch, make_task


@pytest.fixture
def method(small_clip):
    return ZeroShot(ZeroShotConfig(), small_clip).eval()


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_the_order_of_frames_is_irrelevant(method, batch):
    close(method.encode_video(batch.frames.flip(1)), method.encode_video(batch.frames))


def test_one_frame_repeated_is_the_feature_of_that_image(method, batch):
    image = F.normalize(method.backbone.vision(batch.frames[:, :1])[:, 0], dim=-1)
    close(method.encode_video(batch.frames[:, :1].expand(-1, 5, -1, -1, -1)), image)


def test_frames_are_averaged_before_the_feature_is_normalised(method, batch):
    frames = method.backbone.vision(batch.frames)
    close(method.encode_video(batch.frames), F.normalize(frames.mean(dim=1), dim=-1))
    other = ZeroShot(ZeroShotConfig(frame_norm="l2"), method.backbone).encode_video(batch.frames)
    close(other, F.normalize(F.normalize(frames, dim=-1).mean(dim=1), dim=-1))
    assert not torch.allclose(other, method.encode_video(batch.frames), atol=1e-4)


def test_nothing_is_trained_and_no_task_changes_a_feature(method, batch):
    before = method.encode_video(batch.frames), method.encode_text(batch.tokens)
    for index in range(3):
        method.begin_task(make_task(index))
        assert method.param_groups() == []
        method.end_task(make_task(index), [make_batch(seed=index)])
        method.on_gallery_stored(make_task(index), before[0])
    assert torch.equal(method.encode_video(batch.frames), before[0])
    assert torch.equal(method.encode_text(batch.tokens, 1), before[1])


def test_features_are_unit_vectors_and_scores_are_cosines(method, batch):
    videos, captions = method.encode_video(batch.frames), method.encode_text(batch.tokens)
    close(videos.norm(dim=-1), torch.ones(6))
    close(captions.norm(dim=-1), torch.ones(6))
    assert float(method.score(captions, videos).abs().max()) <= 1 + 1e-6
