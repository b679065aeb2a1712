"""Packs: one object that contains the frames or features of several videos.

A pack is an ordinary object, `packs/KIND/DIGEST`. It is verified, copied and, if damaged, removed as a whole. The
objects in a removed pack are then created again. Array names are prefixed with the object's index in the pack. A record
with the keys is written last, so a pack without a record is unfinished. Large or single objects are not packed.

100,000 videos of 12 frames fill 5,600 packs, few enough to list, copy and synchronize one by one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import MissingObject, StoreError
from ctvr.orchestrator.store.keys import ARRAYS, JSON
from ctvr.orchestrator.store.local import LocalFiles, Stamp
from ctvr.orchestrator.store.remote import RemoteObjects
from ctvr.orchestrator.store.serialization import Arrays

KIND = "packs"
PACKED = ("frames", "features")  # kinds of objects that can be packed
_PATIENCE = 5.0  # seconds between two listings of a bucket for packs that other processes have written
_READERS = 16
_OPEN = 256  # open packs; each needs a descriptor and about 32 MiB of address space


class Member(NamedTuple):
    """An object to be packed."""

    key: str
    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class Objects(Protocol):
    """The methods of a store that packs use."""

    def put(
        self, kind: str, key: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None
    ) -> None: ...
    def get(self, kind: str, key: str) -> Arrays: ...
    def put_json(self, kind: str, key: str, value: Any) -> None: ...
    def get_json(self, kind: str, key: str) -> Any: ...
    def remove(self, names: Sequence[str]) -> None: ...
    def stamp(self, kind: str, key: str) -> Stamp | None: ...
    def is_unchanged(self, kind: str, key: str, stamp: Stamp | None) -> bool: ...


Place = tuple[str, int]  # the name of a pack, and the index of an object in the pack


class _Scan(NamedTuple):
    """The last listing of packs."""

    state: int | None  # state of the folder of packs; see `state_of`
    at: float  # time of the listing in seconds

    def age(self) -> float:
        return time.monotonic() - self.at


class Packs:
    """The packs of a store that this process has listed."""

    def __init__(self, store: Objects, files: LocalFiles | RemoteObjects) -> None:
        self._store, self._files = store, files
        self._known: dict[str, set[str]] = defaultdict(set)  # kind -> packs
        self._places: dict[str, dict[str, tuple[Place, ...]]] = defaultdict(dict)  # kind -> key -> packs
        self._open: OrderedDict[str, tuple[Stamp | None, list[Arrays]]] = OrderedDict()  # least recently used first
        self._seen: dict[str, _Scan] = {}  # kind -> its last scan
        self._listing = threading.Lock()  # a reader that misses an object waits for a listing that may find it

    def put(self, kind: str, members: Sequence[Member]) -> None:
        """Store objects in one pack, which is durable when this method returns.

        Raises:
            StoreError: if the disk is full or the server is unavailable.
        """
        keys = [member.key for member in members]
        pack = digest_of([kind, keys])
        arrays = {f"{i}.{name}": array for i, member in enumerate(members) for name, array in member.arrays.items()}
        self._store.put(KIND, f"{kind}/{pack}", arrays, {"keys": keys, "metas": [dict(m.meta) for m in members]})
        self._store.put_json(KIND, f"{kind}/{pack}", {"keys": keys})
        self._note(kind, pack, keys)

    def get(self, kind: str, key: str) -> Arrays | None:
        """Return an object's arrays and metadata; None if no intact pack contains it."""
        for pack, number in self._places[kind].get(key, ()):
            try:
                return self._members(kind, pack)[number]
            except MissingObject:  # already removed, or found damaged and removed now
                self._forget(kind, pack)
                with contextlib.suppress(StoreError):  # a read-only store keeps the pack; this process ignores it
                    self._remove(kind, pack)
        return None

    def _members(self, kind: str, pack: str) -> list[Arrays]:
        """Return the objects of a pack. The pack is kept open, because reading its header takes half a batch's time.

        Raises:
            MissingObject: if the pack does not exist, or is damaged.
        """
        name = f"{kind}/{pack}"
        opened = self._open.get(name)
        if opened is not None and self._store.is_unchanged(KIND, name, opened[0]):
            self._open[name] = self._open.pop(name, opened)  # another thread may have closed it
            return opened[1]
        whole = self._store.get(KIND, name)
        stamp = self._store.stamp(KIND, name)
        parts: list[dict[str, np.ndarray]] = [{} for _ in whole.meta["keys"]]
        for each, array in whole.items():
            number, _, own = each.partition(".")
            parts[int(number)][own] = array
        members = [Arrays(part, meta) for part, meta in zip(parts, whole.meta["metas"], strict=True)]
        self._open[name] = stamp, members
        while len(self._open) > _OPEN:
            with contextlib.suppress(KeyError):
                self._open.popitem(last=False)
        return members

    def _remove(self, kind: str, pack: str) -> None:
        """Remove a pack and its record."""
        self._store.remove([f"{KIND}/{kind}/{pack}{ending}" for ending in (ARRAYS, JSON)])

    def keys(self, kind: str) -> set[str]:
        """Return the keys of all objects of a kind that are in packs now."""
        if kind in PACKED:
            with self._listing:
                self._scan(kind)
        return set(self._places[kind])

    def has(self, kind: str, key: str) -> bool:
        """Report whether a known pack contains an object."""
        return key in self._places[kind]

    def refresh(self, kind: str) -> None:
        """List the packs again if other processes may have added some."""
        if kind not in PACKED:
            return
        with self._listing:
            before, state = self._seen.get(kind), self._files.state_of(f"{KIND}/{kind}")
            if before is None or (state != before.state if state is not None else before.age() >= _PATIENCE):
                self._scan(kind)

    def remove(self, kind: str, key: str) -> None:
        """Remove an object from every pack that contains it, by writing a new pack with the pack's other objects."""
        if key not in self.keys(kind):
            return
        for pack in {place[0] for place in self._places[kind][key]}:
            try:
                whole = self._members(kind, pack)
            except MissingObject:
                whole = []
            keys = {n: each for each, places in list(self._places[kind].items()) for p, n in places if p == pack}
            members = [Member(keys[i], each, each.meta) for i, each in enumerate(whole) if keys.get(i, key) != key]
            self._forget(kind, pack)
            if members:
                self.put(kind, members)
            self._remove(kind, pack)

    def _scan(self, kind: str) -> None:
        """Read the records of all new packs, and drop packs that no longer exist."""
        folder = f"{KIND}/{kind}/"
        # taken before the listing, so that a write during the listing triggers another listing
        self._seen[kind] = _Scan(self._files.state_of(folder), time.monotonic())
        names = {name.removeprefix(folder) for name in self._files.listed(folder.rstrip("/"))}
        there = {name.removesuffix(JSON) for name in names if name.endswith(JSON)}
        there = {pack for pack in there if pack + ARRAYS in names}
        for pack in self._known[kind] - there:
            self._forget(kind, pack)
        new = sorted(there - self._known[kind])

        def read(pack: str) -> list[str] | None:
            try:
                return list(self._store.get_json(KIND, f"{kind}/{pack}")["keys"])
            except (MissingObject, StoreError, KeyError, TypeError):
                return None  # the pack is unfinished, or its record is not readable

        with ThreadPoolExecutor(_READERS) as pool:  # local records are read faster than threads start
            found = map(read, new) if isinstance(self._files, LocalFiles) else pool.map(read, new)
            for pack, keys in zip(new, found):
                if keys is not None:
                    self._note(kind, pack, keys)

    def _note(self, kind: str, pack: str, keys: Sequence[str]) -> None:
        self._known[kind].add(pack)
        places = self._places[kind]
        for number, key in enumerate(keys):
            known, place = places.get(key, ()), (pack, number)
            if place not in known:
                places[key] = (place, *known)  # newest first

    def _forget(self, kind: str, pack: str) -> None:
        self._known[kind].discard(pack)
        self._open.pop(f"{kind}/{pack}", None)
        # copied to a list first, because prefetching threads may add keys
        for key, places in list(self._places[kind].items()):
            if any(place[0] == pack for place in places):
                rest = tuple(place for place in places if place[0] != pack)
                if rest:
                    self._places[kind][key] = rest
                else:
                    self._places[kind].pop(key, None)
