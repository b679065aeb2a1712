"""Frames are averaged, optionally after each has been normalized."""

import pytest
import torch

from ctvr.methods.layers.pooling import frame_mean, frame_sum, mean_pool, order_free_sums


def test_a_long_frame_counts_more_unless_frames_are_normalised():
    frames = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]])
    torch.testing.assert_close(mean_pool(frames), torch.tensor([[3.0, 1.0]]) / 10**0.5)
    torch.testing.assert_close(mean_pool(frames, "l2"), torch.tensor([[1.0, 1.0]]) / 2**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 12, 64])
def test_frames_by_value_give_any_order_the_same_bits(count, dtype):
    generator = torch.Generator().manual_seed(count)
    frames = torch.randn(6, count, 32, generator=generator).to(dtype)
    plain = frames.mean(dim=1)
    assert torch.equal(frame_mean(frames), plain)  # training keeps its sums
    with order_free_sums():
        whole, total = frame_mean(frames), frame_sum(frames)
        assert whole.dtype == total.dtype == dtype
        for _ in range(5):
            moved = frames[:, torch.randperm(count, generator=generator)]
            assert torch.equal(frame_mean(moved), whole)
            assert torch.equal(frame_sum(moved), total)
            assert torch.equal(mean_pool(moved, "l2"), mean_pool(frames, "l2"))
        assert torch.equal(frame_mean(frames[:1]), whole[:1])
    torch.testing.assert_close(whole, plain)
    assert torch.equal(frame_mean(frames), plain)
