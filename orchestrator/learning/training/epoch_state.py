"""State of a task between two epochs: the selected epoch, and pauses from which another process can continue.

A search of a stream with one task compares its trials after epochs. A trial that waits for others must not hold a GPU,
so its process stores weights, optimizer and record (a *pause*) and ends. A run that continues from a pause equals an
unbroken one, because the randomness of an epoch is seeded from its number. A pause is removed when a later one or the
task's commit exists. Where no pause can be stored (`can_pause`), the run starts again from its first epoch, which takes
longer and gives the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ctvr.methods.base import Method, Task
from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.method_state import PretrainedSnapshot, load_state, trained_state
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.store.gc import PAUSES
from ctvr.orchestrator.streams.stream import Stream

log = logging.getLogger(__name__)


class Report(Protocol):
    """Callback after each task. Called on every worker; only rank 0 has metrics of the evaluation."""

    def __call__(self, task: Task, record: RunState, seconds: float) -> None: ...


@dataclass(frozen=True)
class EpochReports:
    """Reports after epochs.

    Attributes:
        report: called on every worker after each epoch, with the state whose `training` ends with this epoch.
        pause_after: number of epochs after which a pause is stored, before the report; None: never.
    """

    report: Callable[[RunState], None] | None = None
    pause_after: int | None = None


@dataclass
class EpochState:
    """Progress of the training of a task.

    Attributes:
        done: finished epochs.
        best: score and state of the best epoch, with `evaluation.select=best`.
        waited: number of epochs since the best one.
        is_over: whether training stops early (`evaluation.patience`).
    """

    done: int = 0
    best: tuple[float, dict[str, Tensor]] | None = None
    waited: int = 0
    is_over: bool = False

    def select(self, score: float, state: Callable[[], dict[str, Tensor]], config: EvaluationConfig) -> None:
        """Keep the better epoch. Of equals, keep the later one (as CTVR's code), without resetting `waited`."""
        former = self.best
        if former is None or score >= former[0]:
            self.best = score, state()
        is_better = former is None or score > former[0]
        self.waited = 0 if is_better else self.waited + (self.done >= config.patience_start)
        self.is_over = self.waited == config.patience


def can_pause(method: Method, stream: Stream, workers: Workers) -> bool:
    """Return whether the two `state_dict()` of method and optimizer are its complete state between two epochs.

    Tests check every method of this package on videos with one worker. With several workers, their states may differ.
    """
    parts = [type(part).__module__ for part in method.modules() if isinstance(part, Method)]
    is_tested = (
        stream.domain == "videos" and not stream.is_chunked and all(name.startswith("ctvr.methods.") for name in parts)
    )
    return is_tested and workers.size == 1 and not method.declared.has_epoch_state


class Pauses:
    """Pauses of one run in the store of its commits.

    Args:
        commits: commits of the run.
        method: the method in training.
        pretrained: weights that a pause omits while they are unchanged.
        is_on: whether pauses are read and written.
        reports: the callback after an epoch, and the number of epochs before a pause.
    """

    def __init__(
        self,
        commits: Commits,
        method: Method,
        pretrained: PretrainedSnapshot,
        is_on: bool,
        reports: EpochReports | None = None,
    ) -> None:
        self.commits, self.method, self.pretrained = commits, method, pretrained
        self.is_on, self.reports = is_on, reports or EpochReports()

    def end_epoch(self, index: int, state: EpochState, optimizer: torch.optim.Optimizer, record: RunState) -> None:
        """Count an epoch, store a pause where one is due, and report."""
        state.done += 1
        if self.is_on and state.done == self.reports.pause_after:
            self._save(index, state, optimizer, record)
        if self.reports.report is not None:
            self.reports.report(record)

    def _save(self, index: int, state: EpochState, optimizer: torch.optim.Optimizer, record: RunState) -> None:
        """Store a pause of task `index`, and remove its earlier ones."""
        tensors = {f"model/{name}": value for name, value in trained_state(self.method, self.pretrained).items()}
        best = (0.0, dict[str, Tensor]()) if state.best is None else state.best
        tensors |= {f"best/{name}": value.cpu().contiguous() for name, value in best[1].items()}
        numbers: dict[str, dict[str, Any]] = {}
        for place, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{place}/{name}"] = value.cpu().contiguous()
                else:
                    numbers.setdefault(str(place), {})[name] = value
        former, name = self._names(index), f"{self.commits.run}/task_{index + 1:03d}_epoch_{state.done:06d}"
        key = self.commits.put_tensors(f"task_{index + 1:03d}", tensors)
        about = {"weights": key, "optimizer": numbers, "record": asdict(record), "waited": state.waited}
        about |= {"best": best[0] if state.best else None, "is_over": state.is_over}
        self.commits.store.put_json(PAUSES, name, about)
        self._remove([each for each in former if each != name], keep=key)

    def resume(self, index: int, optimizer: torch.optim.Optimizer, record: RunState) -> tuple[EpochState, RunState]:
        """Load the newest pause of task `index`, which has begun; else return an initial state and `record`."""
        if not (name := self._newest(index)):
            return EpochState(), record
        about = self.commits.store.get_json(PAUSES, name)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
        for full, value in self.commits.get_tensors(about["weights"]).items():
            part, _, rest = full.partition("/")
            parts[part][rest] = value
        load_state(self.method, parts["model"], self.pretrained)
        moments: dict[int, dict[str, Any]] = {int(place): dict(v) for place, v in about["optimizer"].items()}
        for full, value in parts["optimizer"].items():
            place, _, field = full.partition("/")
            moments.setdefault(int(place), {})[field] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        best = None if about["best"] is None else (float(about["best"]), parts["best"])
        done, record = int(name.rpartition("_")[2]), RunState(**about["record"])
        log.info("resumed after epoch %d of task %d", done, index + 1)
        if self.reports.report is not None:  # the process that stored the pause may have ended before its report
            self.reports.report(record)
        return EpochState(done, best, about["waited"], about["is_over"]), record

    def clear(self, index: int) -> None:
        """Remove the pauses of a finished task."""
        if self.is_on:
            self._remove(self._names(index))

    def _names(self, index: int) -> list[str]:
        return sorted(self.commits.store.list(PAUSES, f"{self.commits.run}/task_{index + 1:03d}_"))

    def _newest(self, index: int) -> str:
        """Return the name of the newest pause whose objects exist undamaged; "" without one."""
        for name in reversed(self._names(index) if self.is_on else []):
            with suppress(MissingObject):
                self.commits.store.get("weights", self.commits.store.get_json(PAUSES, name)["weights"])
                return name
        return ""

    def _remove(self, names: list[str], keep: str = "") -> None:
        store = self.commits.store
        for name in names:
            with suppress(MissingObject):
                if (weights := store.get_json(PAUSES, name)["weights"]) != keep:
                    store.delete("weights", weights)
            store.delete(PAUSES, name)
