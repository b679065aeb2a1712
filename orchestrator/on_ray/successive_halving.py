"""Successive halving in brackets: suggestions, continuations and stops depend on results only.

Asynchronous halving depends on which trial reports first, so its winner depends on the load of the machine. Here

1. a bracket of `search.bracket_size` trials is suggested at once, whatever the capacity of the cluster;
   `search.brackets_at_once` brackets, a number that the plan of a sweep records, run at the same time;
2. trials that reach a rung wait until all of the bracket have reached it; failed trials do not count. The best
   1 / `reduction_factor`, and at least `min_survivors`, continue; ties go to the earlier suggestion. The order by
   several objectives is that of pareto.py. A rung that would stop no trial is skipped;
3. at the end of the first of the running brackets the results of its trials are passed to the searcher, ordered by
   trial number; it then proposes one more bracket. So bracket k is suggested from the brackets up to k -
   `brackets_at_once`, whichever others have ended. The results of a stopped trial are its values per task, as pruned
   (search.py).

A stream of one task has no task between two rungs; there trials are compared after epochs (`epochs`).

In a grouped search (grouped_sampler.py) the trials of a group share their first task: one of them trains it before the
others start, which then adopt it.

Points that train the same model are one trial: a suggestion is skipped and replaced if its settings equal those of a
former trial, or if it differs from a complete one only in settings that no run reads (recorded by prefix_reuse.py).

Nothing here depends on Ray. A resumed sweep proposes the same trials again and skips those in its journal. Source:
Jamieson and Talwalkar, arXiv:1502.07943 (successive halving).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.on_ray.journal import HalvingTrial, Journal
from ctvr.orchestrator.on_ray.pareto import best_first, losses_of
from ctvr.orchestrator.on_ray.plan import SearchConfig, TrialPlan, rungs
from ctvr.orchestrator.on_ray.search_space import SearchSpace

MAX_REPEATED = 100  # duplicate suggestions in a row after which the space counts as exhausted


class SearcherProtocol(Protocol):
    """The methods of Ray Tune's searchers that brackets need."""

    def suggest(self, trial_id: str) -> Any: ...

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None: ...

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None: ...


@dataclass
class Bracket:
    """Trials that were suggested together."""

    trials: list[HalvingTrial] = field(default_factory=list)
    decided: int = 0  # the last rung at which trials were compared
    running: set[int] = field(default_factory=set)  # numbers of the trials whose segments run or wait for resources
    is_over: bool = False

    @property
    def alive(self) -> list[HalvingTrial]:
        return [trial for trial in self.trials if trial.is_alive]


@dataclass(frozen=True)
class Resolve:
    """Function from a point to all settings that affect a trial's result. Plain data, which Ray pickles."""

    plan: TrialPlan
    space: SearchSpace

    def __call__(self, point: Mapping[str, Any]) -> Settings:
        from ctvr.orchestrator.keys.run_key import NON_IDENTITY_SETTINGS
        from ctvr.orchestrator.settings.resolve import resolve  # loads torch

        full = {**self.plan.settings, **point, "workers": self.plan.workers}
        made = resolve(full, self.space.stream, self.plan.presets).settings
        return {name: value for name, value in made.items() if name not in NON_IDENTITY_SETTINGS}


class SuccessiveHalving:
    """Successive halving of one search.

    Args:
        searcher: suggests points.
        search: settings of the search: number of trials, brackets.
        num_tasks: number of tasks of the stream.
        epochs: number of epochs of a trial if rungs are after epochs; 0 if they are after tasks.
        resolve: function from a point to all settings that affect the result.
        journal: known results; `row` is this search's name in it.
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
        epochs: int = 0,
    ) -> None:
        self.searcher, self.search, self.resolve = searcher, search, resolve
        self.unit, self.length = ("epoch", epochs) if epochs else ("task", num_tasks)
        self.journal, self.row = journal or Journal(None), row
        self.later = frozenset(later)
        is_halved = search.scheduler == "halving"
        self.rungs = rungs(search.grace_tasks, search.reduction_factor, self.length) if is_halved else []
        self.trials: list[HalvingTrial] = []
        self.repeated = 0  # number of duplicate suggestions
        self.brackets: list[Bracket] = []  # running brackets, in the order of suggestions
        self.ended = 0  # number of brackets that ended
        self._passed = 0  # number of trials whose results were passed to the searcher: those of ended brackets
        self._is_exhausted = False
        self._asked = 0

    # ------------------------------------------------------------------------------------------ scheduling

    def next_segments(self) -> list[tuple[HalvingTrial, int]]:
        """Return the trials that can run now, each with the task or epoch after which it stops, ordered by number.

        A segment is returned once and ends by `end`. If none is returned while none runs, the search is over.
        """
        due: list[tuple[HalvingTrial, int]] = []
        while True:
            while len(self.brackets) < max(1, self.search.brackets_at_once) and self._begin_bracket():
                pass
            for bracket in self.brackets:
                due += self._advance(bracket)
            if not self.brackets or not self.brackets[0].is_over:
                return due
            self._end_bracket(self.brackets.pop(0))

    def _advance(self, bracket: Bracket) -> list[tuple[HalvingTrial, int]]:
        """Return the next segments of a bracket; none while one of its trials runs, or if it is over."""
        while not bracket.running and not bracket.is_over:
            alive = bracket.alive
            until = self._next_rung(bracket, len(alive))
            if missing := [trial for trial in alive if until not in trial.scores]:
                if leaders := self._leaders(missing):
                    missing, until = leaders, 1
                bracket.running = {trial.number for trial in missing}
                return [(trial, until) for trial in missing]
            if alive and until < self.length:
                self._decide(bracket, until)
            else:
                bracket.is_over = True
        return []

    def segments_ahead(self) -> int:
        """Return an upper bound of concurrent segments until the next brackets begin."""
        most, ending = 0, 0
        for bracket in self.brackets:
            alive = bracket.alive
            until = self._next_rung(bracket, len(alive))
            ends = until >= self.length
            ending += ends
            waiting = sum(until not in trial.scores and trial.number not in bracket.running for trial in alive)
            most += max(len(bracket.running), waiting, 0 if ends else self.search.kept(len(alive)))
        left = 0 if self._is_exhausted else self._most() - len(self.trials)
        return most + int(min(ending * self.search.bracket_size, left))

    def _leaders(self, missing: list[HalvingTrial]) -> list[HalvingTrial]:
        """Return the trials that train the first task of their group; empty if no other trial would wait for them."""
        fresh = [trial for trial in missing if 1 not in trial.scores] if self.later else []
        leaders: dict[str, HalvingTrial] = {}
        for trial in fresh:
            shared = digest_of({name: value for name, value in trial.settings.items() if name not in self.later})
            leaders.setdefault(shared, trial)
        return list(leaders.values()) if len(leaders) < len(fresh) else []

    def _next_rung(self, bracket: Bracket, number: int) -> int:
        is_news = (rung for rung in self.rungs if rung > bracket.decided and self.search.kept(number) < number)
        return next(is_news, self.length)

    def _decide(self, bracket: Bracket, rung: int) -> None:
        alive = sorted(bracket.alive, key=lambda trial: trial.number)
        losses = [losses_of(trial.scores[rung], self.search.modes) for trial in alive]
        ranked = [alive[index] for index in best_first(losses)]
        for trial in ranked[self.search.kept(len(ranked)) :]:
            trial.stopped = rung
        bracket.decided = rung

    # ------------------------------------------------------------------------------------------ brackets

    def _begin_bracket(self) -> bool:
        bracket = Bracket()
        while (
            not self._is_exhausted
            and len(bracket.trials) < self.search.bracket_size
            and len(self.trials) < self._most()
        ):
            trial = self._new()
            self._is_exhausted = trial is None
            if trial is not None:
                self.journal.read(self.row, trial)
                self.trials.append(trial)
                bracket.trials.append(trial)
        if bracket.trials:
            self.brackets.append(bracket)
        return bool(bracket.trials)

    def _most(self) -> float:
        return math.inf if self.search.searcher == "grid" else self.search.trials

    def _new(self) -> HalvingTrial | None:
        """Return the next suggestion that is not a duplicate; None if there is no other point."""
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
            self.searcher.on_trial_complete(name, error=True)  # searchers ignore failed trials
        return None

    def _repeats(self, trial: HalvingTrial, other: HalvingTrial) -> bool:
        """Return whether two trials are duplicates; settings read by trials of running brackets do not count yet."""
        return trial.settings == other.settings or (other.number <= self._passed and same_model(trial, other))

    def _end_bracket(self, bracket: Bracket) -> None:
        for trial in bracket.trials:
            is_twin = any(same_model(trial, other) for other in self.trials[: trial.number - 1])
            if trial.failed or is_twin:
                self.searcher.on_trial_complete(trial.name, error=True)
                continue
            last = trial.stopped or self.length
            for task in sorted(task for task in trial.scores if task <= last):
                self.searcher.on_trial_result(trial.name, self._told(trial, task))
            self.searcher.on_trial_complete(trial.name, self._told(trial, last))
        self._passed += len(bracket.trials)
        self.ended += 1

    def _told(self, trial: HalvingTrial, task: int) -> dict[str, Any]:
        return {"task": task, **dict(zip(self.search.metrics, trial.scores[task]))}

    # ------------------------------------------------------------------------------------------ results

    def report(self, trial: HalvingTrial, result: Mapping[str, Any], until: int) -> None:
        """Record a trial's report after a task or an epoch.

        Training may end before the last epoch (`evaluation.patience`, methods that train nothing): the final report
        then counts for all epochs without a report.
        """
        done, found = int(result.get(self.unit, 0)), [result.get(metric) for metric in self.search.metrics]
        values = tuple(float(value) for value in found if value is not None)
        is_last = done == self.length
        may_skip = is_last and self.unit == "epoch"
        if len(values) < len(found) or done < 1 or (done > until and not may_skip):
            return
        for unreported in range(1, done) if may_skip else ():
            trial.scores.setdefault(unreported, values)
        trial.record(done, values, result, is_last)
        self.journal.write(self.row, trial)

    def finished_tasks(self, trial: HalvingTrial) -> int:
        """Return the number of tasks that a trial has finished."""
        return int(self.length in trial.scores) if self.unit == "epoch" else max(trial.scores, default=0)

    def end(self, trial: HalvingTrial, until: int) -> None:
        """End a trial's segment; the trial failed if its process ended before it reached `until`."""
        trial.failed = until not in trial.scores
        for bracket in self.brackets:
            bracket.running.discard(trial.number)


def same_model(trial: HalvingTrial, other: HalvingTrial) -> bool:
    """Return whether a trial trains the same model as a complete one: all settings read by the latter are equal."""
    return bool(other.reads) and all(trial.settings.get(name) == other.settings.get(name) for name in other.reads)
