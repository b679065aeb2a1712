"""Decoding of many videos in limited child processes: a file that crashes or hangs its decoder affects only itself.

`decode` and `probe` (`video/decode.py`) work in this process; the data pipeline uses `Decoder`.

A child is a plain subprocess of this interpreter, not a multiprocessing worker. It does not run the caller's `__main__`
again and can be started from daemon processes (data loader workers). It answers with JSON and raw bytes, so that a
decoder exploited by a malicious file cannot return executable objects. Its memory, CPU time and written bytes
are limited, and its environment contains no credentials of the parent. It reads no files except the folders of its
videos, and has no network where the system allows that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ctvr.orchestrator.errors import ConfigError, CtvrError, VideoError
from ctvr.orchestrator.interpreter import library_path, run_module
from ctvr.orchestrator.video.decode import decoder_version
from ctvr.orchestrator.video.decode_worker import READY
from ctvr.orchestrator.video.index import Limits
from ctvr.orchestrator.video.sampling import NATIVE, Frames, Sampling, VideoInfo
from ctvr.sandbox.isolate import PERMIT, NoLandlock, require_landlock

_START_SECONDS = 120.0  # time for the imports of a child on a busy machine
_ANSWER_SECONDS, _PIECE = 5.0, 1 << 15  # extra seconds after the deadline per this many bytes of an answer
_JOBS_PER_CHILD = 500  # restarting a child now and then bounds memory leaks of decoders
_CHILD_ENV = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", PERMIT)
_CHILD = run_module("ctvr.orchestrator.video.decode_worker")


@dataclass(frozen=True)
class Job:
    """One clip to decode. `label` is chosen by the caller (an ID, a store key)."""

    path: str
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    segment: tuple[float, float] | None = None
    label: str = ""


class Decoder:
    """A pool of decoding children: `with Decoder(workers=2) as d: for job, result in d.map(jobs): ...`.

    At most one clip per worker is in memory, regardless of the number of jobs. Children start at first use and wait for
    more jobs until `close`; they also end with this process.

    Args:
        workers: number of child processes.
        limits: limits on one file; default `Limits()`.
        decoder: "pyav", "decord", "torchcodec" or "auto".

    Raises:
        ConfigError: for fewer than one worker, or a decoder that is unknown or not installed.
    """

    def __init__(self, workers: int = 2, limits: Limits | None = None, decoder: str = "pyav") -> None:
        if workers < 1:
            raise ConfigError(f"workers must be >= 1, got {workers}.", "decoder")
        decoder_version(decoder)  # rejects an unknown or missing decoder here, not in every child
        self.limits, self.decoder = limits or Limits(), decoder
        self._children = [_Child(decoder) for _ in range(workers)]

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the children; the pool starts new ones if it is used again."""
        for child in self._children:
            child.stop()

    def decode(self, path: str | Path, sampling: Sampling, segment: tuple[float, float] | None = None) -> Frames:
        """Decode one clip in a child.

        Raises:
            VideoError: if the video cannot be decoded (see `video.decode.decode`), or the child crashed or took too
                long.
        """
        ((_, result),) = self.map([Job(str(path), sampling, segment)])
        if isinstance(result, VideoError):
            raise result
        return result

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Frames | VideoError]]:
        """Yield every job with its clip or its error, in the order of completion; `jobs` is read lazily.

        If a child crashes in decord, a new child decodes the file with PyAV; a second crash is the job's error.
        """
        todo = iter(jobs)
        again: list[tuple[Job, str]] = []
        try:
            while True:
                for child in self._children:
                    if child.job is None:
                        job, decoder = again.pop() if again else (next(todo, None), self.decoder)
                        if job is not None:
                            child.give(job, decoder, self.limits)
                busy = [child for child in self._children if child.job is not None]
                if not busy:
                    return
                for child, result in _collect_finished(busy, self.limits):
                    job, decoder, child.job = child.job, child.decoder, None
                    assert job is not None
                    if isinstance(result, _Crash) and decoder == "auto":
                        again.append((job, "pyav"))
                    elif isinstance(result, _Crash):
                        yield job, VideoError(job.path, str(result))
                    else:
                        yield job, result
        finally:
            for child in self._children:
                if child.job is not None:  # the caller left the loop early
                    child.stop()


class _Crash(Exception):
    """The child ended while it decoded a file; the message says how."""


class _Child:
    """One decoding process and the state of its current job. `loads` is the decoder that it imports at start."""

    def __init__(self, loads: str) -> None:
        self.loads = loads
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        self.job: Job | None = None
        self.decoder = ""
        self.jobs_done = 0
        self.deadline = 0.0
        self.buffer = bytearray()
        self.unrewarded = 0  # bytes of the answer that have not extended the deadline yet
        self.is_ready = False  # its program is loaded
        self.folders: list[Path] = []  # folders that the process may read, fixed when it starts

    def give(self, job: Job, decoder: str, limits: Limits) -> None:
        """Send a job to the process, which is started or replaced if necessary."""
        before = self.folders
        for path in (os.path.realpath(job.path), os.path.abspath(job.path)):  # a link is opened by its own path
            if not any(Path(path).is_relative_to(known) for known in self.folders):
                self.folders = with_parents(self.folders, Path(path).parent)
        if self.folders is not before or self.jobs_done >= _JOBS_PER_CHILD:
            self.stop()
        fresh = self.process is None
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.job, self.decoder, self.buffer, self.unrewarded = job, decoder, bytearray(), _PIECE
        grace = _START_SECONDS if fresh else 0.0
        # the child rejects a slow file at max_seconds; the parent kills it a little later
        self.deadline = time.monotonic() + limits.max_seconds * 1.25 + 1.0 + grace
        self.jobs_done += 1
        request = {
            "path": job.path,
            "sampling": dataclasses.asdict(job.sampling),
            "segment": job.segment,
            "decoder": decoder,
            "limits": dataclasses.asdict(limits),
        }
        with contextlib.suppress(BrokenPipeError):  # it died while idle: `receive` detects the end of its output
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def receive(self, limits: Limits) -> Frames | VideoError | _Crash | None:
        """Read the child's output; return its parsed answer, or None while it is incomplete."""
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.job is not None
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        if not data:
            return self._crash()
        self.buffer += data
        if not self.is_ready and self.buffer.startswith(READY):
            self.is_ready, self.buffer = True, self.buffer[len(READY) :]
        self.unrewarded += len(data)
        if (
            self.buffer and self.unrewarded >= _PIECE
        ):  # it is answering: extend the deadline for a slow reader, but not for a trickle of bytes
            self.deadline, self.unrewarded = max(self.deadline, time.monotonic() + _ANSWER_SECONDS), 0
        try:
            return _parse(self.job, self.buffer, limits)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            self.stop()
            return _Crash(f"the decoder sent a malformed answer ({error})")

    def stop(self) -> None:
        """Kill the process, if it runs, and discard its job."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self.errors is not None:
            self.errors.close()
        self.process, self.errors, self.job, self.jobs_done, self.is_ready = None, None, None, 0, False

    def _start(self) -> None:
        try:
            require_landlock()
        except NoLandlock as error:
            raise ConfigError(str(error)) from error
        environment = {name: os.environ[name] for name in _CHILD_ENV if name in os.environ}
        environment["PYTHONUTF8"] = str(int(sys.getfilesystemencoding() == "utf-8"))  # same encoding of file names
        environment |= {"PYTHONPATH": library_path(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `stop`)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*_CHILD, self.loads, *map(str, self.folders)], stdin=pipe, stdout=pipe, stderr=self.errors, env=environment
        )

    def _crash(self) -> _Crash:
        """Discard a process that ended; return its `_Crash`.

        Raises:
            CtvrError: if it ended before it could read a file; a ConfigError if a restart would fail again.
        """
        assert self.process is not None
        assert self.errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how = f"the decoder crashed ({name})"
        else:
            self.errors.seek(0)
            last = self.errors.read(1 << 16).decode(errors="replace").strip().splitlines()[-1:]
            how = f"the decoder ended with code {code}{': ' + last[0][:200] if last else ''}"
        was_ready = self.is_ready
        self.stop()
        if not was_ready:
            text = f"decoder: {how} before it opened a video; no video is at fault"
            if code is not None and code > 0:
                raise ConfigError(f"{text}. Install ctvr and its packages again; `ctvr doctor` names what is missing.")
            raise CtvrError(f"{text}. Free some memory and run again.")
        return _Crash(how)


def with_parents(folders: Sequence[Path], folder: Path) -> list[Path]:
    """Add a folder to the folders that a child may read; return the new list.

    Sibling folders are replaced by their parent, so that videos in many folders need few processes. A
    home folder, or a parent of it, is never allowed as a whole.
    """
    home = Path.home().resolve()
    for known in folders:
        common = Path(os.path.commonpath([known, folder]))
        if len(common.parts) > 2 and not home.is_relative_to(common):
            return [*(other for other in folders if not other.is_relative_to(common)), common]
    return [*folders, folder]


def _collect_finished(busy: list[_Child], limits: Limits) -> Iterator[tuple[_Child, Frames | VideoError | _Crash]]:
    """Wait for output or a timeout of any child; yield the children that have finished their job."""
    pipes = {child.process.stdout.fileno(): child for child in busy if child.process and child.process.stdout}
    wait = max(0.0, min(child.deadline for child in busy) - time.monotonic())
    poller = select.poll()
    for descriptor in pipes:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    ready = {pipes[descriptor] for descriptor, _ in poller.poll(wait * 1000 + 1)}
    now = time.monotonic()
    for child in busy:
        job = child.job
        if child in ready:
            result = child.receive(limits)
            if result is not None:
                child.job = job
                yield child, result
        elif now > child.deadline:
            was_ready = child.is_ready
            child.stop()
            if not was_ready:
                raise CtvrError("decoder: its process has not started in time. Stop other programs and run again.")
            child.job = job
            limit = f"{limits.max_seconds:g} seconds (limit max_seconds)"
            yield child, VideoError(job.path if job else "", f"the decoder hung for more than {limit} and was stopped")


def _parse(job: Job, buffer: bytearray, limits: Limits) -> Frames | VideoError | None:
    """Parse the answer in `buffer`: length, JSON header, frames, timestamps; return None if it is incomplete.

    Raises:
        ValueError: if it is malformed or too large.
    """
    if len(buffer) < 4:
        return None
    (length,) = struct.unpack_from("<I", buffer)
    if length > 1 << 16:
        raise ValueError("header too long")
    if len(buffer) < 4 + length:
        return None
    header = json.loads(buffer[4 : 4 + length])
    if header["error"] is not None:
        return VideoError(job.path, str(header["error"])[:500])
    size, info = job.sampling.size, header.get("info")
    height, width = (int(side) for side in header["shape"]) if size == NATIVE else (size, size)
    if not 0 < height * width <= limits.max_pixels:
        raise ValueError("frames too large")
    shape = (job.sampling.num_frames, height, width, 3)
    pixels = int(np.prod(shape))
    total = 4 + length + pixels + 8 * shape[0]
    if len(buffer) > total:
        raise ValueError("answer too long")
    if len(buffer) < total:
        return None
    frames = np.frombuffer(buffer, np.uint8, pixels, 4 + length).reshape(shape)
    times = np.frombuffer(bytes(buffer[4 + length + pixels :]), "<f8").astype(np.float64)
    return Frames(frames, times, str(header["decoder"])[:32], None if info is None else _convert_info(info))


def _convert_info(info: dict[str, Any]) -> VideoInfo:
    """Convert the video's properties in a child's answer to their declared types."""
    kinds = {"int": int, "float": float, "str": str}
    fields = dataclasses.fields(VideoInfo)
    return VideoInfo(**{field.name: kinds[str(field.type)](info[field.name]) for field in fields})
