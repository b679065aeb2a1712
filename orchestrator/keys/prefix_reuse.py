"""Task-prefix reuse: runs whose results up to task k cannot differ train those tasks once.

Every setting that a run reads is recorded, and each commit stores the names of the settings read until then. Another
run with the same code, frames and environment, and with the same *values* of those settings, would have computed the
same tasks, because runs are deterministic: while all values read are equal, the next setting read is also the same.
That run therefore adopts the commit and continues with the next task. Reads are observed, so methods do not declare
them. A setting that is read earlier than necessary reduces reuse, but does not change results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import MissingObject

if TYPE_CHECKING:
    from ctvr.orchestrator.store.store import Store

T = TypeVar("T")
READ_SETS, PREFIXES = "reads", "prefixes"  # kinds of objects in the store


class AccessLog:
    """Names of the settings that were read so far, dotted as the user writes them.

    Args:
        idle: settings that do not affect results and are never recorded.
    """

    def __init__(self, idle: Iterable[str] = ()) -> None:
        self.names: set[str] = set()
        self._idle = frozenset(idle)

    def note(self, name: str) -> None:
        if name not in self._idle:
            self.names.add(name)

    def update(self, names: Iterable[str]) -> None:
        for name in names:
            self.note(name)


def track_reads(config: T, prefix: str, reads: AccessLog) -> T:
    """Return an equal copy of a frozen dataclass that records in `reads` which fields are read.

    Access to all fields at once (`vars`, `asdict`, `==`, `repr`) counts as reading all of them. Access to a group
    counts as reading its `name`, which determines its class.
    """
    names = {f.name: f"{prefix}.{f.name}" if prefix else f.name for f in fields(config)}  # type: ignore[arg-type]
    groups = {name: getattr(config, name) for name in names if is_dataclass(getattr(config, name))}
    inner = {name: track_reads(group, names[name], reads) for name, group in groups.items()}
    names |= {name: f"{names[name]}.name" for name in groups}
    parent: Any = type(config)

    def getattribute(self: Any, name: str) -> Any:
        if name in names:
            reads.note(names[name])
        elif name == "__dict__":
            reads.update(names.values())
            for group in inner.values():
                vars(group)
        return parent.__getattribute__(self, name)

    body = {
        "__getattribute__": getattribute,
        "__deepcopy__": lambda self, memo: self,  # settings are frozen, so a deep-copied teacher can share them
        "__module__": parent.__module__,
        "__qualname__": parent.__qualname__,
        "__eq__": parent.__eq__,
        "__hash__": parent.__hash__,
    }
    twin: Any = object.__new__(type(parent.__name__, (parent,), body))
    for name in names:
        object.__setattr__(twin, name, inner.get(name, getattr(config, name)))
    return twin


class TrackedSettings(Mapping[str, Any]):
    """Flat dotted settings that record which values are read. Iteration over the names is not recorded."""

    def __init__(self, settings: Mapping[str, Any], reads: AccessLog) -> None:
        self._settings, self._reads = dict(settings), reads

    def __getitem__(self, name: str) -> Any:
        self._reads.note(name)
        return self._settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


@dataclass(frozen=True)
class Prefix:
    """First tasks of a run, which another run can adopt."""

    done: int  # number of tasks
    run: str  # key of the run that trained them


class Prefixes:
    """Shared tasks of all runs in a store whose environments (run_key.py) are equal.

    Args:
        store: store that holds the prefixes.
        base: digest of everything except the settings that determines a result.
        settings: settings of this run, flat and dotted, complete.
        contents: setting -> digest of the file or folder that it names.
    """

    def __init__(self, store: Store, base: str, settings: Mapping[str, Any], contents: Mapping[str, str]) -> None:
        self.store, self.base = store, base
        self._settings, self._contents = dict(settings), dict(contents)

    def key(self, num_done: int, names: Iterable[str]) -> str:
        """Return the digest of all inputs of the first `num_done` tasks, if these read the settings `names`."""
        read = {name: self._settings[name] for name in sorted(names)}
        return digest_of([self.base, num_done, read, {name: self._contents.get(name, "") for name in read}])

    def publish(self, num_done: int, names: Iterable[str], run: str) -> None:
        """Offer the first `num_done` tasks of run `run` (its key) to other runs; an entry with an equal key is kept."""
        listed = sorted(names)
        self.store.create_json(READ_SETS, f"{self.base}/task_{num_done:03d}/{digest_of(listed)}", {"names": listed})
        self.store.create_json(PREFIXES, f"{self.base}/{self.key(num_done, listed)}", {"run": run, "done": num_done})

    def find(self, num_tasks: int, at_least: int = 1) -> Iterator[Prefix]:
        """Yield the prefixes of `at_least` to `num_tasks` tasks that this run can adopt, longest first."""
        requests = [name.split("/") for name in self.store.list(READ_SETS, f"{self.base}/")]
        for done in range(num_tasks, at_least - 1, -1):
            for _, task, which in (request for request in requests if request[1] == f"task_{done:03d}"):
                try:
                    names = self.store.get_json(READ_SETS, f"{self.base}/{task}/{which}")["names"]
                    if not set(names) <= self._settings.keys():
                        continue  # read by a strategy with a different base method
                    found = self.store.get_json(PREFIXES, f"{self.base}/{self.key(done, names)}")
                except MissingObject:
                    continue
                yield Prefix(int(found["done"]), str(found["run"]))
