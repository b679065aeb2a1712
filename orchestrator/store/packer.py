"""Buffer that collects objects of one kind until they fill a pack (packs.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctvr.orchestrator.store.packs import Member
from ctvr.orchestrator.store.store import Store

FULL = 32 * 2**20  # bytes; collected objects of this total size are stored as a pack
LEAST = 20 * 2**20  # bytes; minimum size of a pack of the objects that remain on exit


class Packer:
    """Collects objects of a kind and stores them in packs; a small remainder is stored object by object.

    Use it as a context manager: all added objects are stored on exit, also after an exception.
    """

    def __init__(self, store: Store, kind: str) -> None:
        self._store, self._kind = store, kind
        self._waiting: list[Member] = []
        self._bytes = 0

    def add(self, key: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Add an object; its arrays must not change afterwards.

        Raises:
            StoreError: if a pack that is now full cannot be stored.
        """
        self._waiting.append(Member(key, arrays, meta))
        self._bytes += self._waiting[-1].bytes
        self._store_if(FULL)

    def __contains__(self, key: object) -> bool:
        """Report whether an object has been added but is not stored yet."""
        return any(member.key == key for member in self._waiting)

    def __enter__(self) -> Packer:
        return self

    def __exit__(self, *given: object) -> None:
        self._store_if(LEAST)
        for member in self._take_members():
            self._store.put(self._kind, *member)

    def _store_if(self, least: int) -> None:
        """Store the collected objects as a pack if there are at least two, with at least this many bytes in total."""
        if len(self._waiting) > 1 and self._bytes >= least:
            self._store.packs.put(self._kind, self._take_members())

    def _take_members(self) -> list[Member]:
        members, self._waiting, self._bytes = self._waiting, [], 0
        return members
