"""What a whole decode shows, in order: the frames of a film, numbered as they leave the decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_REORDERED = 16  # places by which H.264 and HEVC may move a frame, at most


def frames_in_order(file: Any, stream: Any, strict: bool) -> Iterator[Any]:
    """Yield the frames of a film, or those from the place where the file was set to.

    A recording may begin in the middle of a group of pictures: what comes before its first key frame, or is shown
    before it, lacks the pictures that it builds on. Decoders leave it out; a strict one calls it an error, too.

    Raises:
        av.FFmpegError: if a later packet cannot be decoded; not `strict`, such packets are passed over.
    """
    import av

    first: int | None = None  # pts of the first key frame
    is_begun = False
    for packet in file.demux(stream):
        if packet.is_keyframe and packet.size and not is_begun:
            is_begun, first = True, packet.pts
        try:
            frames = packet.decode()
        except av.FFmpegError:
            leads = not is_begun or (first is not None and packet.pts is not None and packet.pts < first)
            if strict and not leads:
                raise
            continue
        yield from frames


def seconds_of(pts: Sequence[int | None], base: float, rate: float) -> np.ndarray:
    """Return the seconds of frames, (N,) not descending from 0, from their timestamps in the order of decoding.

    AVI's timestamps belong to places in the file, not to frames: they are all there but in another order, so they are
    sorted. Where some are missing, repeated or fall back, these frames are spread between their neighbours.
    """
    number = np.arange(len(pts))
    values = np.asarray([np.nan if each is None else each for each in pts], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    is_whole = not np.isnan(values).any() and len(np.unique(values)) == len(values)
    if is_whole and np.abs(order - number).max(initial=0) <= _REORDERED:
        values = values[order]
    known = np.zeros(len(values), dtype=bool)
    reached = -np.inf
    for i, value in enumerate(values):
        if value > reached:  # which no NaN is
            known[i], reached = True, value
    if known.sum() < 2:
        return number / rate
    seconds = np.interp(number, number[known], values[known] * base)
    first, last = number[known][[0, -1]]
    seconds[:first] -= (first - number[:first]) / rate
    seconds[last + 1 :] += (number[last + 1 :] - last) / rate
    return seconds - seconds[0]
