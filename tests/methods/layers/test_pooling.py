"""Frames are averaged, optionally after each has been normalised."""

import torch

from ctvr.methods.layers.pooling import mean_pool


def test_a_long_frame_counts_more_unless_frames_are_normalised():
    frames = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]])
    torch.testing.assert_close(mean_pool(frames), torch.tensor([[3.0, 1.0]]) / 10**0.5)
    torch.testing.assert_close(mean_pool(frames, "l2"), torch.tensor([[1.0, 1.0]]) / 2**0.5)
