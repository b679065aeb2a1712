"""Content-addressed store of decoded frames, features and records of finished tasks, verified when read.

A store has one address: a folder (`runs/store`, `file:///data/store`) or a bucket (`s3://bucket/prefix`). Arrays are
safetensors files, returned as read-only memory maps; a remote object is copied to this machine once. A SHA-256 covers
every byte and is checked at the first read of an object in a process. A damaged object is removed, counted and reported
as missing, so that the code that needs it creates it again.

Keys of arrays are content addresses. The content under a key never changes, so a copy is never stale. JSON objects may
change.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ctvr.orchestrator.digests import cache_folder, digest_of
from ctvr.orchestrator.errors import ConfigError, CorruptObject, MissingObject, StoreError
from ctvr.orchestrator.processes import beat
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.store.disk_cache import DiskCache, cache_limit
from ctvr.orchestrator.store.keys import ARRAYS, JSON, check_key, check_kind, is_key, object_name, split_name
from ctvr.orchestrator.store.local import Entry, LocalFiles, Size, Stamp, size_of
from ctvr.orchestrator.store.packs import Packs
from ctvr.orchestrator.store.remote import RemoteObjects
from ctvr.orchestrator.store.serialization import Arrays, check, pack, pack_json, unpack, unpack_json

log = logging.getLogger(__name__)
Unpacked = TypeVar("Unpacked")

_LISTED_HERE = 1000  # from this many keys on, a local kind is listed, although it also contains other streams' frames
_ASKED_SINGLY = 50  # up to this many keys, a server gets one request per key; a page of a listing has 1000 objects

_PLACES = "Use a folder, or s3://BUCKET/PREFIX."


class Store:
    """A content-addressed store. Open it with `Store.open`; it can be pickled and sent to other machines.

    Attributes:
        counters: events in this process: "put", "get", "damaged", "cache_hit", "cache_miss", "evicted".
    """

    def __init__(self, uri: str, objects: LocalFiles | RemoteObjects, cache: DiskCache | None) -> None:
        self.uri = uri
        self.counters: Counter[str] = Counter()
        self._objects, self._cache = objects, cache
        self._verified: dict[str, Stamp] = {}
        self.packs = Packs(self, objects)

    @classmethod
    def open(cls, uri: str | Path, cache: Path | None = None, cache_bytes: int | None = None) -> Store:
        """Open or create a store; an existing folder without write access is opened read-only.

        Args:
            uri: a folder, file://, s3://bucket/prefix or memory://name (this process only).
            cache: folder for copies of remote objects; default `cache_folder()`.
            cache_bytes: limit of the copies in bytes; default $CTVR_CACHE_GB, or 100 GB if it is not set.

        Raises:
            ConfigError: for an unknown address, missing credentials, or a folder or bucket that cannot be used.
        """
        return cls._make(str(uri), cache, cache_bytes, is_new=True)

    def check_writable(self) -> None:
        """Raise ConfigError if the store is a read-only folder; `open` has already tested write access to buckets."""
        if isinstance(self._objects, LocalFiles):
            self._objects.check_writable()

    @classmethod
    def _make(cls, uri: str, cache: Path | None, cache_bytes: int | None, is_new: bool = False) -> Store:
        scheme, separator, rest = uri.partition("://")
        if not separator or scheme == "file":
            root = Path(rest if separator else uri).expanduser().absolute()
            if not uri.strip() or (separator and not rest):
                raise ConfigError(f"{uri!r} does not name a folder", "store", remedy=_PLACES)
            files = LocalFiles(root)
            files.open()
            return cls(str(root), files, None)
        if scheme not in ("s3", "memory"):
            raise ConfigError(f"{redact(uri)!r} is a URL that the store does not support", "store", remedy=_PLACES)
        remote = RemoteObjects(uri)
        if is_new:
            remote.open()
        if scheme == "memory" and cache is None:
            return cls(uri, remote, None)
        folder = (cache or cache_folder()) / "objects" / digest_of([uri, os.environ.get("AWS_ENDPOINT_URL")])[:16]
        copies = DiskCache(folder, cache_limit() if cache_bytes is None else cache_bytes)
        copies.open()
        store = cls(uri, remote, copies)
        store._given = (cache, cache_bytes)
        return store

    _given: tuple[Path | None, int | None] = (None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store._make, (self.uri, *self._given)

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    # -- arrays

    def put(self, kind: str, key: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Store arrays under a content address; they are durable on return. Several writers may write the same key.

        Raises:
            StoreError: if the disk is full or the server is unavailable.
            ValueError: for a key or an array that cannot be stored.
        """
        beat()
        name = object_name(kind, key, ARRAYS)
        buffers = pack(name, arrays, meta or {})
        self._objects.write(name, buffers)
        self.counters["put"] += 1
        if self._cache is not None:
            self._cache.keep(name, b"".join(buffers))
            self.counters["evicted"] = self._cache.evicted

    def get(self, kind: str, key: str) -> Arrays:
        """Return the arrays as read-only memory maps (in memory if there is no local file), with their metadata.

        Raises:
            MissingObject: if it does not exist, or was damaged and has been removed.
        """
        beat()
        name = object_name(kind, key, ARRAYS)
        if (packed := self.packs.get(kind, key)) is not None:
            return packed
        try:
            return self._get(kind, key, name)
        except MissingObject:
            self.packs.refresh(kind)
            if (packed := self.packs.get(kind, key)) is None:
                raise
            return packed

    def _get(self, kind: str, key: str, name: str) -> Arrays:
        self.counters["get"] += 1
        if isinstance(self._objects, LocalFiles):
            return self._map_or_remove(self._objects, kind, key, name)
        if self._cache is not None:
            with contextlib.suppress(MissingObject):
                arrays = self._map_or_remove(self._cache, kind, key, name)
                self._cache.touch(name)
                self.counters["cache_hit"] += 1
                return arrays
            self.counters["cache_miss"] += 1
        data, arrays = self._fetch(kind, key, name)
        if self._cache is not None and self._cache.keep(name, data):
            self.counters["evicted"] = self._cache.evicted
            with contextlib.suppress(MissingObject):  # another process may evict it immediately
                return self._map_or_remove(self._cache, kind, key, name)
        return arrays

    def has(self, kind: str, key: str) -> bool:
        """Report whether an object (arrays or JSON) exists, without reading it."""
        names = [object_name(kind, key, ending) for ending in (ARRAYS, JSON)]
        if self.packs.has(kind, key) or any(map(self._objects.exists, names)):
            return True
        self.packs.refresh(kind)
        return self.packs.has(kind, key)

    def filter_existing(self, kind: str, keys: Sequence[str]) -> set[str]:
        """Return the existing keys among `keys`. Lists the kind once if that is faster than one request per key."""
        packed = self.packs.keys(kind)
        if isinstance(self._objects, LocalFiles) and len(keys) >= _LISTED_HERE:
            return packed.union(split_name(name)[1] for name in self._objects.listed(kind)).intersection(keys)
        if isinstance(self._objects, LocalFiles) or len(keys) < _ASKED_SINGLY:
            return {key for key in keys if self.has(kind, key)}
        return set(self.list(kind)).intersection(keys)

    # -- JSON

    def put_json(self, kind: str, key: str, value: Any) -> None:
        """Store or replace a JSON value, atomically.

        Raises:
            StoreError: if the disk is full or the server is unavailable.
            ValueError: if it is not JSON, or the key is illegal.
        """
        name = object_name(kind, key, JSON)
        self._objects.write(name, [pack_json(name, value)])
        self.counters["put"] += 1

    def create_json(self, kind: str, key: str, value: Any) -> bool:
        """Store a JSON value only if the key is free; of several writers, exactly one gets True.

        After a network failure, False can mean that our own first attempt succeeded; `get_json` returns the value.
        """
        name = object_name(kind, key, JSON)
        data = pack_json(name, value)
        for _ in range(3):
            if self._objects.write(name, [data], create=True):
                self.counters["put"] += 1
                return True
            with contextlib.suppress(MissingObject):  # a damaged object has been removed: the key is free
                self.get_json(kind, key)
                return False
        return False

    def get_json(self, kind: str, key: str) -> Any:
        """Return the value, which is verified at every read. Keys of dictionaries are sorted.

        Raises:
            MissingObject: if it does not exist, or was damaged and has been removed.
        """
        name = object_name(kind, key, JSON)
        return self._unpacked(kind, key, name, lambda data: unpack_json(name, data))

    def find_json(self, name: str) -> Any:
        """Return the value of an object by its name in `entries`; None if it is missing or damaged."""
        for _ in range(2):  # a transfer error may have damaged the first read
            with contextlib.suppress(FileNotFoundError, CorruptObject):
                return unpack_json(name, self._objects.read(name))
        return None

    # -- the whole store

    def delete(self, kind: str, key: str) -> None:
        """Remove an object if it exists."""
        self.remove([object_name(kind, key, ending) for ending in (ARRAYS, JSON)])
        self.packs.remove(kind, key)

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects by their names, and their copies on this machine. Open memory maps remain valid.

        Raises:
            StoreError: if the storage refuses.
        """
        self._objects.delete(*names)
        if self._cache is not None:
            self._cache.delete(*names)

    def list(self, kind: str, prefix: str = "") -> list[str]:
        """Return the sorted keys of a kind that begin with `prefix`."""
        check_kind(kind)
        folder = f"{kind}/{prefix.rpartition('/')[0]}".rstrip("/")
        if prefix:
            check_key(prefix.rstrip("/"))
        names = (name for name, _, _ in self._objects.names(folder))
        mine = (name[len(kind) + 1 :] for name in names if name.endswith((ARRAYS, JSON)))
        keys = {name.removesuffix(ARRAYS).removesuffix(JSON) for name in mine} | self.packs.keys(kind)
        return sorted(key for key in keys if key.startswith(prefix) and is_key(key))

    def entries(self) -> tuple[Entry, ...]:
        """Return name (kind/key with an extension), bytes and time of every object, sorted by name."""
        return tuple(self._objects.names())

    def clock(self) -> float:
        """Return the time in seconds since 1970, by the clock that dates the objects."""
        return self._objects.clock()

    def leftovers(self, before: float) -> tuple[str, ...]:
        """Return the names of files that crashed writers left before a time; they are not objects."""
        return tuple(self._objects.leftovers(before))

    def size(self) -> Size:
        """Return the number of objects and their total bytes."""
        return size_of(self.entries())

    def copies(self) -> tuple[Path, Size, int] | None:
        """Return the folder, size and limit (bytes) of the local copies of all stores; None for a local store."""
        if self._cache is None:
            return None
        return self._cache.root.parent, Size(*self._cache.size()), self._cache.limit

    def verify(self, remove: bool = False) -> Iterator[tuple[str, str | None]]:
        """Read every object and yield (name, problem or None); `remove` states whether to remove damaged objects."""
        for name, _, _ in self._objects.names():
            try:
                try:
                    check(name, self._objects.read(name))
                except CorruptObject:  # read again: a transfer error may have damaged the first read
                    check(name, self._objects.read(name))
            except FileNotFoundError:  # deleted in the meantime
                continue
            except (CorruptObject, StoreError) as error:
                if remove and name.endswith((ARRAYS, JSON)) and isinstance(error, CorruptObject):
                    self._remove_damaged(self._objects, name, error)
                yield name, str(error)
            else:
                yield name, None

    # -- verification

    def _map_or_remove(self, files: LocalFiles, kind: str, key: str, name: str) -> Arrays:
        try:
            return self._map(files, name)
        except FileNotFoundError:
            raise MissingObject(kind, key) from None
        except CorruptObject as error:
            self._remove_damaged(files, name, error)
        try:
            return self._map(files, name)  # intact, if another process has replaced it since
        except (FileNotFoundError, CorruptObject):
            raise MissingObject(kind, key) from None

    def _map(self, files: LocalFiles, name: str) -> Arrays:
        with files.open_file(name) as file:
            status = os.fstat(file.fileno())
            stamp = files.stamp_of(status)
            if not status.st_size:
                raise CorruptObject("empty")
            data = np.memmap(file, np.uint8, "r").view(np.ndarray)
        arrays = unpack(name, data, verify=self._verified.get(name) != stamp)
        self._verified[name] = stamp
        return arrays

    def stamp(self, kind: str, key: str) -> Stamp | None:
        """Return the stamp (size and times) of the file that `get` mapped; None if the file does not exist."""
        return self._verified.get(f"{kind}/{key}{ARRAYS}")

    def is_unchanged(self, kind: str, key: str, stamp: Stamp | None) -> bool:
        """Report whether the file that `get` mapped still has this stamp; True if `get` reads into memory."""
        files = self._objects if isinstance(self._objects, LocalFiles) else self._cache
        return files is None or files.is_unchanged(f"{kind}/{key}{ARRAYS}", stamp)

    def _fetch(self, kind: str, key: str, name: str) -> tuple[bytes, Arrays]:
        return self._unpacked(kind, key, name, lambda data: (data, unpack(name, np.frombuffer(data, np.uint8))))

    def _unpacked(self, kind: str, key: str, name: str, unpacked: Callable[[bytes], Unpacked]) -> Unpacked:
        for _ in range(2):  # a transfer error may have damaged the first read
            try:
                return unpacked(self._objects.read(name))
            except FileNotFoundError:
                raise MissingObject(kind, key) from None
            except CorruptObject as error:
                problem = error
        self._remove_damaged(self._objects, name, problem)
        raise MissingObject(kind, key)

    def _remove_damaged(self, files: LocalFiles | RemoteObjects, name: str, problem: CorruptObject) -> None:
        """Remove an object unless another process has replaced it with an intact one."""
        self._verified.pop(name, None)
        self.counters["damaged"] += 1
        where = files.root if isinstance(files, LocalFiles) else self.uri
        if isinstance(files, LocalFiles):
            done = files.discard(name)
        else:
            files.delete(name)
            done = "has been removed and will be created again"
        log.warning("%s/%s is damaged (%s) and %s", where, name, problem, done)
