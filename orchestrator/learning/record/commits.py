"""The durable record of a finished task.

A task is finished when its *commit* is in the store: a JSON record, created once and never changed,
that names the objects (weights, gallery features) that belong to it. The first writer wins; a later writer
(for example a zombie worker) finds the commit and is refused.

The commits of a run form one trajectory. Each holds the digest of its parent, the commit that its writer continued
from; a child of another parent is refused. A refused writer loads the winning commit and continues from it
(`CommitConflict`), so no table mixes two writers' metrics, which can differ on GPUs or between machines.
Commits without a parent (written by older versions) are accepted; their children refer to them by the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.keys.prefix_reuse import Prefixes
from ctvr.orchestrator.learning.record.run_state import MEASURED, RunState
from ctvr.orchestrator.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor


def objects_of(commit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (kind, key) of every object that a commit names."""
    galleries = [*commit["galleries"], *commit.get("selection", [])]
    weights = [commit["weights"], *([commit["optimizer"]] if "optimizer" in commit else [])]
    return [*(("weights", key) for key in weights), *(("gallery", key) for key in galleries)]


def digest_of_commit(commit: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a commit's parent digest, objects and metrics (without times), which its children record.

    Objects enter the digest by their content, not by the run that stored them, so an adopted task has the original's
    digest.
    """
    record = {name: value for name, value in commit["record"].items() if name not in MEASURED}
    objects = [[kind, key.rpartition("/")[2]] for kind, key in objects_of(commit)]
    return digest_of([commit.get("parent", ""), objects, record])


def _is_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two commits of a task have equal objects and metrics and, if both have one, an equal parent."""
    if "parent" in a and "parent" in b:
        return digest_of_commit(a) == digest_of_commit(b)
    return digest_of_commit({**a, "parent": ""}) == digest_of_commit({**b, "parent": ""})


class Commits:
    """The commits of one run in a store.

    Args:
        store: store of the commits and their objects.
        run: key of the run: the digest of everything that determines its result.
        prefixes: finished tasks that other runs may share with this run; if None, tasks are not shared.
        made_of: digests that the key contains in addition to the settings, by name (`Experiment.environment_digests`);
            stored for readers.
        keep_checkpoints: whether to keep the weights after every task instead of the last two, which resuming needs.

    Attributes:
        reused: number of leading tasks that another run trained.
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
        self._at = (0, "")  # number of finished tasks that the caller continues from, digest of the last task's commit

    @property
    def parent(self) -> str:
        """Return the digest of the commit that the caller continues from; "" before the first task."""
        return self._at[1]

    def _name(self, num_done: int) -> str:
        return f"{self.run}/task_{num_done:03d}"

    def finished(self, num_tasks: int) -> int:
        """Return the number of finished tasks according to the newest commit whose objects are all intact."""
        for done in range(num_tasks, 0, -1):
            try:
                self.reused = int(self._whole(done).get("reused", 0))
                return done
            except MissingObject:
                continue
        self.reused = 0
        return 0

    def _whole(self, num_done: int) -> dict[str, Any]:
        """Return the commit of task `num_done` if its objects all exist undamaged; raise MissingObject otherwise."""
        commit: dict[str, Any] = self.store.get_json("commits", self._name(num_done))
        for kind, key in objects_of(commit):
            self.store.get(kind, key)
        return commit

    def adopt_prefix(self, num_tasks: int) -> int:
        """Adopt tasks that another run has finished with provably equal results; return their number.

        Only tasks after this run's last commit are adopted, and only if the other run has the metrics that this run has
        already reported for earlier tasks. Weights and galleries are shared, not copied.
        """
        own = self.finished(num_tasks)
        told = _history(self.store.get_json("commits", self._name(own)), own) if own else None
        for prefix in self.prefixes.find(num_tasks, own + 1) if self.prefixes is not None else ():
            if prefix.run == self.run:
                continue
            try:
                commit = Commits(self.store, prefix.run)._whole(prefix.done)
            except MissingObject:
                continue  # garbage-collected or damaged: the task is trained here
            if told is not None and _history(commit, own) != told:
                continue
            commit |= {"reused": prefix.done, "made_of": self.made_of}
            if not self.store.create_json("commits", self._name(prefix.done), commit):
                if (now := self.finished(num_tasks)) >= prefix.done:  # another worker of this run committed it first
                    return now - own
                self.store.put_json("commits", self._name(prefix.done), commit)  # replaces a damaged commit
            self.reused = prefix.done
            return prefix.done - own
        return 0

    def settings_read(self, num_done: int) -> list[str]:
        """Return the names of the settings that were read until `num_done` tasks were finished."""
        return list(self.store.get_json("commits", self._name(num_done)).get("reads", ()))

    def record(self, num_done: int) -> RunState:
        """Return the state after `num_done` finished tasks."""
        return RunState(**self.store.get_json("commits", self._name(num_done))["record"])

    def galleries(self, num_done: int, of: Literal["galleries", "selection"] = "galleries") -> list[Tensor]:
        """Return the galleries after `num_done` tasks.

        If `of` is "selection", they are the galleries of the split on which the best epoch is selected.
        """
        keys = self.store.get_json("commits", self._name(num_done)).get(of, [])
        return [_tensor(self.store.get("gallery", key)["features"]) for key in keys]

    def load(self, num_done: int) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return weights and stored galleries after `num_done` tasks; the next published commit is a child of it."""
        commit = self.store.get_json("commits", self._name(num_done))
        self._at = (num_done, digest_of_commit(commit))
        return self.get_tensors(commit["weights"]), self.galleries(num_done)

    def optimizer_state(self, num_done: int) -> dict[str, Tensor]:
        """Return the optimizer state carried to the next task, by parameter name; empty if none is carried."""
        key = self.store.get_json("commits", self._name(num_done)).get("optimizer")
        return self.get_tensors(key) if key else {}

    def get_tensors(self, key: str) -> dict[str, Tensor]:
        """Return the tensors that `put_tensors` stored, on the CPU."""
        return {name: _tensor(value) for name, value in self.store.get("weights", key).items()}

    def put_tensors(self, stem: str, tensors: Mapping[str, Tensor]) -> str:
        """Store CPU tensors for this run; return their key."""
        return self._put("weights", f"{self.run}/{stem}", {name: value.numpy() for name, value in tensors.items()})

    def publish(
        self,
        state: Mapping[str, Tensor],
        galleries: Sequence[Tensor],
        record: RunState,
        reads: Iterable[str] = (),
        selection: Sequence[Tensor] = (),
        optimizer_state: Mapping[str, Tensor] | None = None,
    ) -> bool:
        """Make a finished task durable: store the objects first, the record that names them last.

        Args:
            state: weights that differ from the pre-trained weights.
            galleries: features (V, ...) of each finished task.
            record: state of the run.
            reads: names of the settings that were read so far.
            selection: galleries of another split, on which epochs are selected.
            optimizer_state: optimizer state carried to the next task, by parameter name.

        Returns False if the task already has a commit with other content, or if the previous task's commit is not
        the commit that this writer continued from; the existing commit is kept.
        """
        parent = self._at[1] if self._at[0] == record.done - 1 else None
        if self._is_of_another(parent, record.done - 1):
            return False
        commit: dict[str, Any] = {
            "weights": self.put_tensors(f"task_{record.done:03d}", state),
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
            commit["optimizer"] = self.put_tensors(f"task_{record.done:03d}-optimizer", optimizer_state)
        return self._resolve_conflict(record.done, commit)

    def _is_of_another(self, parent: str | None, num_done: int) -> bool:
        """Return whether task `num_done` has a commit other than `parent`; a removed commit does not count."""
        if parent is None or not num_done:
            return False
        try:
            return digest_of_commit(self.store.get_json("commits", self._name(num_done))) != parent
        except MissingObject:
            return False

    def _resolve_conflict(self, num_done: int, commit: dict[str, Any]) -> bool:
        """Commit the task; return False if it already has a commit with other objects or metrics."""
        if self.store.create_json("commits", self._name(num_done), commit):
            self._at = (num_done, digest_of_commit(commit))
            if self.prefixes is not None:
                self.prefixes.publish(num_done, commit["reads"], self.run)
            self._prune(num_done - 2)
            return True
        try:
            previous = self.store.get_json("commits", self._name(num_done))
        except MissingObject:  # it was damaged and has just been removed
            previous = {}
        is_same = bool(previous) and _is_same(previous, commit)
        is_ours = is_same and objects_of(previous) == objects_of(commit)  # damaged objects have been stored again
        if not is_ours and not self._is_resumable(num_done):  # replace the unusable commit
            self.store.put_json("commits", self._name(num_done), commit)
            previous, is_same = commit, True
        if is_same:
            self._at = (num_done, digest_of_commit(previous))
        return is_same

    def _is_resumable(self, num_done: int) -> bool:
        """Return whether a run can resume from this task's commit or a later commit (old weights are pruned)."""
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
        """Delete the weights of an old task, because a run resumes from its last commit or the commit before it.

        Weights that another run trained are kept. So are weights after which a setting was read for the first time,
        because runs that differ in that setting branch off there.
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
        """Store arrays under a name that contains their digest, so that different content never overwrites them."""
        content = {name: [str(a.dtype), list(a.shape), _sha(a)] for name, a in arrays.items()}
        key = f"{stem}-{digest_of(content)[:16]}"
        if not self.store.has(kind, key):
            self.store.put(kind, key, arrays, {})
        return key


def _history(commit: Mapping[str, Any], num_done: int) -> list[Any]:
    """Return the metrics that a commit records for its first `num_done` tasks."""
    return [commit["record"][name][:num_done] for name in ("own", "union", "metrics")]


def _sha(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _tensor(array: np.ndarray) -> Tensor:
    """Return a writable copy: the store's arrays are read-only memory maps."""
    import torch  # takes seconds; commands that only read the record do not need it

    return torch.from_numpy(np.array(array))
