"""Pictures of videos for HTML pages: a strip of frames per video, embedded as a JPEG in a data: address."""

from __future__ import annotations

import base64
import io
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import Sampling

Clip = tuple[str, tuple[float, float] | None]  # path of a file, and its segment in seconds

FRAMES, SIZE, QUALITY = 4, 112, 80
GAP = 4  # white pixels between two frames, so that their borders are visible
WIDTH = FRAMES * SIZE + (FRAMES - 1) * GAP
KEPT = 1000  # pictures of about 10 kB in memory


class Strip(NamedTuple):
    """The picture of a clip."""

    url: str  # a data: URL
    times: tuple[float, ...]  # seconds of its frames since the first frame of the video; empty for a folder of frames


def strips(clips: Iterable[Clip]) -> dict[Clip, Strip]:
    """Map each readable clip to its picture, FRAMES frames in a row.

    They are decoded in limited child processes, as training videos are.
    """
    sampling, found = Sampling(FRAMES, SIZE), {}
    jobs = [Job(path, sampling, segment) for path, segment in dict.fromkeys(clips) if path]
    if not jobs:
        return {}
    with Decoder(workers=min(2, len(jobs))) as pool:
        for job, clip in pool.map(jobs):
            if not isinstance(clip, VideoError):
                address = f"data:image/jpeg;base64,{base64.b64encode(_jpeg(clip.frames)).decode()}"
                times = tuple(clip.timestamps.tolist()) if np.isfinite(clip.timestamps).all() else ()
                found[job.path, job.segment] = Strip(address, times)
    return found


def image(clip: Clip, pictures: Mapping[Clip, Strip], said: str) -> str:
    """Return HTML with the picture of a clip and `said` as its alternative text, or a note if the file cannot be read.

    If the path is "" (only features are stored), return "".
    """
    if not clip[0]:
        return ""
    strip = pictures.get(clip)
    if strip is None:
        return f'<p class="soft">no picture: {escape(clip[0])} cannot be read</p>'
    return strip_html(strip.url, said, strip.times)


def strip_html(address: str, said: str, times: Sequence[float] = ()) -> str:
    """Return HTML of a picture whose frames play in turn while its checkbox is on.

    The times of the frames (in seconds) are printed below the picture.
    """
    text = escape(said, quote=True)
    shown = "".join(f"<span>{each:.1f} s</span>" for each in times)
    lazy = "" if address.startswith("data:") else ' loading="lazy"'
    return (
        f'<label class="strip"><input type="checkbox" aria-label="play: {text}">'
        f'<img src="{escape(address, quote=True)}" width="{WIDTH}" height="{SIZE}"{lazy} alt="{text}">'
        f"{f'<span>{shown}</span>' if shown else ''}</label>"
    )


def captioned_strips(clips: Sequence[Clip], texts: Sequence[str]) -> str:
    """Return HTML with a strip of frames above the text of each clip; an unreadable clip has only its text.

    The HTML does not need the style sheet of a page.
    """
    found, parts = strips(clips), []
    for clip, text in zip(clips, map(escape, texts)):
        strip = found.get(clip)
        picture = f'<img src="{strip.url}" width="{WIDTH}" height="{SIZE}" alt="">' if strip else ""
        parts.append(f'<figure style="margin:0 0 0.6rem">{picture}<figcaption>{text}</figcaption></figure>')
    return "".join(parts)


def strips_note(has_pictures: bool) -> str:
    """Return, as HTML, the sentence of a page that explains its pictures or why they are missing."""
    pictures = "Each strip shows a video from beginning to end. Click it, or press the space bar on it, to play it."
    none = "The video files were not found. Start the command with --videos FOLDER, which contains ID.mp4 or the like."
    return f'<p class="soft">{pictures if has_pictures else none}</p>'


class Thumbnails:
    """Pictures of videos on request, for a server: one permanent decoding child, and a cache of `KEPT` pictures."""

    def __init__(self) -> None:
        self._pool, self._kept = Decoder(workers=1), OrderedDict[Clip, bytes | None]()

    def jpeg(self, clip: Clip) -> bytes | None:
        """Return the picture of a clip as JPEG bytes, or None if the file cannot be read. Not thread-safe."""
        if clip not in self._kept:
            try:
                frames = self._pool.decode(clip[0], Sampling(FRAMES, SIZE), clip[1]).frames
            except VideoError:
                self._kept[clip] = None
            else:
                self._kept[clip] = _jpeg(frames)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(clip)
        return self._kept[clip]

    def close(self) -> None:
        self._pool.close()


def _jpeg(frames: np.ndarray) -> bytes:
    """Encode (T, H, W, 3) uint8 as a JPEG with T frames in a row, GAP pixels apart."""
    buffer = io.BytesIO()
    apart = np.pad(frames, ((0, 0), (0, 0), (0, GAP), (0, 0)), constant_values=255)
    Image.fromarray(np.concatenate(list(apart), axis=1)[:, :-GAP]).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
