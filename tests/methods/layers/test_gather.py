"""`gather` with one worker; several workers: tests/workers."""

import torch

from ctvr.methods.layers.gather import gather, world_size


def test_alone_gather_returns_what_it_was_given():
    x = torch.randn(3, 2)
    assert gather(x) is x
    assert world_size() == 1
