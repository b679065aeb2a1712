"""The durable record of a finished task.

A task is finished when its *commit* is in the store: a JSON record, created once and never changed,
that names the objects (weights, gallery features) that belong to it. The first writer wins; a late one
(a zombie worker) finds the commit there and is turned away.

The commits of a run are one trajectory: each names the digest of its parent, the commit that its writer went on from,
and a child of another parent is refused. A writer that was refused loads what won and goes on from there (`Overtaken`),
so that no table mixes two writers' numbers, which on GPUs or unlike machines can differ. Commits that were written
before parents were named are accepted as they are; their children name them by the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.learning.prefix_reuse import Prefixes
from ctvr.orchestrator.store.store import Store


@dataclass
class RunState:
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
    weights = [commit["weights"], *([commit["optimizer"]] if "optimizer" in commit else [])]
    return [*(("weights", key) for key in weights), *(("gallery", key) for key in galleries)]


def digest_of_commit(commit: Mapping[str, Any]) -> str:
    """What a child calls its parent: sha256 over the parent's parent and every number of it, but for times.

    Objects count by their content, whichever run has stored them: a task that was taken over is the same task.
    """
    record = {name: value for name, value in commit["record"].items() if name != "seconds"}
    objects = [[kind, key.rpartition("/")[2]] for kind, key in objects_of(commit)]
    return digest_of([commit.get("parent", ""), objects, record])


def _is_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two commits of a task hold the same numbers and, where both name one, the same parent."""
    if "parent" in a and "parent" in b:
        return digest_of_commit(a) == digest_of_commit(b)
    return digest_of_commit({**a, "parent": ""}) == digest_of_commit({**b, "parent": ""})


class Commits:
    """The commits of one run in a store.

    Args:
        store: where they are.
        run: the run's key: a digest of everything that decides its result.
        prefixes: tasks that other runs may share with this one; None: nothing is shared.
        made_of: what the key was made of besides the settings, by name (`Experiment.environment_digests`); kept
            for readers.
        keep_checkpoints: keep the weights after every task, where a run needs the last two at most to go on.

    Attributes:
        reused: how many of the first tasks were trained by another run.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        prefixes: Prefixes | None = None,
        made_of: Mapping[str, str] | None = None,
        keep_checkpoints: bool = False,
    ) -> None:
        self.store, self.run, self.prefixes, self.made_of = store, run, prefixes, dict(made_of or {})
        self.keep_checkpoints = keep_checkpoints
        self.reused = 0
        self._at = (0, "")  # the finished tasks that the caller goes on from, and the digest of the last one's commit

    def _name(self, num_done: int) -> str:
        return f"{self.run}/task_{num_done:03d}"

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

    def _whole(self, num_done: int) -> dict[str, Any]:
        """A commit whose objects are all there and undamaged; MissingObject otherwise."""
        commit: dict[str, Any] = self.store.get_json("commits", self._name(num_done))
        for kind, key in objects_of(commit):
            self.store.get(kind, key)
        return commit

    def adopt_prefix(self, num_tasks: int) -> int:
        """Make another run's finished tasks this run's own where the results cannot differ; returns how many.

        Only tasks beyond this run's last commit are of use, and only if what came before has the numbers that this
        run has told. The weights and galleries are shared, not copied.
        """
        own = self.finished(num_tasks)
        told = _history(self.store.get_json("commits", self._name(own)), own) if own else None
        for prefix in self.prefixes.find(num_tasks, own + 1) if self.prefixes is not None else ():
            if prefix.run == self.run:
                continue
            try:
                commit = Commits(self.store, prefix.run)._whole(prefix.done)
            except MissingObject:
                continue  # it was collected, or damaged: the task is trained here
            if told is not None and _history(commit, own) != told:
                continue
            commit |= {"reused": prefix.done, "made_of": self.made_of}
            if not self.store.create_json("commits", self._name(prefix.done), commit):
                if (now := self.finished(num_tasks)) >= prefix.done:  # another worker of this run was quicker
                    return now - own
                self.store.put_json("commits", self._name(prefix.done), commit)  # in the place of a damaged one
            self.reused = prefix.done
            return prefix.done - own
        return 0

    def settings_read(self, num_done: int) -> list[str]:
        """Names of the settings that had been read when `num_done` tasks were finished."""
        return list(self.store.get_json("commits", self._name(num_done)).get("reads", ()))

    def record(self, num_done: int) -> RunState:
        """The record as of `num_done` finished tasks."""
        return RunState(**self.store.get_json("commits", self._name(num_done))["record"])

    def galleries(self, num_done: int, of: Literal["galleries", "selection"] = "galleries") -> list[Tensor]:
        """Stored galleries after `num_done` tasks; `selection`: those on which epochs are chosen, if others."""
        keys = self.store.get_json("commits", self._name(num_done)).get(of, [])
        return [_tensor(self.store.get("gallery", key)["features"]) for key in keys]

    def load(self, num_done: int) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Weights and stored galleries after `num_done` tasks; what is published next is this commit's child."""
        commit = self.store.get_json("commits", self._name(num_done))
        self._at = (num_done, digest_of_commit(commit))
        weights = {name: _tensor(value) for name, value in self.store.get("weights", commit["weights"]).items()}
        return weights, self.galleries(num_done)

    def optimizer_state(self, num_done: int) -> dict[str, Tensor]:
        """What the optimizer took to the next task, by the names of the weights; empty where it begins anew."""
        key = self.store.get_json("commits", self._name(num_done)).get("optimizer")
        return {name: _tensor(value) for name, value in self.store.get("weights", key).items()} if key else {}

    def publish(
        self,
        state: Mapping[str, Tensor],
        galleries: Sequence[Tensor],
        record: RunState,
        reads: Iterable[str] = (),
        selection: Sequence[Tensor] = (),
        optimizer_state: Mapping[str, Tensor] | None = None,
    ) -> bool:
        """Make a finished task durable. Objects first, the record that names them last.

        Args:
            state: weights that differ from the pre-trained ones.
            galleries: one (V, ...) for each finished task.
            record: of the run.
            reads: names of the settings that were read so far.
            selection: galleries of another split, on which epochs are chosen.
            optimizer_state: what the optimizer takes to the next task, by the names of the weights.

        Returns False if the task had been committed before with another content, or if the task before it is not
        the one that this writer went on from; what is there stays.
        """
        parent = self._at[1] if self._at[0] == record.done - 1 else None
        if self._is_of_another(parent, record.done - 1):
            return False
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
        if parent is not None:
            commit["parent"] = parent
        if selection:
            commit["selection"] = self._put_galleries("select", selection)
        if optimizer_state:
            arrays = {name: value.numpy() for name, value in optimizer_state.items()}
            commit["optimizer"] = self._put("weights", f"{self._name(record.done)}-optimizer", arrays)
        return self._resolve_conflict(record.done, commit)

    def _is_of_another(self, parent: str | None, num_done: int) -> bool:
        """Whether task `num_done` has a commit that is not the parent; one that was collected is nobody's."""
        if parent is None or not num_done:
            return False
        try:
            return digest_of_commit(self.store.get_json("commits", self._name(num_done))) != parent
        except MissingObject:
            return False

    def _resolve_conflict(self, num_done: int, commit: dict[str, Any]) -> bool:
        """Give the task this commit, or find out that it has one with other numbers: False."""
        if self.store.create_json("commits", self._name(num_done), commit):
            self._at = (num_done, digest_of_commit(commit))
            if self.prefixes is not None:
                self.prefixes.publish(num_done, commit["reads"], self.run)
            self._prune(num_done - 2)
            return True
        try:
            previous = self.store.get_json("commits", self._name(num_done))
        except MissingObject:  # damaged, and removed now
            previous = {}
        is_same = bool(previous) and _is_same(previous, commit)
        is_ours = is_same and objects_of(previous) == objects_of(commit)  # there again if they were damaged
        if not is_ours and not self._is_resumable(num_done):  # this one takes its place
            self.store.put_json("commits", self._name(num_done), commit)
            previous, is_same = commit, True
        if is_same:
            self._at = (num_done, digest_of_commit(previous))
        return is_same

    def _is_resumable(self, num_done: int) -> bool:
        """Whether a run can go on from a task's commit or a later one: an old task's weights have been let go of."""
        for each in count(num_done):
            try:
                self._whole(each)
                return True
            except MissingObject:
                if each > num_done and not self.store.has("commits", self._name(each)):
                    return False
        raise AssertionError

    def _put_galleries(self, stem: str, galleries: Sequence[Tensor]) -> list[str]:
        names = [f"{self.run}/{stem}_{number:03d}" for number in range(1, len(galleries) + 1)]
        arrays = [{"features": features.cpu().contiguous().numpy()} for features in galleries]
        return [self._put("gallery", name, array) for name, array in zip(names, arrays)]

    def _prune(self, num_done: int) -> None:
        """Let go of the weights of an old task: a run is resumed from its last commit, or the one before.

        Those that another run trained are not ours to remove; those after which a setting was read for the
        first time stay, because runs that differ in that setting branch off there.
        """
        if num_done < 1 or self.keep_checkpoints:
            return
        try:
            commit = self.store.get_json("commits", self._name(num_done))
            branches = self.prefixes is not None and commit.get("reads") != self.settings_read(num_done + 1)
            if not branches and commit["weights"].startswith(f"{self.run}/"):
                for kind, key in objects_of(commit):
                    if kind == "weights":
                        self.store.delete(kind, key)
        except MissingObject:
            return

    def _put(self, kind: str, stem: str, arrays: dict[str, np.ndarray]) -> str:
        """Store arrays under a name that holds their digest, so that another content never takes their place."""
        content = {name: [str(a.dtype), list(a.shape), _sha(a)] for name, a in arrays.items()}
        key = f"{stem}-{digest_of(content)[:16]}"
        if not self.store.has(kind, key):
            self.store.put(kind, key, arrays, {})
        return key


def _history(commit: Mapping[str, Any], num_done: int) -> list[Any]:
    """What a commit says of its first `num_done` tasks."""
    return [commit["record"][name][:num_done] for name in ("own", "union", "metrics")]


def _sha(array: np.ndarray) -> str:
    from hashlib import sha256

    return sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _tensor(array: np.ndarray) -> Tensor:
    """A writable copy: the store's arrays are read-only maps."""
    return torch.from_numpy(np.array(array))
