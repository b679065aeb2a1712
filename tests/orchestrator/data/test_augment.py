"""One draw for each video, in range, decided by the seed."""

from __future__ import annotations

import pytest
import torch

from orchestrator.data.augment import crop_and_flip, gray_and_jitter


@pytest.mark.parametrize("augment", [crop_and_flip, gray_and_jitter])
def test_augmentation_draws_once_per_video_and_stays_in_range(augment):
    still = torch.rand(3, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).expand(-1, 4, -1, -1, -1)
    out = augment(still.contiguous(), torch.Generator().manual_seed(1))
    assert out.shape == still.shape
    assert out.min() >= 0
    assert out.max() <= 1
    torch.testing.assert_close(out, out[:, :1].expand_as(out))  # every frame of a video alike
    assert not torch.allclose(out, still)
    assert torch.equal(out, augment(still.contiguous(), torch.Generator().manual_seed(1)))
