"""Garbage collection of a store: finding and removing objects that no record needs.

Arrays (frames, weights, galleries) are needed while a record names them. Records are the JSON objects: a commit names
the weights and galleries of a finished task, a *use* names the frames of a stream (`note_use`, written before the
first of them is decoded). Records are kept, unless an age is given: then older commits and uses without a recent run
are removed, with the objects that only they name. A pack (packs.py) is needed while any of its objects is.

Readers and writers may run at the same time. An object younger than a day is kept, since its record may not be written
yet. Records that appear during the search are read before anything is removed, and memory maps remain valid. A reader
that still finds an object missing creates it again.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.store.keys import ARRAYS, JSON, split_name
from ctvr.orchestrator.store.packs import KIND as PACKS
from ctvr.orchestrator.store.store import Entry, Size, Store, size_of

DAY = 24 * 3600.0
USES = "uses"
FILES = "files"  # digests of a stream's files (data/file_digests.py)
PAUSES = "pauses"  # mid-task checkpoints, stored between two epochs (learning/training/epoch_state.py)
OF_RUNS = ("commits", PAUSES)  # kinds of records whose keys begin with the key of a run
_AGING = (*OF_RUNS, USES, FILES)  # kinds of records that can be removed by age
_COLLECTED = re.compile(  # kinds of arrays that are removed if no record names them
    r"(frames/[0-9a-f]{64}|features/[0-9a-f]{64}/.+|(weights|gallery)/.+/(task|select)_\d+-[0-9a-f]{16})\.safetensors"
)
_READERS = 16  # records read at once


@dataclass(frozen=True)
class Garbage:
    """Removable objects, with records first, so that an interrupted removal leaves objects without a record."""

    entries: tuple[Entry, ...]
    searched: tuple[Entry, ...]  # all objects of the store
    leftovers: tuple[str, ...] = ()  # names of probe objects that crashed writers left
    # name of a pack's object or record -> keys of the objects in the pack
    packs: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def by_kind(self) -> dict[str, Size]:
        """Return the number and bytes of the removable objects of each kind."""
        return by_kind(self.entries)


def by_kind(entries: Iterable[Entry]) -> dict[str, Size]:
    """Return the number and bytes of the objects of each kind, sorted by kind."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[split_name(entry.name)[0]].append(entry)
    return {kind: size_of(group) for kind, group in sorted(groups.items())}


def note_use(store: Store, stream: str, keys: Sequence[str]) -> None:
    """Record that a stream needs the frames `keys`; at most once a day.

    Args:
        stream: name of the stream, for human readers.
        keys: content addresses of the stream's frames.
    """
    keys = sorted(set(keys))
    slug = re.sub(r"[^a-z0-9_-]+", "-", stream.lower()).strip("-")[:60] or "stream"
    key = f"{slug}-{digest_of([keys, {}])[:16]}"
    today = time.strftime("%Y-%m-%d", time.gmtime())
    try:
        if store.get_json(USES, key)["day"] == today:
            return
    except (MissingObject, KeyError, TypeError):
        pass
    store.put_json(USES, key, {"stream": stream, "day": today, "frames": keys})


def find_garbage(store: Store, older_than: float | None = None, recent: Collection[str] = ()) -> Garbage:
    """Return the objects that no record names; with `older_than`, also old records and the objects that only they name.

    Args:
        older_than: age in days from which records are removed; if None, every record is kept.
        recent: keys of runs whose commits are kept at any age.
    """
    now = store.clock()
    entries = store.entries()
    packs = _list_pack_keys(store, entries)
    records = [entry for entry in entries if entry.name.endswith(JSON) and entry.name not in packs]
    aged = _find_old_records(records, now - older_than * DAY, recent) if older_than is not None else set()
    named = _read_names(store, [entry for entry in records if entry.name not in aged])
    while found := {name for name in aged if split_name(name)[1] in named}:  # keep a record that a younger one names
        aged -= found
        named |= _read_names(store, [entry for entry in records if entry.name in found])
    loose = [e for e in entries if _COLLECTED.fullmatch(e.name) and not _is_named(e.name, named)]
    old = [e for e in entries if e.name in packs and not _is_needed(e.name, packs[e.name], named)]
    old.sort(key=lambda entry: not entry.name.endswith(JSON))
    garbage = [entry for entry in records if entry.name in aged] + old + loose
    garbage = [entry for entry in garbage if entry.modified < now - DAY]
    return Garbage(tuple(garbage), entries, store.leftovers(now - DAY), packs)


def find_weights(store: Store, runs: Collection[str]) -> Garbage:
    """Return the weights, of any age, that only records of `runs` name.

    The commits are kept, so that the metrics can be read. Tasks without weights are trained again when a run resumes.

    Args:
        runs: keys of runs that need not resume.
    """
    entries, owners = store.entries(), _run_prefixes(runs)
    records = [entry for entry in entries if entry.name.endswith(JSON) and split_name(entry.name)[0] != PACKS]
    theirs = [entry for entry in records if _run(entry.name) in owners]
    others = [entry for entry in records if _run(entry.name) not in owners]
    freed = _read_names(store, theirs) - _read_names(store, others)
    weights = [entry for entry in entries if entry.name.startswith("weights/") and split_name(entry.name)[1] in freed]
    return Garbage(tuple(weights), entries)


def remove_garbage(store: Store, garbage: Garbage) -> Size:
    """Remove garbage that no new record names; return the number and total bytes of the removed objects.

    Raises:
        StoreError: if a removal is refused; objects that were removed before are not restored.
    """
    known = {(entry.name, entry.modified) for entry in garbage.searched}
    fresh = [entry for entry in store.entries() if (entry.name, entry.modified) not in known]
    records = [entry for entry in fresh if entry.name.endswith(JSON) and split_name(entry.name)[0] != PACKS]
    named = _read_names(store, records)
    renewed = {entry.name for entry in fresh}
    needed = {name for name, keys in garbage.packs.items() if _is_needed(name, keys, named)}
    doomed = [e for e in garbage.entries if e.name not in renewed | needed and not _is_named(e.name, named)]
    store.remove([entry.name for entry in doomed])
    store.remove(garbage.leftovers)
    return size_of(doomed)


def _find_old_records(records: Sequence[Entry], before: float, recent: Collection[str]) -> set[str]:
    """Return the names of records older than `before`. All commits of a run have the age of its newest commit."""
    youngest: dict[str, float] = {}
    aging = [entry for entry in records if split_name(entry.name)[0] in _AGING]
    for entry in aging:
        youngest[_run(entry.name)] = max(youngest.get(_run(entry.name), 0.0), entry.modified)
    kept = _run_prefixes(recent)
    return {e.name for e in aging if youngest[_run(e.name)] < before and _run(e.name) not in kept}


def _run(name: str) -> str:
    """Return the first two parts of a record's name: `commits/<run>` for a commit, `pauses/<run>` for a checkpoint."""
    return "/".join(name.split("/")[:2])


def _run_prefixes(keys: Iterable[str]) -> set[str]:
    """Return the prefixes of the names of these runs' commits and checkpoints."""
    return {f"{kind}/{key}" for key in keys for kind in OF_RUNS}


def _is_named(name: str, named: Collection[str]) -> bool:
    """Report whether `named` contains the object's key or, for features, the key of the frames that they encode."""
    kind, key = split_name(name)
    return key in named or (kind == "features" and key.partition("/")[0] in named)


def _list_pack_keys(store: Store, entries: Sequence[Entry]) -> dict[str, frozenset[str]]:
    """Map the names of each pack's object and record to the keys in the pack; no keys if the record is unreadable."""
    names = [entry.name for entry in entries if split_name(entry.name)[0] == PACKS]
    records = [name for name in names if name.endswith(JSON)]
    with ThreadPoolExecutor(_READERS) as pool:
        keys = dict(zip(records, pool.map(lambda name: frozenset(_texts(store.find_json(name))), records)))
    return {name: keys.get(name.removesuffix(ARRAYS).removesuffix(JSON) + JSON, frozenset()) for name in names}


def _is_needed(name: str, keys: Collection[str], named: Collection[str]) -> bool:
    """Report whether a record names an object of the pack `name`, which contains `keys`."""
    kind = split_name(name)[1].partition("/")[0]
    return any(_is_named(f"{kind}/{key}", named) for key in keys)


def _read_names(store: Store, records: Sequence[Entry]) -> set[str]:
    """Return all strings of the records, which include the keys that they name. Damaged records are skipped."""

    def read(entry: Entry) -> set[str]:
        return set(_texts(store.find_json(entry.name)))

    with ThreadPoolExecutor(_READERS) as pool:
        return set().union(*pool.map(read, records))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
