"""A model that does not change encodes each video of a task once."""

from dataclasses import replace

import torch

from ctvr.methods.layers.replay.cache import VideoFeatureCache
from tests.methods.conftest import make_batch


def test_each_video_is_encoded_once_and_augmented_ones_every_time():
    batch, asked, kept = make_batch(4, frames=2), [], VideoFeatureCache()

    def encode(frames: torch.Tensor) -> torch.Tensor:
        asked.append(len(frames))
        return frames.flatten(2).mean(dim=-1)

    def of(numbers: tuple[int, ...], is_plain: bool = True) -> torch.Tensor:
        frames = batch.frames[torch.tensor(numbers)]
        found = kept.of(replace(batch, frames=frames, unaugmented_video_ids=numbers if is_plain else None), encode)
        assert torch.equal(found, frames.flatten(2).mean(dim=-1))
        return found

    assert of((0, 1, 0, 1)).shape == (4, 2)
    of((1, 2)), of((2, 0)), of((0, 1), is_plain=False), of((3, 3))
    assert asked == [2, 1, 2, 1]
