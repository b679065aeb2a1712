"""Main program of a decoding child process (`video.pool`).

The process limits its memory, CPU time and written bytes, and answers with JSON and raw bytes. It can read only the
folders of its videos and, if the system supports that, has no network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import IO, Any

from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.video.decode import decode
from ctvr.orchestrator.video.decoders import torchcodec_version
from ctvr.orchestrator.video.index import Limits
from ctvr.orchestrator.video.sampling import Frames, Sampling
from ctvr.sandbox.isolate import isolate
from ctvr.sandbox.limits import MOST_FILES, address_space, limit

log = logging.getLogger(__name__)

READY = b"\0\0\0\0"  # empty answer: the program is loaded, so a later crash is due to a file


def serve() -> None:
    """Decode the requests on stdin, one JSON line each, until end of file.

    The program's arguments are the decoder and the folders of the videos.
    """
    decoder, *folders = sys.argv[1:]
    # first, while there are no other threads
    isolate([Path(__file__).parents[1], *folders])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a library prints must not mix with the answers
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, MOST_FILES)
    limit(resource.RLIMIT_FSIZE, 1 << 20)  # the process writes only its log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    import av

    av.logging.set_level(av.logging.PANIC)
    _load(decoder)
    answers.write(READY)
    answers.flush()
    idle_bytes = address_space()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        limits = Limits(**request["limits"])
        _bound(limits, idle_bytes)
        clip, error = _answer(request, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if clip is None:
            _write(answers, {"error": error}, b"", b"")
        else:
            times = clip.timestamps.astype("<f8").tobytes()
            info = dataclasses.asdict(clip.info) if clip.info is not None else None
            header = {"error": None, "decoder": clip.decoder, "shape": clip.frames.shape[1:3], "info": info}
            _write(answers, header, clip.frames.data, times)


def _load(decoder: str) -> None:
    """Import the decoder while the child is idle; if that fails, the error is reported with each file."""
    if decoder == "torchcodec":
        # torch searches for a compiler and creates a folder for its output: the sandbox allows neither
        os.environ.update(PATH="", TORCHINDUCTOR_CACHE_DIR=sys.prefix)
        with contextlib.suppress(ConfigError):
            torchcodec_version()
    elif decoder != "pyav":
        with contextlib.suppress(ImportError, OSError):
            import decord  # noqa: F401


def _bound(limits: Limits, idle_bytes: int) -> None:
    """Set this process's resource limits for the next file; they apply even after the parent's death."""
    if idle_bytes:  # also set the hard limit, because a process can raise a soft limit
        limit(resource.RLIMIT_AS, idle_bytes + limits.memory_bytes)
    seconds = int(limits.max_seconds * 1.25) + 2
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 2 * seconds, cpu_hard))
    signal.setitimer(signal.ITIMER_REAL, seconds + 10)  # SIGALRM ends the process


def _answer(request: dict[str, Any], limits: Limits) -> tuple[Frames | None, str | None]:
    segment = tuple(request["segment"]) if request["segment"] is not None else None
    sampling = Sampling(**request["sampling"])
    try:
        return decode(request["path"], sampling, segment, request["decoder"], limits), None
    except VideoError as error:
        return None, error.reason
    except MemoryError:
        return None, "needs more memory than the limit memory_bytes"
    except Exception as error:  # reported to the parent with the file's name
        log.exception("%s", request["path"])
        return None, f"cannot be decoded ({type(error).__name__}: {error})"


def _write(answers: IO[bytes], header: dict[str, Any], frames: Any, times: bytes) -> None:
    text = json.dumps(header).encode()
    answers.write(struct.pack("<I", len(text)) + text)
    answers.write(frames)
    answers.write(times)
    answers.flush()


if __name__ == "__main__":
    serve()
