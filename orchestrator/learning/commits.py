"""The durable record of a finished task.

A task is finished when its *commit* is in the store: a JSON record, created once and never changed,
that names the objects (weights, gallery features) that belong to it. The first writer wins; a late one
(a zombie worker) finds the commit there and is turned away. Runs are deterministic, so both would have
written the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from orchestrator.digests import digest_of
from orchestrator.errors import MissingObject
from orchestrator.learning.reuse import Prefixes
from orchestrator.store.store import Store


@dataclass
class Record:
    """What is known of a run after some task; everything a resumed run and a table need besides weights."""

    done: int = 0  # finished tasks
    own: list[list[float]] = field(default_factory=list)  # R@1 of task i among its own videos, row = task learned
    union: list[list[float]] = field(default_factory=list)  # R@1 of task i among all stored videos
    metrics: list[dict[str, float]] = field(default_factory=list)  # one dictionary per task learned
    training: list[dict[str, float]] = field(default_factory=list)  # of every epoch, with "step"
    ranks: dict[str, float] = field(default_factory=dict)  # query -> rank in the protocol's gallery, at the end
    steps: int = 0  # optimizer steps so far
    seconds: list[float] = field(default_factory=list)  # wall time of each task, as it was trained


def objects_of(commit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(kind, key) of every object that a commit names."""
    galleries = [*commit["galleries"], *commit.get("selection", [])]
    return [("weights", commit["weights"]), *(("gallery", key) for key in galleries)]


class Commits:
    """The commits of one run in a store.

    Args:
        store: where they are.
        run: the run's key: a digest of everything that decides its result.
        prefixes: tasks that other runs may share with this one; None: nothing is shared.
        made_of: what the key was made of besides the settings, by name (`Experiment.surroundings`); kept for readers.

    Attributes:
        reused: how many of the first tasks were trained by another run.
    """

    def __init__(
        self, store: Store, run: str, prefixes: Prefixes | None = None, made_of: Mapping[str, str] | None = None
    ) -> None:
        self.store, self.run, self.prefixes, self.made_of = store, run, prefixes, dict(made_of or {})
        self.reused = 0

    def _name(self, done: int) -> str:
        return f"{self.run}/task_{done:03d}"

    def finished(self, num_tasks: int) -> int:
        """How many tasks are finished: the newest commit whose objects are all there and undamaged."""
        for done in range(num_tasks, 0, -1):
            try:
                self.reused = int(self._whole(done).get("reused", 0))
                return done
            except MissingObject:
                continue
        self.reused = 0
        return 0

    def _whole(self, done: int) -> dict[str, Any]:
        """A commit whose objects are all there and undamaged; MissingObject otherwise."""
        commit: dict[str, Any] = self.store.get_json("commits", self._name(done))
        for kind, key in objects_of(commit):
            self.store.get(kind, key)
        return commit

    def take_over(self, num_tasks: int) -> int:
        """Make another run's finished tasks this run's own where the results cannot differ; returns how many.

        Only tasks beyond this run's last commit are of use. The weights and galleries are shared, not copied.
        """
        own = self.finished(num_tasks)
        for prefix in self.prefixes.find(num_tasks, own + 1) if self.prefixes is not None else ():
            if prefix.run == self.run:
                continue
            try:
                commit = Commits(self.store, prefix.run)._whole(prefix.done)
            except MissingObject:
                continue  # it was collected, or damaged: the task is trained here
            commit |= {"reused": prefix.done, "made_of": self.made_of}
            self.store.put_json("commits", self._name(prefix.done), commit)
            self.reused = prefix.done
            return prefix.done - own
        return 0

    def reads(self, done: int) -> list[str]:
        """Names of the settings that had been read when `done` tasks were finished."""
        return list(self.store.get_json("commits", self._name(done)).get("reads", ()))

    def record(self, done: int) -> Record:
        """The record as of `done` finished tasks."""
        return Record(**self.store.get_json("commits", self._name(done))["record"])

    def galleries(self, done: int, of: Literal["galleries", "selection"] = "galleries") -> list[Tensor]:
        """Stored galleries as of `done` finished tasks; `selection`: those on which epochs are chosen, if others."""
        keys = self.store.get_json("commits", self._name(done)).get(of, [])
        return [_tensor(self.store.get("gallery", key)["features"]) for key in keys]

    def load(self, done: int) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Weights and stored galleries as of `done` finished tasks."""
        commit = self.store.get_json("commits", self._name(done))
        weights = {name: _tensor(value) for name, value in self.store.get("weights", commit["weights"]).items()}
        return weights, self.galleries(done)

    def publish(
        self,
        state: Mapping[str, Tensor],
        galleries: Sequence[Tensor],
        record: Record,
        reads: Iterable[str] = (),
        selection: Sequence[Tensor] = (),
    ) -> bool:
        """Make a finished task durable. Objects first, the record that names them last.

        Args:
            state: weights that differ from the pre-trained ones.
            galleries: one (V, ...) for each finished task.
            record: of the run.
            reads: names of the settings that were read so far.
            selection: galleries of another split, on which epochs are chosen.

        Returns False if the task had been committed before with another content; that one stays.
        """
        weights = {name: value.numpy() for name, value in state.items()}
        key = self._put("weights", f"{self._name(record.done)}", weights)
        commit: dict[str, Any] = {
            "weights": key,
            "galleries": self._put_galleries("task", galleries),
            "record": asdict(record),
            "reads": sorted(reads),
            "reused": self.reused,
            "made_of": self.made_of,
        }
        if selection:
            commit["selection"] = self._put_galleries("select", selection)
        if self.store.put_new_json("commits", self._name(record.done), commit):
            if self.prefixes is not None:
                self.prefixes.publish(record.done, commit["reads"], self.run)
            self._prune(record.done - 2)
            return True
        try:
            previous = self.store.get_json("commits", self._name(record.done))
            if objects_of(previous) == objects_of(commit):
                return True  # the same commit: its objects are there again if they had been damaged
            for kind, name in objects_of(previous):
                self.store.get(kind, name)
        except MissingObject:  # the commit or one of its objects is damaged: this one takes its place
            self.store.put_json("commits", self._name(record.done), commit)
            return True
        return False

    def _put_galleries(self, stem: str, galleries: Sequence[Tensor]) -> list[str]:
        names = [f"{self.run}/{stem}_{number:03d}" for number in range(1, len(galleries) + 1)]
        arrays = [{"features": features.cpu().contiguous().numpy()} for features in galleries]
        return [self._put("gallery", name, array) for name, array in zip(names, arrays)]

    def _prune(self, done: int) -> None:
        """Let go of the weights of an old task: a run is resumed from its last commit, or the one before.

        Those that another run trained are not ours to remove; those after which a setting was read for the
        first time stay, because runs that differ in that setting branch off there.
        """
        if done < 1:
            return
        try:
            commit = self.store.get_json("commits", self._name(done))
            branches = self.prefixes is not None and commit.get("reads") != self.reads(done + 1)
            if not branches and commit["weights"].startswith(f"{self.run}/"):
                self.store.delete("weights", commit["weights"])
        except MissingObject:
            return

    def _put(self, kind: str, stem: str, arrays: dict[str, np.ndarray]) -> str:
        """Store arrays under a name that holds their digest, so that another content never takes their place."""
        content = {name: [str(a.dtype), list(a.shape), _sha(a)] for name, a in arrays.items()}
        key = f"{stem}-{digest_of(content)[:16]}"
        if not self.store.has(kind, key):
            self.store.put(kind, key, arrays, {})
        return key


def _sha(array: np.ndarray) -> str:
    from hashlib import sha256

    return sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _tensor(array: np.ndarray) -> Tensor:
    """A writable copy: the store's arrays are read-only maps."""
    return torch.from_numpy(np.array(array))
