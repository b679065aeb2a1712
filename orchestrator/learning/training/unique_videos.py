"""Encoding of each distinct video of a batch only once.

In a stream with 20 captions per video, a batch of 32 pairs has about 14 videos. Without augmentation and dropout in the
encoder, the features of a video are equal in all its rows. The sum of the gradients with respect to the video is also
equal, except for the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ctvr.methods.base import Batch, Method, SeparableEncoders
from ctvr.methods.layers.patching import patched
from ctvr.methods.layers.transfer import to_device

# Names of a method's encoders that draw random numbers, so that rows of equal videos differ
_RANDOM: WeakKeyDictionary[Method, set[str]] = WeakKeyDictionary()


@contextmanager
def encode_unique_videos(method: Method, batch: Batch) -> Iterator[None]:
    """Make `method` encode each distinct video of `batch` once while it computes its losses."""
    through, numbers = method.separable_encoders(), batch.unaugmented_video_ids
    if (
        numbers is None
        or len(set(numbers)) == len(numbers)
        or not isinstance(through, SeparableEncoders)
        or through.is_stateful
    ):
        yield
        return
    first = {number: row for row, number in reversed(list(enumerate(numbers)))}
    rows = sorted(first.values())
    place = {numbers[row]: index for index, row in enumerate(rows)}
    device = batch.frames.device
    distinct, back = (to_device(x, device) for x in (rows, [place[number] for number in numbers]))
    random = _RANDOM.setdefault(method, set())

    def encode(name: str, plain: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
        if arguments[0] is not batch.frames or name in random:
            return plain(*arguments, **named)
        before = rng_state(device)
        features = plain(batch.frames[distinct], *arguments[1:], **named)
        if all(torch.equal(a, b) for a, b in zip(before, rng_state(device))):
            return features[back]
        random.add(name)
        set_rng_state(before, device)
        return plain(*arguments, **named)

    names = {name: partial(encode, name, getattr(through.owner, name)) for name in through.names}
    with patched(through.owner, **names):
        yield


class Losses(nn.Module):
    """Module whose `forward` is `Method.losses`, so that DistributedDataParallel can wrap it."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        with encode_unique_videos(self.method, batch):
            return self.method.losses(batch)


def rng_state(device: torch.device) -> tuple[Tensor, ...]:
    """Return the generator states of the CPU and, on a GPU, of the device; does not synchronize the device."""
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *own)


def set_rng_state(state: tuple[Tensor, ...], device: torch.device) -> None:
    """Restore a state that `rng_state` returned."""
    torch.set_rng_state(state[0])
    for own in state[1:]:
        torch.cuda.set_rng_state(own, device)
