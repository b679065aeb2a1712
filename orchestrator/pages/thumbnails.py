"""Pictures of videos embedded in a page: a strip of frames of each, as a JPEG in a data: address."""

from __future__ import annotations

import base64
import io
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from PIL import Image

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import Sampling

Clip = tuple[str, tuple[float, float] | None]  # path of a file, and its segment in seconds

FRAMES, SIZE, QUALITY = 4, 112, 80
KEPT = 1000  # pictures of about 10 kB in memory


def strips(clips: Iterable[Clip]) -> dict[Clip, str]:
    """Map each readable clip to the address of its picture, FRAMES frames in a row.

    They are decoded in limited child processes, as training videos are.
    """
    sampling, found = Sampling(FRAMES, SIZE), {}
    jobs = [Job(path, sampling, segment) for path, segment in dict.fromkeys(clips) if path]
    if not jobs:
        return {}
    with Decoder(workers=min(2, len(jobs))) as pool:
        for job, clip in pool.map(jobs):
            if not isinstance(clip, VideoError):
                found[job.path, job.segment] = f"data:image/jpeg;base64,{base64.b64encode(_jpeg(clip.frames)).decode()}"
    return found


def image(clip: Clip, pictures: dict[Clip, str], said: str) -> str:
    """Return the picture of a clip as HTML, with `said` as alternative text; a note if its file cannot be read.

    A video of which only features are here (path "") has no picture.
    """
    from html import escape

    if not clip[0]:
        return ""
    address = pictures.get(clip)
    if address is None:
        return f'<p class="soft">no picture: {escape(clip[0])} cannot be read</p>'
    return f'<img src="{address}" width="{FRAMES * SIZE}" height="{SIZE}" alt="{escape(said, quote=True)}">'


def strips_note(has_pictures: bool) -> str:
    """Return the sentence on the pictures of a page as HTML."""
    pictures = "Each strip shows a video from its beginning to its end."
    none = "The video files were not found. Start the command with --videos FOLDER, which contains ID.mp4 or the like."
    return f'<p class="soft">{pictures if has_pictures else none}</p>'


class Thumbnails:
    """Pictures of videos on request, for a server: one permanent decoding child, and a cache of `KEPT` pictures."""

    def __init__(self) -> None:
        self._pool, self._kept = Decoder(workers=1), OrderedDict[Clip, bytes | None]()

    def jpeg(self, clip: Clip) -> bytes | None:
        """Return the picture of a clip, None if the file cannot be read. One call at a time."""
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
    """Encode (T, H, W, 3) uint8 as a JPEG with T frames in a row."""
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(list(frames), axis=1)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
