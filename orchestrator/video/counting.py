"""Sequential decoding of a video: frames in the order in which the decoder outputs them, and their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_IDR = 5  # NAL unit type of H.264
REORDERED = 16  # maximum positions by which H.264 and HEVC can reorder a frame


def frames_in_order(file: Any, stream: Any, strict: bool) -> Iterator[Any]:
    """Yield the frames of a video from the current position of the file.

    A recording may begin in the middle of a group of pictures. Pictures before its first key frame, in the file or in
    presentation order, lack their references. Decoders drop them; a strict decoder also reports an error.

    Raises:
        av.FFmpegError: if `strict` and a later packet cannot be decoded; otherwise it is skipped.
        EOFError: if the last packet cannot be decoded, as in a truncated file.
    """
    import av

    first: int | None = None  # pts of the first key frame
    is_begun = is_shown = is_open = False
    failed: av.FFmpegError | None = None
    for packet in file.demux(stream):
        if failed and packet.size:
            raise failed
        if packet.is_keyframe and packet.size and not is_begun:
            is_begun, first, is_open = True, packet.pts, _is_open(packet, stream.codec_context)
        try:
            frames = packet.decode()
        except av.FFmpegError as error:
            leads = not is_begun or (first is not None and packet.pts is not None and packet.pts < first)
            leads = leads or (is_open and not is_shown and not packet.is_keyframe)
            failed = error if strict and not leads else failed
            continue
        is_shown = is_shown or bool(frames)
        yield from frames
    if failed:
        raise EOFError from failed


def _is_open(packet: Any, context: Any) -> bool:
    """Report whether a key frame of H.264 has no IDR slice, so that later frames may refer to earlier frames."""
    if context.name != "h264":
        return False
    data, extra = bytes(packet), context.extradata or b""
    if extra[:1] != b"\1":  # start codes between units
        return all(unit[:1] and unit[0] & 31 != _IDR for unit in data.split(b"\0\0\1")[1:])
    width, place = (extra[4] & 3) + 1 if len(extra) > 4 else 4, 0
    while place + width < len(data):
        if data[place + width] & 31 == _IDR:
            return False
        place += width + int.from_bytes(data[place : place + width], "big")
    return True


def seconds_of(pts: Sequence[int | None], base: float, rate: float) -> np.ndarray:
    """Return the seconds of frames, (N,) non-decreasing from 0, from their timestamps in output order.

    Timestamps of AVI belong to positions in the file, not to frames. The set is complete but in another order, so it is
    sorted. Missing, repeated or decreasing timestamps are interpolated between their neighbors; `rate` is used only if
    there are fewer than two timestamps, since AVI may declare a multiple of the true rate.
    """
    number = np.arange(len(pts))
    values = np.asarray([np.nan if each is None else each for each in pts], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    is_whole = not np.isnan(values).any() and len(np.unique(values)) == len(values)
    if is_whole and np.abs(order - number).max(initial=0) <= REORDERED:
        values = values[order]
    known = np.zeros(len(values), dtype=bool)
    reached = -np.inf
    for i, value in enumerate(values):
        if value > reached:  # false if `value` is NaN
            known[i], reached = True, value
    if known.sum() < 2:
        return number / rate
    seconds = np.interp(number, number[known], values[known] * base)
    first, last = number[known][[0, -1]]
    step = float(np.median(np.diff(seconds[first : last + 1])))
    seconds[:first] -= (first - number[:first]) * step
    seconds[last + 1 :] += (number[last + 1 :] - last) * step
    return seconds - seconds[0]
