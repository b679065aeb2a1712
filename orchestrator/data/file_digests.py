"""Cache of the digests of a stream's files, one object in the store for all files.

A digest is valid while path, size, modification time and status-change time of its file are unchanged.
`digests.digest_file` caches digests per machine. This cache is shared through the store, so that a machine that uses
the same files reads one object and calls `stat` once per video at the start of a run. Digests of changed files are
computed again. A lost object only costs time. If two processes write, the last object is kept; both are correct.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
from collections.abc import Mapping

import numpy as np

from ctvr.orchestrator.digests import Identity, digest_file, identity_of, is_settled
from ctvr.orchestrator.errors import MissingObject, StoreError
from ctvr.orchestrator.store.gc import FILES
from ctvr.orchestrator.store.store import Store

log = logging.getLogger(__name__)
LEAST = 1000  # minimum number of files for which the cache is used
_UNKNOWN = (-1, -1, -1)


class FileDigestCache:
    """Digest cache of one list of files.

    Args:
        store: store of the cache, a JSON object with (N, 3) int64 identities and (N, 32) uint8 digests in base64.
        seen: path -> current identity of every file.
    """

    def __init__(self, store: Store, seen: Mapping[str, Identity]) -> None:
        self.store, self.seen = store, seen
        self.paths = list(seen)
        self._name = hashlib.sha256("\0".join(self.paths).encode(errors="surrogateescape")).hexdigest()[:32]
        self._known = self._read() if len(seen) >= LEAST else {}
        self._new: dict[str, str] = {}

    def digest(self, path: str) -> str:
        """Return the SHA-256 (hex) of a file; read the file only if its digest is not cached.

        Raises:
            OSError: if the file cannot be read.
        """
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = self._new[path] = digest_file(path)
        return found

    def keep(self) -> None:
        """Store new digests of settled files (`digests.is_settled`). An error of the store is only logged."""
        settled = [path for path in self._new if self._is_settled(path)]
        if len(self.seen) < LEAST or not settled:
            return
        loose = set(self._new).difference(settled)
        known = {path: digest for path, digest in self._known.items() if path not in loose}
        identities = np.array([self.seen[path] if path in known else _UNKNOWN for path in self.paths], "<i8")
        digests = bytes.fromhex("".join(known.get(path, "00" * 32) for path in self.paths))
        value = {"identities": _text(identities.tobytes()), "digests": _text(digests)}
        try:
            self.store.put_json(FILES, self._name, value)
        except StoreError as error:
            log.warning("digests of the stream's files are not cached in the store: %s", error)
        self._new = {}

    def _is_settled(self, path: str) -> bool:
        identity = self.seen.get(path)
        try:
            return identity is not None and identity_of(os.stat(path)) == identity and is_settled(identity)
        except OSError:
            return False

    def _read(self) -> dict[str, str]:
        """Map the path of each unchanged file to its digest."""
        count = len(self.paths)
        try:
            value = self.store.get_json(FILES, self._name)
            stored = np.frombuffer(base64.b64decode(value["identities"]), "<i8").reshape(count, 3)
            digests = base64.b64decode(value["digests"])
            if len(digests) != 32 * count:
                raise ValueError("wrong number of digests")
        except (MissingObject, StoreError, KeyError, TypeError, ValueError, binascii.Error):
            return {}
        now = np.array(list(self.seen.values()), "<i8")
        text = digests.hex()
        same = np.flatnonzero((stored == now).all(axis=1)).tolist()
        return {self.paths[row]: text[64 * row : 64 * row + 64] for row in same}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
