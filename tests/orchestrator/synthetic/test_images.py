"""Painted patterns: no color identifies the class, pixels do so in part, and each class is drawn as its name says."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ctvr.methods.images.knn import accuracy, votes
from ctvr.orchestrator.synthetic.images import PATTERNS, SIZE, paint

TRAIN, TEST, NEIGHBOURS = 48, 24, 5


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    """Each pattern's images (TRAIN + TEST, 3, S, S), between -1 and 1."""
    painted = [[paint(kind, [0, c, number]) for number in range(TRAIN + TEST)] for c, kind in enumerate(PATTERNS)]
    return [torch.from_numpy(np.stack(one)).permute(0, 3, 1, 2) / 127.5 - 1 for one in painted]


def told(features: list[Tensor]) -> float:
    """Return the mean accuracy over tasks of a vote among neighbors; features (TRAIN + TEST, C) of each class."""
    found = []
    for first in range(0, len(features), 2):
        bank, test = (
            torch.cat([f[part] for f in features[first : first + 2]]) for part in (slice(TRAIN), slice(TRAIN, None))
        )
        labels, targets = (torch.arange(2).repeat_interleave(count) for count in (TRAIN, TEST))
        found.append(accuracy(votes(test, bank, labels, NEIGHBOURS, 2), targets))
    return sum(found) / len(found)


def test_no_colour_tells_the_class_and_pixels_tell_it_in_part(images):
    assert told([torch.cat([x.mean(dim=(2, 3)), x.std(dim=(2, 3))], dim=1) for x in images]) < 62
    assert 55 < told([x.flatten(1) for x in images]) < 85


def test_classes_differ_in_grey_and_mirrored_images(images):
    """Changes along x and along y distinguish rows from columns in gray, at every position and mirrored."""
    gray = [x.mean(dim=1) for x in images]
    along_x, along_y = ([g.diff(dim=axis).abs().mean(dim=(1, 2)) for g in gray] for axis in (2, 1))
    assert (along_x[0] < along_y[0]).float().mean() > 0.95
    assert (along_x[1] > along_y[1]).float().mean() > 0.95


def test_an_image_is_that_of_its_key_alone():
    for kind in PATTERNS:
        image = paint(kind, [3, 1])
        assert image.shape == (SIZE, SIZE, 3)
        assert np.array_equal(image, paint(kind, [3, 1]))
        assert not np.array_equal(image, paint(kind, [3, 2]))
