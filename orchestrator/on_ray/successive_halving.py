"""Successive halving in brackets: what is suggested, run on and stopped is a function of results alone.

Asynchronous halving decides by who reports first, so the same sweep on a busier machine names another winner. Here

1. a bracket of `search.bracket_size` trials is suggested at once, whatever the cluster holds;
2. those that reach a rung wait until all of the bracket have reached it; trials that failed are counted out. The best
   1 / `reduction_factor`, and never fewer than `min_survivors`, go on; of equal ones the first suggested. A rung that
   would stop nobody is not stopped at;
3. when the bracket has ended the searcher is told of its trials in the order of their numbers, and suggests the next
   bracket from exactly that. A trial that was stopped is told with its values by task, as pruned (search.py).

In a grouped search (grouped_sampler.py) the trials of a group share their first task: one of them trains it before the
others begin, which then take it over.

Points that train the same model are one trial: a suggestion whose settings equal a former trial's, or which differs
from a complete one only in settings that no run reads (prefix_reuse.py notes them), is not run; another is
asked for instead.

Nothing here knows Ray. An interrupted sweep goes on by asking the same questions again; what the journal knows is not
run. Source: Jamieson and Talwalkar, arXiv:1502.07943 (successive halving).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.on_ray.plan import SearchConfig, SearchSpace, TrialPlan, rungs

log = logging.getLogger(__name__)

MAX_REPEATED = 100  # suggestions in a row that are trials already: the space has no other point, as far as one can see


class SearcherProtocol(Protocol):
    """A searcher of Ray Tune, as far as brackets need it."""

    def suggest(self, trial_id: str) -> Any: ...

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None: ...

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None: ...


@dataclass
class HalvingTrial:
    """A point that was suggested, and what is known of it."""

    number: int  # from 1, in the order of suggestions
    point: Settings
    settings: Settings  # all that decide, with this point's
    name: str  # to the searcher
    scores: dict[int, float] = field(default_factory=dict)  # finished tasks -> metric
    reads: tuple[str, ...] = ()  # settings that had been read at the end
    reused: int = 0  # tasks that another run had trained
    failed: bool = False
    stopped: int = 0  # the rung that ended it

    @property
    def label(self) -> str:
        """The same whenever the sweep is run: what is known of a trial is found by it."""
        return f"{self.number:02d}-{digest_of(self.settings)[:6]}"

    @property
    def is_alive(self) -> bool:
        return not self.failed and not self.stopped

    def record(self, task: int, value: float, result: Mapping[str, Any], is_last: bool) -> None:
        """What it reported after a task."""
        self.scores[task] = value
        self.reused = int(result.get("reused", 0))
        if is_last:
            self.reads = tuple(filter(None, str(result.get("reads", "")).split(",")))


class Journal:
    """What the trials of a sweep reported, in a file that an interruption leaves behind.

    A line of JSON for the sources, then one for each report; of a trial the last counts. What a trial costs here does
    not grow with their number.

    Args:
        file: none: nothing is kept.
        sources: digest of the code. What other sources reported is not believed; their commits are not either.
    """

    def __init__(self, file: Path | None, sources: str = "") -> None:
        self.file, self.sources = file, sources
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._is_begun = False  # by this process
        if file is not None and file.is_file():
            self._load(file)

    def _load(self, file: Path) -> None:
        first, *lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
        try:
            kept = dict(json.loads(first))
        except (ValueError, TypeError, RecursionError):  # a power cut took it
            log.warning("%s is damaged: trials are asked again; their finished tasks are taken over", file)
            return
        if kept.get("sources") != self.sources:
            return
        for line in lines:
            try:
                entry = json.loads(line)
                self.rows.setdefault(entry["row"], {})[entry["label"]] = entry["about"]
            except (ValueError, TypeError, KeyError, RecursionError):  # empty, or cut short
                continue

    def read(self, row: str, trial: HalvingTrial) -> None:
        known = self.rows.get(row, {}).get(trial.label, {})
        trial.scores = {int(task): float(value) for task, value in known.get("scores", {}).items()}
        trial.reads, trial.reused = tuple(known.get("reads", ())), int(known.get("reused", 0))

    def write(self, row: str, trial: HalvingTrial) -> None:
        about = {"number": trial.number, "point": trial.point, "stopped": trial.stopped}
        about |= {"scores": trial.scores, "reads": trial.reads, "reused": trial.reused}
        self.rows.setdefault(row, {})[trial.label] = about
        if self.file is None:
            return
        if not self._is_begun:  # what an earlier process left may end within a line
            self._begin(self.file)
            self._is_begun = True
            return
        with self.file.open("a", encoding="utf-8") as file:
            file.write(_line(row, trial.label, about))

    def _begin(self, file: Path) -> None:
        lines = [_line(row, label, about) for row, trials in self.rows.items() for label, about in trials.items()]
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text("".join([json.dumps({"sources": self.sources}) + "\n", *lines]), encoding="utf-8")
        temporary.replace(file)


def _line(row: str, label: str, about: Mapping[str, Any]) -> str:
    return json.dumps({"row": row, "label": label, "about": about}) + "\n"


@dataclass(frozen=True)
class Resolve:
    """From a point to every setting that decides a trial's result. Plain data: Ray pickles it."""

    plan: TrialPlan
    space: SearchSpace

    def __call__(self, point: Mapping[str, Any]) -> Settings:
        from ctvr.orchestrator.learning.resolve import resolve  # loads torch
        from ctvr.orchestrator.learning.run_key import NON_IDENTITY_SETTINGS

        full = {**self.plan.settings, **point, "workers": self.plan.workers}
        made = resolve(full, self.space.stream, self.plan.presets).settings
        return {name: value for name, value in made.items() if name not in NON_IDENTITY_SETTINGS}


class SuccessiveHalving:
    """One search.

    Args:
        searcher: suggests points.
        search: how many trials, in which brackets.
        num_tasks: of the stream.
        resolve: from a point to all settings that decide.
        journal: what is known already; `row` is this search's name there.
        later: settings that no task before the second reads, where trials run in groups.
    """

    def __init__(
        self,
        searcher: SearcherProtocol,
        search: SearchConfig,
        num_tasks: int,
        resolve: Callable[[Mapping[str, Any]], Settings],
        journal: Journal | None = None,
        row: str = "",
        later: Iterable[str] = (),
    ) -> None:
        self.searcher, self.search, self.num_tasks, self.resolve = searcher, search, num_tasks, resolve
        self.journal, self.row = journal or Journal(None), row
        self.later = frozenset(later)
        is_halved = search.scheduler == "halving"
        self.rungs = rungs(search.grace_tasks, search.reduction_factor, num_tasks) if is_halved else []
        self.trials: list[HalvingTrial] = []
        self.repeated = 0  # suggestions that were trials already
        self.bracket: list[HalvingTrial] = []
        self.ended = 0  # brackets
        self._decided = 0  # the last rung of the bracket at which it was decided
        self._is_exhausted = False
        self._asked = 0

    # ------------------------------------------------------------------------------------------ what runs next

    def next_trials(self) -> tuple[list[HalvingTrial], int]:
        """The trials that must run now, in the order of their numbers, and until after which task.

        Asked only while none of this search runs. No trial: the search is over.
        """
        while self.bracket or self._begin_bracket():
            alive = [trial for trial in self.bracket if trial.is_alive]
            until = self._next_rung(len(alive))
            if missing := [trial for trial in alive if until not in trial.scores]:
                leaders = self._leaders(missing)
                return (leaders, 1) if leaders else (missing, until)
            if alive and until < self.num_tasks:
                self._decide(alive, until)
            else:
                self._end_bracket()
        return [], self.num_tasks

    def _leaders(self, missing: list[HalvingTrial]) -> list[HalvingTrial]:
        """Those that train the first task before others take it over; none where nobody would wait for them."""
        fresh = [trial for trial in missing if 1 not in trial.scores] if self.later else []
        leaders: dict[str, HalvingTrial] = {}
        for trial in fresh:
            shared = digest_of({name: value for name, value in trial.settings.items() if name not in self.later})
            leaders.setdefault(shared, trial)
        return list(leaders.values()) if len(leaders) < len(fresh) else []

    def kept(self, number: int) -> int:
        """How many of `number` trials pass a rung."""
        return max(math.ceil(number / self.search.reduction_factor), min(number, self.search.min_survivors))

    def _next_rung(self, number: int) -> int:
        is_news = (rung for rung in self.rungs if rung > self._decided and self.kept(number) < number)
        return next(is_news, self.num_tasks)

    def _decide(self, alive: list[HalvingTrial], rung: int) -> None:
        ranked = sorted(alive, key=lambda trial: (*self.loss(trial, rung), trial.number))
        for trial in ranked[self.kept(len(alive)) :]:
            trial.stopped = rung
        self._decided = rung

    def loss(self, trial: HalvingTrial, task: int) -> tuple[bool, float]:
        """What is smaller for the better trial; a metric without number is the worst."""
        value = trial.scores[task]
        return math.isnan(value), 0.0 if math.isnan(value) else value if self.search.mode == "min" else -value

    # ------------------------------------------------------------------------------------------ a bracket's ends

    def _begin_bracket(self) -> bool:
        while (
            not self._is_exhausted and len(self.bracket) < self.search.bracket_size and len(self.trials) < self._most()
        ):
            trial = self._new()
            self._is_exhausted = trial is None
            if trial is not None:
                self.journal.read(self.row, trial)
                self.trials.append(trial)
                self.bracket.append(trial)
        return bool(self.bracket)

    def _most(self) -> float:
        return math.inf if self.search.searcher == "grid" else self.search.trials

    def _new(self) -> HalvingTrial | None:
        """The next suggestion that is no trial yet; none if there is no other point."""
        for _ in range(MAX_REPEATED):
            self._asked += 1
            name = f"{self._asked:05d}"
            point = self.searcher.suggest(name)
            if not isinstance(point, Mapping):
                return None
            trial = HalvingTrial(len(self.trials) + 1, dict(point), self.resolve(point), name)
            if not any(self._repeats(trial, other) for other in self.trials):
                return trial
            self.repeated += 1
            self.searcher.on_trial_complete(name, error=True)  # which no searcher counts
        return None

    def _repeats(self, trial: HalvingTrial, other: HalvingTrial) -> bool:
        """Compare two trials; what one of the same bracket reads is not measured yet, in a resumed search either."""
        return trial.settings == other.settings or (other not in self.bracket and same_model(trial, other))

    def _end_bracket(self) -> None:
        for trial in self.bracket:
            is_twin = any(same_model(trial, other) for other in self.trials[: trial.number - 1])
            if trial.failed or is_twin:
                self.searcher.on_trial_complete(trial.name, error=True)
                continue
            last = trial.stopped or self.num_tasks
            for task in sorted(task for task in trial.scores if task <= last):
                self.searcher.on_trial_result(trial.name, self._told(trial, task))
            self.searcher.on_trial_complete(trial.name, self._told(trial, last))
        self.bracket, self._decided = [], 0
        self.ended += 1

    def _told(self, trial: HalvingTrial, task: int) -> dict[str, Any]:
        return {"task": task, self.search.metric: trial.scores[task]}

    # ------------------------------------------------------------------------------------------ what came out

    def report(self, trial: HalvingTrial, result: Mapping[str, Any], until: int) -> None:
        """Take in what a trial reported after a task."""
        task = int(result.get("task", 0))
        if not 0 < task <= until or self.search.metric not in result:
            return
        trial.record(task, float(result[self.search.metric]), result, task == self.num_tasks)
        self.journal.write(self.row, trial)

    def end(self, trial: HalvingTrial, until: int) -> None:
        """A trial's process has ended; one that did not get as far as it should has failed."""
        trial.failed = until not in trial.scores


def same_model(trial: HalvingTrial, other: HalvingTrial) -> bool:
    """Whether a trial is what a complete one is: whatever that has read is the same."""
    return bool(other.reads) and all(trial.settings.get(name) == other.settings.get(name) for name in other.reads)
