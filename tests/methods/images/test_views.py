"""Properties of each random chain of views, whatever it draws."""

import pytest
import torch

from ctvr.methods.images.views import CIFAR, blur, crop, flip, jitter, normalise, reaugment, turned, view


def images(count: int = 16, size: int = 40) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("chain", [view, jitter, flip, lambda x, g: crop(x, 0.08, "bicubic", g)])
def test_a_chain_keeps_size_and_range_and_draws_for_each_image_by_itself(chain):
    x = images(1).expand(16, -1, -1, -1)
    made = chain(x, torch.Generator().manual_seed(1))
    assert made.shape == x.shape
    assert made.min() >= 0
    assert made.max() <= 1
    assert len({one.numpy().tobytes() for one in made}) > 1
    assert torch.equal(made, chain(x, torch.Generator().manual_seed(1)))
    assert not torch.equal(made, chain(x, torch.Generator().manual_seed(2)))


def test_a_constant_gray_image_stays_constant_and_gray_in_every_chain():
    made = view(torch.full((16, 3, 40, 40), 0.4), torch.Generator().manual_seed(1))
    torch.testing.assert_close(made, made[:, :1, :1, :1].expand_as(made), rtol=0, atol=1e-5)


def test_the_hue_turns_in_a_circle():
    x = images(4)
    torch.testing.assert_close(turned(x, torch.zeros(4)), x, rtol=0, atol=1e-5)
    third = turned(x, torch.full((4,), 1 / 3))  # red becomes green, green blue, blue red
    torch.testing.assert_close(third, x.roll(1, dims=1), rtol=0, atol=1e-4)
    back = turned(turned(x, torch.full((4,), 0.07)), torch.full((4,), -0.07))
    torch.testing.assert_close(back, x, rtol=0, atol=1e-4)


def test_blur_spreads_each_image_by_its_own_deviation_and_loses_nothing():
    x = torch.zeros(2, 3, 41, 41)
    x[:, :, 20, 20] = 1.0
    made = blur(x, torch.tensor([0.5, 1.5]))
    torch.testing.assert_close(made.sum(dim=(2, 3)), torch.ones(2, 3))
    assert made[1, 0, 20, 20] < made[0, 0, 20, 20] < 1
    assert made[0, 0, 20, 23:].sum() == 0  # a kernel of 2 (41 // 20) + 1 = 5 places
    torch.testing.assert_close(made, made.flip(-1))


def test_a_crop_of_the_whole_is_the_image_and_small_ones_are_magnified():
    x = torch.linspace(0, 1, 32).expand(64, 3, 32, 32)  # brightness rises from left to right
    whole = crop(x, 1.0, "bilinear", torch.Generator().manual_seed(0))
    assert ((whole[:, 0, 0, -1] - whole[:, 0, 0, 0]) > 0.8).all()  # the sides 3:4 at least
    parts = crop(x, 0.08, "bilinear", torch.Generator().manual_seed(0))
    span = parts[:, 0, 0, -1] - parts[:, 0, 0, 0]
    assert span.min() < 0.5 < span.max()
    assert (span >= 0.2).all()  # of a side: sqrt(0.08 * 3/4)


def test_stored_images_are_normalised_as_their_data_set_is():
    torch.manual_seed(0)
    gray = torch.full((2, 3, 16, 16), 0.5)
    torch.testing.assert_close(reaugment(gray), normalise(gray, CIFAR))
    assert not torch.allclose(reaugment(gray, "tiny-imagenet"), reaugment(gray))
