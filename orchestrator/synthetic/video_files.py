"""Files of rendered clips: encoded once, verified at every later use, rendered again if damaged.

The folder of the clips contains `digest.json`: for every clip the sha256 of its file and of its pixels before encoding.
Files are written under another name and renamed, `digest.json` last. Concurrent processes wait for each other if the
file system has locks, and otherwise overwrite files with equal files.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import multiprocessing
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ctvr.orchestrator import console
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import SAFE_PATH, environment
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.processes import count_processors, hold_lock
from ctvr.orchestrator.synthetic.drawing import Pixels
from ctvr.orchestrator.text_files import read_text

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger(__name__)

FORMAT = 2
FPS, FRAMES, SIZE = 12, 24, 96  # two seconds of 96 x 96 pixels
# With its assembly code, x264 encodes some clips differently each time: of 960 clips, 46 differed between four
# renderings of equal pixels on one machine. In plain C, 300 encodings of five of them gave one result for each.
X264 = {"crf": "28", "preset": "veryfast", "g": "24", "bf": "0", "threads": "1", "x264-params": "asm=0"}
MAX_WORKERS = 8


@dataclass(frozen=True)
class VideoFormat:
    """Format of a stream's files."""

    frames: int = FRAMES
    size: int = SIZE  # pixels
    fps: int = FPS
    intra: bool = False  # every frame is encoded independently, so that reversed clips decode to the same frames

    def options(self) -> dict[str, str]:
        """Return options for x264."""
        if not self.intra:
            return X264
        # A constant quantizer, because that of crf depends on preceding frames
        return {name: value for name, value in X264.items() if name != "crf"} | {"qp": "18", "g": "1"}


class Renderable(Protocol):
    """A scene: plain data with a complete repr, and a method that renders it."""

    def render(self, backward: bool, frames: int, size: int) -> Pixels: ...


@dataclass(frozen=True)
class Clip:
    """One file to write: `path` is relative to the folder of its stream."""

    path: str
    scene: Renderable
    backward: bool


@dataclass(frozen=True)
class Rendered:
    """SHA-256 of the encoded file, which depends on the version of x264, and of the pixels, equal on every machine."""

    file: str
    pixels: str


def encode(frames: Pixels, rate: int = FPS, options: Mapping[str, str] = X264) -> bytes:
    """Encode (T, H, W, 3) uint8 as mp4 (H.264, yuv420p, `rate` frames/s); with X264 equal frames give equal bytes."""
    import av  # imported here, so that a process that only lists streams does not load FFmpeg

    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options=dict(options))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
    return target.getvalue()


def write_textured(file: Path, seconds: int, rate: int = 25) -> Path:
    """Write a textured, moving test video (320 x 240, H.264, x264's defaults).

    It has B-frames and distant key frames, as the files of the benchmarks, unlike the embedded videos.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    picture = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    corners = [(number * 2 % 240, number * 3 % 320) for number in range(seconds * rate)]
    frames = np.stack([picture[top : top + 240, left : left + 320] for top, left in corners])
    file.write_bytes(encode(frames, rate, {}))
    return file


def render_files(
    folder: Path,
    clips: Sequence[Clip],
    workers: int | None = None,
    progress: bool = True,
    video_format: VideoFormat | None = None,
) -> str:
    """Ensure that the folder contains every clip undamaged; return the digest of all pixels.

    Args:
        folder: created if it does not exist.
        clips: all clips of the folder.
        workers: rendering processes; default: the cores available to this process, at most 8. With 1, only
            this process renders.
        progress: whether to show a progress bar on stderr while rendering.
        video_format: format of the files; default: `VideoFormat()`.

    Raises:
        ConfigError: if the folder cannot be written.
    """
    try:
        for parent in {(folder / clip.path).parent for clip in clips}:
            parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / ".lock"):
            return _render_files(folder, clips, workers, progress, video_format or VideoFormat())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot write the rendered videos ({reason})", folder, remedy="Use a data folder that can be written."
        ) from error


def _render_files(
    folder: Path, clips: Sequence[Clip], workers: int | None, progress: bool, video_format: VideoFormat
) -> str:
    plan = hashlib.sha256(repr(clips).encode()).hexdigest()
    known = _read_records(folder / "digest.json", plan)
    records = {c.path: known[c.path] for c in clips if c.path in known and _is_whole(folder, c, known[c.path])}
    missing = [clip for clip in clips if clip.path not in records]
    if known and missing:
        log.warning("%s: %d of %d videos missing or damaged, rendering them again", folder, len(missing), len(clips))
    if missing:
        for clip, record in zip(missing, _render_all(folder, missing, workers, progress, video_format)):
            records[clip.path] = record
    digest = hashlib.sha256("".join(records[clip.path].pixels for clip in clips).encode()).hexdigest()
    if missing:
        content = {
            "format": FORMAT,
            "digest": digest,
            "plan": plan,
            "clips": {c.path: {"file": records[c.path].file, "pixels": records[c.path].pixels} for c in clips},
        }
        publish(folder / "digest.json", json.dumps(content, indent=0).encode())
    return digest


def _read_records(path: Path, plan: str) -> dict[str, Rendered]:
    """Return the records in digest.json; empty if it is missing, damaged or for other clips."""
    if not os.path.lexists(path):
        return {}
    try:
        content = json.loads(read_text(path))
        if content["format"] != FORMAT or content["plan"] != plan:
            return {}
        return {name: Rendered(entry["file"], entry["pixels"]) for name, entry in content["clips"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning("%s is damaged (%s): all videos are rendered again", path, type(error).__name__)
        return {}


def _is_whole(folder: Path, clip: Clip, record: Rendered) -> bool:
    try:
        return hashlib.sha256((folder / clip.path).read_bytes()).hexdigest() == record.file
    except FileNotFoundError:
        return False


def _render_all(
    folder: Path, clips: list[Clip], workers: int | None, progress: bool, video_format: VideoFormat
) -> list[Rendered]:
    workers = min(workers or _default_workers(), len(clips) // 16 + 1)
    with console.progress(len(clips), f"rendering {folder.name}", is_shown=progress) as bar:
        if workers > 1:
            try:
                return list(_render_in_processes(folder, clips, workers, bar, video_format))
            except BrokenProcessPool:
                log.warning("processes for rendering cannot be started here; rendering in this one")
                bar.reset()
        return [_advance(render_one(folder, clip, video_format), bar) for clip in clips]


def _render_in_processes(
    folder: Path, clips: list[Clip], workers: int, bar: tqdm, video_format: VideoFormat
) -> Iterator[Rendered]:
    context = multiprocessing.get_context("spawn")
    with environment(**{SAFE_PATH: "1"}), ProcessPoolExecutor(workers, mp_context=context) as pool:
        with _without_script():  # all children are started here
            records = pool.map(partial(render_one, folder, video_format=video_format), clips, chunksize=8)
        for record in records:
            yield _advance(record, bar)


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Prevent child processes that start within the context from running the user's script again.

    They would run it to import pickled objects, and a script without `if __name__ == "__main__":` would reach this
    point again and wait for the lock that its parent holds.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _advance(record: Rendered, bar: tqdm) -> Rendered:
    bar.update()
    return record


def render_one(folder: Path, clip: Clip, video_format: VideoFormat) -> Rendered:
    """Render, encode and write one clip."""
    frames = clip.scene.render(clip.backward, video_format.frames, video_format.size)
    content = encode(frames, video_format.fps, video_format.options())
    publish(folder / clip.path, content)
    return Rendered(hashlib.sha256(content).hexdigest(), hashlib.sha256(frames.tobytes()).hexdigest())


def _default_workers() -> int:
    if multiprocessing.current_process().daemon:  # may not have children
        return 1
    return min(count_processors(), MAX_WORKERS)
