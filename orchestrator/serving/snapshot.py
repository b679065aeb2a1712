"""A trained model with the gallery that it encoded, as one immutable pair, and its replacement by a newer pair.

A query reads the pair once and uses no other pair, so features of two models are never compared.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ctvr.methods.backbone.merged_weights import MergeCache, merged_weights
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.retrieval.hits import Hit
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.streams.example_queries import example_queries
from ctvr.orchestrator.streams.stream import Item

log = logging.getLogger(__name__)
POLL_SECONDS = 2.0
EXAMPLES = 3  # queries on the first page


def video_id(task: str, video: str, segment: tuple[float, float] | None) -> str:
    """Return the id of a video in addresses: 20 hexadecimal digits, equal in all snapshots."""
    return hashlib.sha256(repr((task, video, segment)).encode("utf-8", "backslashreplace")).hexdigest()[:20]


@dataclass(frozen=True)
class Snapshot:
    """A model and its gallery, neither of which changes."""

    model: Model  # `gallery()` returns the searched videos
    about: str  # one line: which model, after how many tasks
    _merged: MergeCache = field(default_factory=dict, repr=False)

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the k best videos of the gallery, best first.

        Raises:
            ConfigError: for a text without words.
        """
        with merged_weights(self._merged):  # for weights that never change
            return self.model.search(query, k)

    @cached_property
    def videos(self) -> Mapping[str, Item]:
        """Map the id of each video in the gallery to the video."""
        blocks = self.model.gallery()
        return {video_id(block.name, item.video, item.segment): item for block in blocks for item in block.items}

    @cached_property
    def examples(self) -> list[tuple[str, str]]:
        """Return captions of searched videos that the model answers best, with the video's id; [] without a stream."""
        stream, ids = self.model.stream, {item: each for each, item in self.videos.items()}
        found = [] if stream is None else example_queries(stream, self.model.trained.ranks, EXAMPLES)
        return [(caption, ids[item]) for caption, item in found if item in ids]


class Watcher:
    """Holder of the current snapshot, which a thread replaces when a newer one is available.

    Args:
        first: the snapshot to begin with.
        load_newer: returns a newer snapshot, or None.
        seconds: interval between checks.
    """

    def __init__(
        self, first: Snapshot, load_newer: Callable[[], Snapshot | None], seconds: float = POLL_SECONDS
    ) -> None:
        self.current, self._load_newer, self._seconds = first, load_newer, seconds
        self._stopped, self._failed = threading.Event(), ""
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 1.0) -> bool:
        """End the thread; return False if it is still loading a model after `seconds`."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                newer = self._load_newer()
            except Exception as error:  # a commit is being removed, or a server is down: the next check may succeed
                reason = redact(f"{type(error).__name__}: {error}")
                if reason != self._failed:
                    log.warning("serve: the newest model cannot be loaded, the current one stays in use (%s)", reason)
                self._failed = reason
                continue
            self._failed = ""
            if newer is not None:
                self.current = newer  # one assignment, so that a query uses either the old pair or the new one
                log.info("serve: now %s, %d videos", newer.about, len(newer.videos))
