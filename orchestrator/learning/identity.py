"""What decides a result: the parts of a run's key."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import methods
from methods import base as methods_base
from methods import find_method
from methods.backbone.load import TINY, TINY_FOLDER
from orchestrator.data.frames import FrameSource
from orchestrator.digests import digest_file, digest_of
from orchestrator.streams.stream import Stream

# Content digests stand for the names of the stream and of a weights file
NOT_DECISIVE = (
    "stream",
    "backbone.weights",
    "backbone.sha256",
    "data.load_threads",
    "data.skip_missing",
    "evaluation.batch_size",
    "evaluation.chunk",
)


def frames_digest(stream: Stream, source: FrameSource, splits: Sequence[str]) -> str:
    """sha256 over the content address of every frame that a run can see: other footage is another run."""
    items = (item for index in range(len(stream.tasks)) for split in splits for item in stream.items(index, split))
    return digest_of([source.key(item) for item in items])


def content_of(value: Any) -> list[str]:
    """Digests of the file or folder that a setting names; empty if it names none."""
    if not isinstance(value, str):
        return []
    path = Path(value)
    if "/" not in value and not path.suffix:
        return []
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [digest_file(file) for file in files if file.is_file()]


_SHARED = ("methods/backbone", "methods/families", "methods/layers")


def code_digest(method: str, base: str | None = None) -> str:
    """sha256 over the source of everything that computes a result: the method, its layers, the loop."""
    root = Path(inspect.getfile(methods)).parent.parent
    files = {Path(inspect.getfile(methods_base))}
    for room in ("orchestrator/learning", "orchestrator/data", "orchestrator/video", *_SHARED):
        files |= set((root / room).rglob("*.py"))
    for name in filter(None, (method, base)):
        files |= {Path(inspect.getfile(c)) for c in find_method(name).__mro__ if c.__module__.startswith("methods.")}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def weights_digest(backbone: str, weights: str) -> str:
    """sha256 over the weights that a backbone starts from, or over their name where no file holds them."""
    shipped = [digest_file(file) for file in sorted(TINY_FOLDER.iterdir()) if backbone == TINY and file.is_file()]
    file = Path(weights)
    return digest_of([shipped, digest_file(file) if file.is_file() else weights])
