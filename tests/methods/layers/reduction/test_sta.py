import torch

from ctvr.methods.layers.reduction.sta import survivors


def test_a_frame_keeps_what_the_frame_before_does_not_have(small_clip):
    """One patch of frame 2 is unlike all of frame 1: it stays first, however few patches of the frame are kept."""
    keys = torch.eye(6)[torch.tensor([[0, 0, 0, 0], [0, 0, 5, 0]])][None]  # (1, 2, 4, 6)
    x = torch.ones(1, 2, 4, 8)  # nothing stands out: no NaN
    assert survivors(x, keys, 3)[0, 1].tolist() == [2]
    x[0, 1, 0] = 2.0  # the largest of its frame counts as not redundant at all
    assert survivors(x, keys, 3)[0, 1].tolist() == [0]
