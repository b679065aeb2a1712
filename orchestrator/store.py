"""Decoded frames, features and records of finished tasks under content addresses, verified when read.

One address names a store: a folder (`runs/store`, `file:///data/store`) or a bucket (`s3://bucket/prefix`). Arrays are
safetensors files and come back as read-only memory maps; a remote object is copied to this machine once. Every byte
is covered by a SHA-256 that is checked at the first read of an object in a process; a damaged object is removed,
counted and reported as missing, so that its owner makes it again: it is never served.

Keys of arrays are content addresses: what a key means never changes, so a copy is never stale. JSON objects may change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.config import ConfigError
from orchestrator.digests import cache_folder, canonical_json, digest_file, digest_of
from orchestrator.leaks import redact
from orchestrator.packed import Arrays, Damaged, pack, pack_json, unpack, unpack_json
from orchestrator.store_local import DiskCache, LocalFiles, StoreError
from orchestrator.store_remote import RemoteObjects

__all__ = ["Arrays", "MissingObject", "Size", "Store", "StoreError", "canonical_json", "digest_file", "digest_of"]

log = logging.getLogger(__name__)

_ARRAYS, _JSON = ".safetensors", ".json"
_SEGMENT = re.compile(r"[a-z0-9_-][a-z0-9_.-]{0,127}")
_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MAX_KEY = 512
_CACHE_GB = 100.0


class MissingObject(KeyError):
    """No such object, or it was damaged and has been removed. `kind` and `key` say which; it survives pickling."""

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(kind, key)
        self.kind, self.key = kind, key

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}: no such object in the store"


class Size(NamedTuple):
    objects: int
    bytes: int


class Store:
    """See the module. Make one with `Store.open`; it can be pickled to other processes and machines.

    Attributes:
        counters: what happened in this process: "put", "get", "damaged", "cache_hit", "cache_miss", "evicted".
        conditional_put: whether `put_new_json` is atomic here; False on servers that ignore If-None-Match.
    """

    def __init__(self, uri: str, objects: LocalFiles | RemoteObjects, cache: DiskCache | None) -> None:
        self.uri = uri
        self.counters: Counter[str] = Counter()
        self.conditional_put = objects.conditional_put if isinstance(objects, RemoteObjects) else True
        self._objects, self._cache = objects, cache
        self._verified: dict[str, tuple[int, int, int]] = {}

    @classmethod
    def open(cls, uri: str | Path, cache: Path | None = None, cache_bytes: int | None = None) -> Store:
        """Open or make a store, and check that it can be written.

        Args:
            uri: a folder, file://, s3://bucket/prefix or memory://name (this process only).
            cache: folder for copies of remote objects; default `cache_folder()`.
            cache_bytes: limit of those copies; default $CTVR_CACHE_GB, else 100 GB.

        Raises:
            ConfigError: for an unknown address, missing credentials, or a place that cannot be written.
        """
        return cls._make(str(uri), cache, cache_bytes, None)

    @classmethod
    def _make(cls, uri: str, cache: Path | None, cache_bytes: int | None, conditional_put: bool | None) -> Store:
        scheme, separator, rest = uri.partition("://")
        if not separator or scheme == "file":
            root = Path(rest if separator else uri).expanduser().absolute()
            if not uri.strip() or (separator and not rest):
                raise ConfigError(f"store: {uri!r} names no folder. Write a folder, or s3://BUCKET/PREFIX.")
            files = LocalFiles(root)
            files.open()
            return cls(str(root), files, None)
        if scheme not in ("s3", "memory"):
            raise ConfigError(
                f"store: {redact(uri)!r} is no known kind of address. Write a folder, or s3://BUCKET/PREFIX."
            )
        remote = RemoteObjects(uri, conditional_put)
        if conditional_put is None:
            remote.open()
        if scheme == "memory" and cache is None:
            return cls(uri, remote, None)
        folder = (cache or cache_folder()) / "objects" / digest_of([uri, os.environ.get("AWS_ENDPOINT_URL")])[:16]
        copies = DiskCache(folder, _cache_bytes() if cache_bytes is None else cache_bytes)
        copies.open()
        store = cls(uri, remote, copies)
        store._given = (cache, cache_bytes)
        return store

    _given: tuple[Path | None, int | None] = (None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        conditional = self.conditional_put if isinstance(self._objects, RemoteObjects) else None
        return Store._make, (self.uri, *self._given, conditional)

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    # -- arrays

    def put(self, kind: str, key: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Store arrays under a content address; durable when this returns. Writers of one key may race.

        Raises:
            StoreError: disk full, server away.
            ValueError: for a key or an array that cannot be stored.
        """
        name = _name(kind, key, _ARRAYS)
        buffers = pack(name, arrays, meta or {})
        self._objects.write(name, buffers)
        self.counters["put"] += 1
        if self._cache is not None:
            self._cache.keep(name, b"".join(buffers))
            self.counters["evicted"] = self._cache.evicted

    def get(self, kind: str, key: str) -> Arrays:
        """The arrays as read-only memory maps (in memory where there is no folder), with `.meta`.

        Raises:
            MissingObject: if there is none, or it was damaged (then it has been removed).
        """
        name = _name(kind, key, _ARRAYS)
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
            with contextlib.suppress(MissingObject):  # another process may evict it at once
                return self._map_or_remove(self._cache, kind, key, name)
        return arrays

    def has(self, kind: str, key: str) -> bool:
        """Whether an object (arrays or JSON) exists; it is not read."""
        return any(self._objects.exists(_name(kind, key, ending)) for ending in (_ARRAYS, _JSON))

    # -- JSON

    def put_json(self, kind: str, key: str, value: Any) -> None:
        """Store or replace a JSON value, atomically.

        Raises:
            StoreError: disk full, server away.
            ValueError: if it is no JSON, or the key is illegal.
        """
        name = _name(kind, key, _JSON)
        self._objects.write(name, [pack_json(name, value)])
        self.counters["put"] += 1

    def put_new_json(self, kind: str, key: str, value: Any) -> bool:
        """Store a JSON value only if the key is free; of several writers exactly one is told True.

        On a server without conditional writes (`conditional_put` is False) two may be told so. After a network
        failure the answer False may mean our own first attempt: compare with `get_json` where it matters.
        """
        name = _name(kind, key, _JSON)
        data = pack_json(name, value)
        for _ in range(3):
            if self._objects.write(name, [data], create=True):
                self.counters["put"] += 1
                return True
            with contextlib.suppress(MissingObject):  # damaged, and removed now: the key is free again
                self.get_json(kind, key)
                return False
        return False

    def get_json(self, kind: str, key: str) -> Any:
        """The value; verified at every read. Keys of dictionaries come back sorted.

        Raises:
            MissingObject: as `get`.
        """
        name = _name(kind, key, _JSON)
        for _ in range(2):  # once more: a transfer may have been at fault
            try:
                return unpack_json(name, self._objects.read(name))
            except FileNotFoundError:
                raise MissingObject(kind, key) from None
            except Damaged as error:
                problem = error
        self._remove_damaged(self._objects, name, problem)
        raise MissingObject(kind, key)

    # -- the whole store

    def delete(self, kind: str, key: str) -> None:
        """Remove an object, if it is there."""
        for ending in (_ARRAYS, _JSON):
            name = _name(kind, key, ending)
            self._objects.delete(name)
            if self._cache is not None:
                self._cache.delete(name)

    def list(self, kind: str, prefix: str = "") -> list[str]:
        """Sorted keys of a kind that begin with `prefix`."""
        _check_kind(kind)
        folder = f"{kind}/{prefix.rpartition('/')[0]}".rstrip("/")
        if prefix:
            _check_key(prefix.rstrip("/"))
        names = (name for name, _ in self._objects.names(folder))
        mine = (name[len(kind) + 1 :] for name in names if name.endswith((_ARRAYS, _JSON)))
        keys = {name.removesuffix(_ARRAYS).removesuffix(_JSON) for name in mine}
        return sorted(key for key in keys if key.startswith(prefix) and _is_key(key))

    def size(self) -> Size:
        """How many objects, and how many bytes they take."""
        sizes = [size for _, size in self._objects.names()]
        return Size(len(sizes), sum(sizes))

    def verify(self, remove: bool = False) -> Iterator[tuple[str, str | None]]:
        """Read every object: yields (name, problem), problem None where all is well; removes the damaged if asked."""
        for name, _ in self._objects.names():
            try:
                data = self._objects.read(name)
                _check(name, data)
            except FileNotFoundError:  # deleted in the meantime
                continue
            except Damaged as error:
                if remove:
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
        except Damaged as error:
            self._remove_damaged(files, name, error)
        try:
            return self._map(files, name)  # whole, if another process has replaced it since
        except (FileNotFoundError, Damaged):
            raise MissingObject(kind, key) from None

    def _map(self, files: LocalFiles, name: str) -> Arrays:
        with files.path(name).open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_ino, status.st_size, status.st_mtime_ns)
            if not status.st_size:
                raise Damaged("empty")
            data = np.memmap(file, np.uint8, "r").view(np.ndarray)
        known = self._verified.get(name)
        fresh = known is None or known[:2] != identity[:2] or (files is self._objects and known != identity)
        arrays = unpack(name, data, verify=fresh)
        self._verified[name] = identity
        return arrays

    def _fetch(self, kind: str, key: str, name: str) -> tuple[bytes, Arrays]:
        for _ in range(2):  # once more: a transfer may have been at fault
            try:
                data = self._objects.read(name)
                return data, unpack(name, np.frombuffer(data, np.uint8))
            except FileNotFoundError:
                raise MissingObject(kind, key) from None
            except Damaged as error:
                problem = error
        self._remove_damaged(self._objects, name, problem)
        raise MissingObject(kind, key)

    def _remove_damaged(self, files: LocalFiles | RemoteObjects, name: str, problem: Damaged) -> None:
        """Remove, but never an object that another process has made whole since we looked."""
        self._verified.pop(name, None)
        self.counters["damaged"] += 1
        where = files.root if isinstance(files, LocalFiles) else self.uri
        log.warning("%s/%s is damaged (%s) and is removed; it will be made again", where, name, problem)
        if isinstance(files, RemoteObjects):
            files.delete(name)
            return
        aside = files.take_away(name)
        if aside is None:
            return
        try:
            _check(name, aside.read_bytes())
        except Damaged:
            aside.unlink(missing_ok=True)
        else:
            files.put_back(aside, name)


def _check(name: str, data: bytes) -> None:
    """Raises Damaged."""
    if name.endswith(_JSON):
        unpack_json(name, data)
    elif name.endswith(_ARRAYS):
        unpack(name, np.frombuffer(data, np.uint8))
    else:
        raise Damaged("no object of this store")


def _name(kind: str, key: str, ending: str) -> str:
    _check_kind(kind)
    _check_key(key)
    return f"{kind}/{key}{ending}"


def _check_kind(kind: str) -> None:
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ValueError(f"{kind!r} is no kind of object: use 1 to 64 of a-z, 0-9, _ and -.")


def _check_key(key: str) -> None:
    if not _is_key(key):
        raise ValueError(
            f"{str(key)[:80]!r} is no key: use a-z, 0-9, _, -, . and /; no part may be empty or begin with '.'."
        )


def _is_key(key: Any) -> bool:
    legal = isinstance(key, str) and len(key) <= _MAX_KEY and all(_SEGMENT.fullmatch(s) for s in key.split("/"))
    return legal and ".." not in key


def _cache_bytes() -> int:
    text = os.environ.get("CTVR_CACHE_GB", str(_CACHE_GB))
    try:
        limit = float(text)
        if not 0 <= limit < 1e9:
            raise ValueError
    except ValueError:
        raise ConfigError(f"CTVR_CACHE_GB: {text!r} is no number of gigabytes. Write for example 200.") from None
    return int(limit * 1e9)
