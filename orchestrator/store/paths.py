"""Locations of runs, store and videos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctvr.orchestrator.store.store import Store


@dataclass(frozen=True)
class RunPaths:
    """Locations of runs, store and videos. No result depends on them."""

    root: Path  # the runs folder, which contains videos of the built-in streams, manifests and reports
    store: str = ""  # URI of the object store; empty = <root>/store
    videos: Path | None = None  # base folder of a manifest's videos, if not the manifest's own

    def open_store(self) -> Store:
        return Store.open(self.store or str(self.root / "store"))  # remote objects are cached in $CTVR_CACHE
