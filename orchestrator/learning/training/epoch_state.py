"""State of a task between two epochs: the selected epoch, and pauses from which another process can continue.

A *pause* is a mid-task checkpoint: a record in the store with weights, optimizer and results after an epoch. It is
stored every `tracking.pause_minutes`, when the machine or the user is about to end the process (interruption.py), and
when a search of a stream with one task compares its trials after epochs. A run that continues from a pause gives
results equal to those of an unbroken run, because the randomness of an epoch is seeded from its number. A pause is
removed when a later pause or the task's commit exists. If pauses cannot be stored (`can_pause`), the task starts again
from its first epoch, which takes longer and gives the same result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ctvr.methods.base import Method, Task
from ctvr.orchestrator.errors import ConfigError, Interrupted, MissingObject, StoreError
from ctvr.orchestrator.keys.prefix_reuse import AccessLog
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.method_state import (
    PretrainedSnapshot,
    epoch_values,
    load_epoch_values,
    load_state,
    trained_state,
)
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.interruption import Interruption, Request
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.store.gc import PAUSES
from ctvr.orchestrator.streams.stream import Stream

log = logging.getLogger(__name__)
PLAIN = (bool, int, float, str)  # values of an optimizer, besides tensors, that a pause stores


class Report(Protocol):
    """Callback after each task. Called on every worker; only rank 0 has metrics of the evaluation."""

    def __call__(self, task: Task, record: RunState, seconds: float) -> None: ...


@dataclass(frozen=True)
class EpochReports:
    """Reports after epochs.

    Attributes:
        report: called on every worker after each epoch, with the state whose `training` ends with this epoch.
        pause_after: number of epochs after which a pause is stored regardless of its interval, before the report.
        interruption: requests to end the run.
    """

    report: Callable[[RunState], None] | None = None
    pause_after: int | None = None
    interruption: Interruption = field(default_factory=Interruption)


@dataclass
class EpochState:
    """Progress of the training of a task.

    Attributes:
        done: finished epochs.
        best: score and state of the best epoch (of equal epochs the last) with `evaluation.select=best`; otherwise
            None.
        waited: number of epochs since the score last rose, counted from `evaluation.patience_start` on.
        is_over: whether training stops early (`evaluation.patience`).
    """

    done: int = 0
    best: tuple[float, dict[str, Tensor]] | None = None
    waited: int = 0
    is_over: bool = False

    def select(self, score: float, state: Callable[[], dict[str, Tensor]], config: EvaluationConfig) -> None:
        """Keep the better epoch. Of equal epochs keep the later one, as CTVR's code does, but do not reset `waited`."""
        former = self.best
        if former is None or score >= former[0]:
            self.best = score, state()
        is_better = former is None or score > former[0]
        self.waited = 0 if is_better else self.waited + (self.done >= config.patience_start)
        self.is_over = self.waited == config.patience


def can_pause(method: Method, stream: Stream, workers: Workers) -> bool:
    """Return whether the state of the method and the optimizer suffices to resume a task between two epochs.

    Tests check every method of this package, with one worker and with two. A task that is learned in chunks cannot be
    paused, because the method has a task for each chunk. Values of `EPOCH_STATE` differ between workers, but only rank
    0 stores its values.
    """
    parts = [type(part).__module__ for part in method.modules() if isinstance(part, Method)]
    is_tested = not stream.is_chunked and all(name.startswith("ctvr.methods.") for name in parts)
    is_shared = workers.size == 1 or not any(getattr(part, "EPOCH_STATE", ()) for part in method.modules())
    return is_tested and is_shared and not method.declared.has_epoch_state


def describe_unstorable(optimizer: torch.optim.Optimizer) -> str:
    """Return why a pause cannot store the state of an optimizer, or ""."""
    for values in optimizer.state.values():
        for name, value in values.items():
            if value is not None and not isinstance(value, (Tensor, *PLAIN)):
                kind = type(value).__name__
                return f"the state {name!r} of {type(optimizer).__name__} is a {kind}, which a checkpoint cannot store"
    return ""


class Pauses:
    """Pauses of one run in the store of its commits. Rank 0 writes them; the states of all workers are equal.

    Args:
        commits: commits of the run.
        method: the method in training.
        stream: stream of the run.
        pretrained: weights that a pause omits while they are unchanged.
        workers: this process and the number of processes that train together.
        reads: names of the settings read so far; a pause stores them for the record of the task.
        minutes: interval of the pauses; 0: only on request.
        reports: the callback after an epoch, the number of epochs before a pause, and requests to end the run.

    Attributes:
        seconds: duration of the current task in earlier processes.
    """

    def __init__(
        self,
        commits: Commits,
        method: Method,
        stream: Stream,
        pretrained: PretrainedSnapshot,
        workers: Workers,
        reads: AccessLog,
        minutes: float = 0.0,
        reports: EpochReports | None = None,
    ) -> None:
        self.commits, self.method, self.pretrained = commits, method, pretrained
        self.workers, self.reads, self.minutes = workers, reads, minutes
        self.reports, self.is_on = reports or EpochReports(), can_pause(method, stream, workers)
        self.seconds = self._started = self._stored = 0.0

    def end_epoch(self, state: EpochState, optimizer: torch.optim.Optimizer, record: RunState) -> None:
        """Count an epoch, store a pause if one is due, and report.

        Raises:
            Interrupted: if a stop is requested, after the pause and the report.
            ConfigError: if a search needs a pause, and the state of the optimizer cannot be stored.
        """
        state.done += 1
        place, is_rung = f"epoch {state.done} of task {record.done + 1}", state.done == self.reports.pause_after
        request = self._request(time.monotonic() - self._stored >= 60 * self.minutes > 0) if self.is_on else ""
        fault = describe_unstorable(optimizer) if self.is_on and (request or is_rung) else ""
        if fault and is_rung:
            raise ConfigError(
                fault, "optim.name", remedy="Keep tensors and numbers in `state`, or use --scheduler none."
            )
        if fault and request == "stop":
            again = "The same command resumes after the last finished task."
            raise Interrupted(f"stopped after {place}, which is not kept: {fault}. {again}")
        if fault:
            self._stored = time.monotonic()  # the next warning is due when the next checkpoint would be
            log.warning("no checkpoint after %s: %s", place, fault)
        elif self.is_on and (request or is_rung):
            self._save(state, optimizer, record, is_needed=request == "stop" or is_rung)
        if self.reports.report is not None:
            self.reports.report(record)
        if request == "stop":
            raise Interrupted(f"paused after {place}. The same command resumes there.")

    def end_task(self, record: RunState) -> None:
        """End the run after a commit if a stop is requested.

        Raises:
            Interrupted: if a stop is requested.
        """
        if self._request() == "stop":
            raise Interrupted(f"stopped after task {record.done}. The same command resumes there.")

    def _request(self, is_due: bool = False) -> Request:
        """Return rank 0's request on every worker; "save" also if a pause is due."""
        asked: Request = self.reports.interruption.request() or ("save" if is_due else "")
        return self.workers.broadcast(asked)

    def _save(self, state: EpochState, optimizer: torch.optim.Optimizer, record: RunState, is_needed: bool) -> None:
        """Store a pause, and remove earlier pauses. Without `is_needed`, training continues if the store fails."""
        reads = self.workers.all_gather_union(self.reads.names)
        self._stored = time.monotonic()
        if self.workers.rank:
            return
        try:
            self._put(state, optimizer, record, reads)
        except (StoreError, OSError) as error:
            if is_needed:
                raise
            log.warning("the checkpoint after epoch %d could not be stored: %s", state.done, error)

    def _put(self, state: EpochState, optimizer: torch.optim.Optimizer, record: RunState, reads: set[str]) -> None:
        tensors = {f"model/{name}": value for name, value in trained_state(self.method, self.pretrained).items()}
        best = (0.0, dict[str, Tensor]()) if state.best is None else state.best
        tensors |= {f"epoch/{name}": value for name, value in epoch_values(self.method).items()}
        tensors |= {f"best/{name}": value.cpu().contiguous() for name, value in best[1].items()}
        numbers: dict[str, dict[str, Any]] = {}
        whole = optimizer.state_dict()
        for place, values in whole["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{place}/{name}"] = value.cpu().contiguous()
                else:
                    numbers.setdefault(str(place), {})[name] = value
        former, name = self._names(), f"{self.commits.run}/task_{record.done + 1:03d}_epoch_{state.done:06d}"
        key = self.commits.put_tensors(f"task_{record.done + 1:03d}", tensors)
        groups = [{k: v for k, v in group.items() if isinstance(v, PLAIN)} for group in whole["param_groups"]]
        about = {
            "weights": key,
            "optimizer": numbers,
            "groups": groups,
            "record": asdict(record),
            "waited": state.waited,
        }
        about |= {"best": best[0] if state.best else None, "is_over": state.is_over, "reads": sorted(reads)}
        about |= {"parent": self.commits.parent, "seconds": self.seconds + time.monotonic() - self._started}
        self.commits.store.put_json(PAUSES, name, about)
        self._remove([each for each in former if each != name], keep=key)

    def resume(self, optimizer: torch.optim.Optimizer, record: RunState) -> tuple[EpochState, RunState]:
        """Load the newest pause of the current task; if there is none, return a new `EpochState` and `record`."""
        self._started = self._stored = time.monotonic()
        self.reports.interruption.can_pause = self.is_on
        name = self.workers.broadcast(self._newest(record.done) if self.workers.rank == 0 else "")
        if not name:
            return EpochState(), record
        about = self.commits.store.get_json(PAUSES, name)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "epoch": {}, "best": {}, "optimizer": {}}
        for full, value in self.commits.get_tensors(about["weights"]).items():
            part, _, rest = full.partition("/")
            parts[part][rest] = value
        load_state(self.method, parts["model"], self.pretrained)
        load_epoch_values(self.method, parts["epoch"], self.workers.device)
        moments: dict[int, dict[str, Any]] = {int(place): dict(v) for place, v in about["optimizer"].items()}
        for full, value in parts["optimizer"].items():
            place, _, field = full.partition("/")
            moments.setdefault(int(place), {})[field] = value
        fresh = optimizer.state_dict()["param_groups"]
        groups = [{**group, **stored} for group, stored in zip(fresh, about.get("groups") or [{}] * len(fresh))]
        optimizer.load_state_dict({"state": moments, "param_groups": groups})
        best = None if about["best"] is None else (float(about["best"]), parts["best"])
        done, record, self.seconds = int(name.rpartition("_")[2]), RunState(**about["record"]), about["seconds"]
        self.reads.update(about["reads"])
        log.info("resumed after epoch %d of task %d", done, record.done + 1)
        if self.reports.report is not None:  # the process that stored the pause may have ended before its report
            self.reports.report(record)
        return EpochState(done, best, about["waited"], about["is_over"]), record

    def clear(self) -> None:
        """Remove the pauses of a run whose task has just been committed."""
        self.seconds, self.reports.interruption.can_pause = 0.0, False
        if self.is_on and self.workers.rank == 0:
            self._remove(self._names())

    def _names(self) -> list[str]:
        return sorted(self.commits.store.list(PAUSES, f"{self.commits.run}/task_"))

    def _newest(self, done: int) -> str:
        """Return the name of the newest pause after `done` finished tasks ("" if none exists); remove other pauses.

        The pause must continue from the commit that this run continues from, and its objects must exist undamaged.
        """
        names, found = self._names() if self.is_on else [], ""
        for name in reversed(names):
            if not found and f"/task_{done + 1:03d}_" in name:
                with suppress(MissingObject):
                    about = self.commits.store.get_json(PAUSES, name)
                    if about.get("parent") == self.commits.parent:
                        self.commits.store.get("weights", about["weights"])
                        found = name
        self._remove([name for name in names if name != found])
        return found

    def _remove(self, names: list[str], keep: str = "") -> None:
        store = self.commits.store
        for name in names:
            with suppress(MissingObject):
                if (weights := store.get_json(PAUSES, name)["weights"]) != keep:
                    store.delete("weights", weights)
            store.delete(PAUSES, name)
