"""One random draw for each video, in range and determined by the seed."""

import pytest
import torch

from ctvr.orchestrator.data.augment import crop_and_flip, gray_and_jitter


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


def test_crops_equal_the_released_areas_and_aspect_ratios():
    videos, size = 400, 32
    place = (torch.arange(size) + 0.5) / size
    frame = torch.stack([place.expand(size, size), place[:, None].expand(size, size), torch.zeros(size, size)])
    out = crop_and_flip(frame.expand(videos, 1, 3, size, size).contiguous(), torch.Generator().manual_seed(0))[:, 0]
    inner = out[:, :, 8:-8, 8:-8]  # away from the border, where a pixel's value is its place in the frame
    width = (inner[:, 0, :, 1:] - inner[:, 0, :, :-1]).mean(dim=(1, 2)) * size
    height = (inner[:, 1, 1:] - inner[:, 1, :-1]).mean(dim=(1, 2)) * size
    area, ratio = (width * height).abs(), (width / height).abs()
    assert area.min() > 0.5 - 1e-3
    assert area.max() < 1 + 1e-3
    assert ratio.min() > 3 / 4 - 1e-3
    assert ratio.max() < 4 / 3 + 1e-3
    assert area.min() < 0.51
    assert ratio.min() < 0.77
    assert ratio.max() > 1.3
    assert 0.4 < (width < 0).float().mean() < 0.6  # mirrored
    centre = inner.mean(dim=(2, 3))[:, :2]
    room = (1 - torch.stack([width.abs(), height], dim=1)) / 2
    assert ((centre - 0.5).abs() <= room + 1e-3).all()


def test_jitter_maps_all_frames_of_a_video_by_one_line():
    """For a gray video whose frames differ in brightness, contrast changes around the mean of the video, not of a
    frame.
    """
    random = torch.Generator().manual_seed(0)
    x = torch.linspace(0.4, 0.6, 4).view(1, 4, 1, 1, 1) + 0.02 * torch.rand(5, 4, 1, 8, 8, generator=random)
    out = gray_and_jitter(x.expand(-1, -1, 3, -1, -1).contiguous(), random)
    assert out.min() > 0
    assert out.max() < 1  # nothing is cut off
    for before, after in zip(x[:, :, 0].flatten(1), out[:, :, 0].flatten(1)):
        line = torch.stack([before, torch.ones_like(before)], dim=1)
        fitted = line @ torch.linalg.lstsq(line, after[:, None]).solution
        torch.testing.assert_close(fitted[:, 0], after, rtol=0, atol=1e-5)
