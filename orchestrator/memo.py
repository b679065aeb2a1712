"""On-disk cache of pure functions. Most of them need torch, whose import takes longer than the rest of the command.

A result is stored under the digest of the function's name and arguments, our sources and the libraries' versions, so it
cannot be stale. A missing or damaged file only costs time. Only commands use the cache, because they run the sources
that the digest covers. A program that imports ctvr may have changed a class in memory.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ctvr.orchestrator.digests import cache_folder, digest_of, source_digest
from ctvr.orchestrator.output_dir import publish

LIBRARIES = (
    "torch", "open_clip_torch", "timm", "transformers", "numpy", "pydantic", "matplotlib", "av", "decord", "torchcodec",
)  # fmt: skip
_is_enabled = False
KEPT = 8  # folders to keep, one per state of sources and libraries
OF_COMMITS = "commits"  # results that depend on commits only; never removed


def remembered(question: list[Any], compute: Callable[[], Any], of_commits: bool = False) -> Any:
    """Return a cached result, or compute it; in a command, also store it.

    Args:
        question: the function's name and arguments, as JSON values.
        compute: returns the result as JSON values; tuples are read back as lists.
        of_commits: whether `question` contains digests of commits, which cover sources and libraries. The result then
            remains valid when the sources or libraries change.
    """
    state = OF_COMMITS if of_commits else ""
    if (answer := recall(question, state)) is not None:
        return answer
    return keep(question, compute(), state)


def enable() -> None:
    """Enable the cache in this process, which runs a command."""
    global _is_enabled
    _is_enabled = True


def recall(question: list[Any], state: str = "") -> Any:
    """Return the cached result, or None. If given, `state` replaces the digest of the current sources and libraries."""
    if not _is_enabled:
        return None
    file = _folder(state) / digest_of(question)
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None  # opening a FIFO would block
    except (OSError, ValueError, RecursionError):
        return None


def keep(question: list[Any], answer: Any, state: str = "") -> Any:
    """Store a result, and return it as `recall` would. A cache that cannot be written is ignored."""
    if not _is_enabled:
        return answer
    text, folder = json.dumps(answer), _folder(state)
    with contextlib.suppress(OSError):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            others = [each for each in folder.parent.iterdir() if each not in (folder, _folder(OF_COMMITS))]
            for former in sorted(others, key=lambda each: each.stat().st_mtime)[: 1 - KEPT]:
                shutil.rmtree(former, ignore_errors=True)
        publish(folder / digest_of(question), text.encode())
    return json.loads(text)


def _folder(state: str = "") -> Path:
    return cache_folder() / "answers" / (state or _state())


@functools.cache
def _state() -> str:
    """Return the digest of our sources and of the libraries that results depend on."""
    return digest_of([source_digest(), sys.version, {name: version_of(name) for name in LIBRARIES}])[:16]


def version_of(library: str) -> str:
    """Return the version of an installed package, or ""."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
