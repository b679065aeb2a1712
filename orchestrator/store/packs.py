"""Many small objects in one: frames and features of some videos lie together in a pack.

A pack is an object like others, `packs/KIND/DIGEST`, verified as a whole, copied as a whole and removed as a whole when
it is damaged; its owner then makes each of its objects again. Its arrays are those of its objects, with the object's
number before the name. Beside it lies a record with its keys, written after it: a pack without one is unfinished. An
object that is worth a file of its own, or comes alone, is no part of any pack.

100,000 videos of 12 frames are 5,600 packs: few enough to be listed, copied and synced one by one.
"""

from __future__ import annotations

import contextlib
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
PACKED = ("frames", "features")  # kinds of objects that may lie in packs
_PATIENCE = 5.0  # seconds between two looks at a bucket for packs that others have written
_READERS = 16
_SOME = 64  # objects; a pack of features may have a thousand
_OPEN = 256  # packs of many that stay open, a descriptor and about 32 MiB of addresses each


class Member(NamedTuple):
    """An object that is to be packed."""

    key: str
    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class Objects(Protocol):
    """What packs need of a store: its verified objects."""

    def put(
        self, kind: str, key: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None
    ) -> None: ...
    def get(self, kind: str, key: str) -> Arrays: ...
    def put_json(self, kind: str, key: str, value: Any) -> None: ...
    def get_json(self, kind: str, key: str) -> Any: ...
    def remove(self, names: Sequence[str]) -> None: ...
    def stamp(self, kind: str, key: str) -> Stamp | None: ...
    def is_unchanged(self, kind: str, key: str, stamp: Stamp | None) -> bool: ...


Place = tuple[str, int]  # a pack, and the number of an object in it


class _Scan(NamedTuple):
    """When packs were looked for."""

    state: int | None  # of their folder
    at: float  # seconds

    def age(self) -> float:
        return time.monotonic() - self.at


class Packs:
    """The packs of a store, as far as this process knows them."""

    def __init__(self, store: Objects, files: LocalFiles | RemoteObjects) -> None:
        self._store, self._files = store, files
        self._known: dict[str, set[str]] = defaultdict(set)  # kind -> packs
        self._places: dict[str, dict[str, tuple[Place, ...]]] = defaultdict(dict)  # kind -> key -> where it lies
        self._open: OrderedDict[str, tuple[Stamp | None, list[Arrays]]] = OrderedDict()  # the last used at the end
        self._seen: dict[str, _Scan] = {}  # kind -> the last one

    def put(self, kind: str, members: Sequence[Member]) -> None:
        """Store objects in one pack; durable when this returns.

        Raises:
            StoreError: disk full, server away.
        """
        keys = [member.key for member in members]
        pack = digest_of([kind, keys])
        arrays = {f"{i}.{name}": array for i, member in enumerate(members) for name, array in member.arrays.items()}
        self._store.put(KIND, f"{kind}/{pack}", arrays, {"keys": keys, "metas": [dict(m.meta) for m in members]})
        self._store.put_json(KIND, f"{kind}/{pack}", {"keys": keys})
        self._note(kind, pack, keys)

    def get(self, kind: str, key: str) -> Arrays | None:
        """An object's arrays and metadata; None if it is in no pack that is whole."""
        for pack, number in self._places[kind].get(key, ()):
            try:
                return self._members(kind, pack)[number]
            except MissingObject:  # removed, or damaged and removed now
                self._forget(kind, pack)
                with contextlib.suppress(StoreError):  # a store that can only be read keeps it; this process does not
                    self._remove(kind, pack)
        return None

    def _members(self, kind: str, pack: str) -> list[Arrays]:
        """The objects of a pack; those of packs of many, whose header takes its time to read, stay open.

        Raises:
            MissingObject: if it is not there, or no longer whole.
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
        if len(members) > _SOME:
            self._open[name] = stamp, members
            while len(self._open) > _OPEN:
                with contextlib.suppress(KeyError):
                    self._open.popitem(last=False)
        return members

    def _remove(self, kind: str, pack: str) -> None:
        """Remove a pack and its record."""
        self._store.remove([f"{KIND}/{kind}/{pack}{ending}" for ending in (ARRAYS, JSON)])

    def keys(self, kind: str) -> set[str]:
        """Keys of all objects of a kind that lie in packs now."""
        if kind in PACKED:
            self._scan(kind)
        return set(self._places[kind])

    def has(self, kind: str, key: str) -> bool:
        """Whether an object lies in a pack, as far as is known."""
        return key in self._places[kind]

    def refresh(self, kind: str) -> bool:
        """Look for packs that others have written, where some may have been; whether there are any."""
        if kind not in PACKED:
            return False
        before, state = self._seen.get(kind), self._files.state_of(f"{KIND}/{kind}")
        if before is not None and (state == before.state if state is not None else before.age() < _PATIENCE):
            return False
        known = set(self._known[kind])
        self._scan(kind)
        return not self._known[kind] <= known

    def remove(self, kind: str, key: str) -> None:
        """Remove an object from every pack in which it lies: the others of such a pack get another one."""
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
        """Read the records of all packs that this process does not know, and forget those that are gone."""
        folder = f"{KIND}/{kind}/"
        # before the listing: what comes meanwhile is news again
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
                return None  # not finished yet, or never; or it cannot be read

        with ThreadPoolExecutor(_READERS) as pool:  # a folder's records are there sooner than threads
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
                places[key] = (place, *known)  # the newest first

    def _forget(self, kind: str, pack: str) -> None:
        self._known[kind].discard(pack)
        self._open.pop(f"{kind}/{pack}", None)
        # a list first: threads that read ahead may be adding places
        for key, places in list(self._places[kind].items()):
            if any(place[0] == pack for place in places):
                rest = tuple(place for place in places if place[0] != pack)
                if rest:
                    self._places[kind][key] = rest
                else:
                    self._places[kind].pop(key, None)
