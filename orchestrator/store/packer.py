"""Objects of one kind, collected until they are worth a pack (packs.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctvr.orchestrator.store.packs import Member
from ctvr.orchestrator.store.store import Store

FULL = 32 * 2**20  # bytes that become a pack
LEAST = 20 * 2**20  # the same of what is left at the end


class Packer:
    """Collects objects of a kind and stores them in packs; a few that are left at its end, each by itself.

    A context: what has been added is stored when it ends, however it ends.
    """

    def __init__(self, store: Store, kind: str) -> None:
        self._store, self._kind = store, kind
        self._waiting: list[Member] = []
        self._bytes = 0

    def add(self, key: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take an object; its arrays must not change afterwards.

        Raises:
            StoreError: if a pack that is full now cannot be stored.
        """
        self._waiting.append(Member(key, arrays, meta))
        self._bytes += self._waiting[-1].bytes
        self._store_if(FULL)

    def __contains__(self, key: object) -> bool:
        """Whether an object waits for others."""
        return any(member.key == key for member in self._waiting)

    def __enter__(self) -> Packer:
        return self

    def __exit__(self, *given: object) -> None:
        self._store_if(LEAST)
        for member in self._taken():
            self._store.put(self._kind, *member)

    def _store_if(self, least: int) -> None:
        """Make a pack of what waits, if it is several objects of so many bytes."""
        if len(self._waiting) > 1 and self._bytes >= least:
            self._store.packs.put(self._kind, self._taken())

    def _taken(self) -> list[Member]:
        members, self._waiting, self._bytes = self._waiting, [], 0
        return members
