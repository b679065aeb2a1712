"""Frames get the backbone's image size as open_clip resizes its images."""

from itertools import product

import numpy as np
import pytest
from open_clip.transform import image_transform
from PIL import Image

from ctvr.orchestrator.video.sampling import Sampling, resize_and_crop

SIZES = ((37, 80), (80, 37), (33, 64), (64, 64), (32, 32), (20, 31), (101, 55))  # height, width


def theirs(image, mode, interpolation):
    transform = image_transform(32, False, (0,) * 3, (1,) * 3, resize_mode=mode, interpolation=interpolation)
    return (transform(Image.fromarray(image)).numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8)


@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_an_image_is_resized_as_open_clip_resizes_it(mode, interpolation):
    rng = np.random.default_rng(0)
    for height, width in SIZES:
        image = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
        np.testing.assert_array_equal(
            resize_and_crop(image, 32, mode, interpolation), theirs(image, mode, interpolation)
        )


def test_modes_and_kernels_differ_and_the_default_is_that_of_openai():
    image = np.random.default_rng(0).integers(0, 256, (37, 80, 3)).astype(np.uint8)
    found = {
        (mode, kernel): resize_and_crop(image, 32, mode, kernel).tobytes()
        for mode, kernel in product(["shortest", "squash", "longest"], ["bicubic", "bilinear"])
    }
    assert len({*found.values()}) == 6
    assert Sampling(size=32).fit(image).tobytes() == found["shortest", "bicubic"]
