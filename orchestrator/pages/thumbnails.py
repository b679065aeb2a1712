"""Pictures of videos embedded in a page: a strip of frames of each, as a JPEG in a data: address."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import Sampling

Clip = tuple[str, tuple[float, float] | None]  # path of a file, and its segment in seconds

FRAMES, SIZE, QUALITY = 4, 112, 80


def strips(clips: Iterable[Clip]) -> dict[Clip, str]:
    """Return clip -> address of its picture, FRAMES frames in a row; unreadable clips are left out.

    They are decoded in limited child processes, as training videos are.
    """
    sampling, found = Sampling(FRAMES, SIZE), {}
    jobs = [Job(path, sampling, segment) for path, segment in dict.fromkeys(clips)]
    if not jobs:
        return {}
    with Decoder(workers=min(2, len(jobs))) as pool:
        for job, clip in pool.map(jobs):
            if not isinstance(clip, VideoError):
                found[job.path, job.segment] = _address(clip.frames)
    return found


def image(clip: Clip, pictures: dict[Clip, str], said: str) -> str:
    """Return the picture of a clip as HTML, with the text `said`; a note if there is no picture."""
    from html import escape

    address = pictures.get(clip)
    if address is None:
        return f'<p class="soft">no picture: {escape(clip[0])} cannot be read</p>'
    return f'<img src="{address}" width="{FRAMES * SIZE}" height="{SIZE}" alt="{escape(said, quote=True)}">'


def _address(frames: np.ndarray) -> str:
    """Encode (T, H, W, 3) uint8 as a data: address of a JPEG with T frames in a row."""
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(list(frames), axis=1)).save(buffer, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
