"""Successive halving: suggestions, continuations and stops depend on results only.

Asynchronous halving depends on which trial reports first, so its winner depends on the load of the machine. Here the
number of a trial determines with which trials it is compared, and from which results it is proposed:

1. A rung is a number of tasks after which trials are compared. Of the `search.bracket_size` - 1 trials before trial k,
   those that reach the rung are its peers. Trial k waits until each of these trials has reached the rung, has ended
   or, with one objective, cannot change the result. It continues if it is among the best 1 / `reduction_factor` of
   its peers and itself; ties go to the earlier suggestion. pareto.py defines the order by several objectives. The
   first `bracket_size` trials (at most `search.lag`) are compared with each other.
2. Trial k is proposed from the results at the first rung of all trials up to k - `search.lag`. Results after further
   tasks are used for fewer of these trials (`count_known`). So the searcher also uses results of trials that still run.

Without `search.lag`, trials are proposed and compared in brackets of `bracket_size`. The trials of a bracket are
compared with each other, and at least `min_survivors` of them continue. Bracket b is proposed from the brackets up to
b - `brackets_at_once`, once they have ended.

A rung at which no trial would be stopped is skipped if its trials are all compared with each other. On a stream of one
task, trials are compared after epochs instead of tasks (`epochs`).

In a grouped search (GroupedSampler) the trials of a group share their first task: one of them trains it before the
others start, which then adopt it.

Points that train the same model are one trial. A suggestion is skipped and replaced if its settings equal the settings
of an earlier trial, or if it differs from a complete trial only in settings that this trial did not read (recorded by
prefix_reuse.py).

This module does not depend on Ray. A resumed sweep proposes the same trials again and skips those in its journal.
Source: Jamieson and Talwalkar, arXiv:1502.07943 (successive halving).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.on_ray.journal import HalvingTrial, Journal
from ctvr.orchestrator.on_ray.pareto import best_first, losses_of
from ctvr.orchestrator.on_ray.plan import SearchConfig, TrialPlan
from ctvr.orchestrator.on_ray.search_budget import count_known, rungs
from ctvr.orchestrator.on_ray.search_space import SearchSpace

MAX_REPEATED = 100  # duplicate suggestions in a row after which the space counts as exhausted


class SearcherProtocol(Protocol):
    """The methods of Ray Tune's searchers that a search needs."""

    def suggest(self, trial_id: str) -> Any: ...

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None: ...

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None: ...


@dataclass(frozen=True)
class Resolve:
    """Callable that completes a point to all settings that affect a trial's result. Plain data, which Ray pickles."""

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
        search: settings of the search.
        num_tasks: number of tasks of the stream.
        epochs: number of epochs of a trial if rungs are after epochs; 0 if they are after tasks.
        resolve: function from a point to all settings that affect the result.
        journal: known results of trials.
        row: name of this search in the journal.
        later: settings that no task before the second reads, if trials run in groups.
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
        self.stages = [*(self.rungs if search.lag else ()), self.length]  # tasks after which results are reported
        self.trials: list[HalvingTrial] = []
        self.repeated = 0  # number of duplicate suggestions
        self._open: list[HalvingTrial] = []  # trials that have not ended
        self._until: list[int] = []  # trial -> the task (next rung or last) to which it may run; at its end length + 1
        self._running: set[int] = set()  # numbers of the trials whose segments run or wait for resources
        self._groups: dict[str, list[HalvingTrial]] = {}  # settings of the first task -> trials that share them
        self._passed = [0] * len(self.stages)  # number of trials, from the first, reported up to each stage
        self._told: dict[int, float] = {}  # number of a trial -> last task that was passed to the searcher; inf: ended
        self._is_exhausted = False
        self._asked = 0

    @property
    def ended(self) -> int:
        """Return the largest n for which the trials 1 to n have ended."""
        return self._open[0].number - 1 if self._open else len(self.trials)

    # ------------------------------------------------------------------------------------------ scheduling

    def next_segments(self) -> list[tuple[HalvingTrial, int]]:
        """Return the trials that can run now, each with the task or epoch after which its segment ends, by number.

        A segment is returned once; the caller ends it with `end`. If no segment is returned or runs, the search is
        over.
        """
        while self._propose() or self._decide():
            pass
        due = [(trial, until) for trial in self._open if (until := self._segment(trial))]
        self._running.update(trial.number for trial, _ in due)
        return due

    def segments_ahead(self) -> int:
        """Return an upper bound of concurrent segments, including those of the trials that are proposed next."""
        waiting = sum(trial.number not in self._running for trial in self._open)
        fresh = sum(trial.number not in self._running and not trial.scores for trial in self._open)
        left = 0 if self._is_exhausted else self._most() - len(self.trials)
        first = self.stages[0]
        ending = sum(self._until[trial.number - 1] >= first for trial in self._open)
        batch = ending if self.search.lag else ending * self.search.bracket_size
        return int(len(self._running) + max(fresh, self.search.kept(waiting)) + min(batch, left))

    def _segment(self, trial: HalvingTrial) -> int:
        """Return the task after which a trial's next segment stops; 0 if it runs or waits for other trials."""
        until = self._until[trial.number - 1]
        if trial.number in self._running or until in trial.scores:
            return 0
        group = self._groups[self._first_task(trial)] if self.later else []
        if not group or any(1 in other.scores for other in group):
            return until
        alive = [other for other in group if other.is_alive]  # the first one trains the first task, which all adopt
        return 0 if alive[0] is not trial else 1 if len(alive) > 1 else until

    def _first_task(self, trial: HalvingTrial) -> str:
        return digest_of({name: value for name, value in trial.settings.items() if name not in self.later})

    def _decide(self) -> bool:
        """Continue or end the trials that are at a rung or at their end; return whether any were decided."""
        decided = [trial for trial in self._open if self._is_decided(trial)]
        for trial in decided:
            if trial.is_alive:
                self._until[trial.number - 1] = self._next_rung(trial)
        self._open = [trial for trial in self._open if trial.is_alive and self._until[trial.number - 1] <= self.length]
        return bool(decided)

    def _is_decided(self, trial: HalvingTrial) -> bool:
        """Return whether a trial has ended, passes its rung, or is stopped at it because too many trials are better."""
        until = self._until[trial.number - 1]
        if not until or not trial.is_alive or until not in trial.scores or until == self.length:
            return not until or not trial.is_alive or until in trial.scores
        peers = self._peers(trial)
        come = [peer for peer in peers if self._has_come(peer, until)]
        may_come = sum(self._has_come(peer, until) is None for peer in peers)
        is_bracket = self._is_bracket(trial.number)
        if may_come and (is_bracket or len(self.search.modes) > 1):
            return False
        order = best_first([losses_of(peer.scores[until], self.search.modes) for peer in come])
        better, most = order.index(come.index(trial)), len(come) + may_come  # `better` may grow by up to `may_come`
        kept = self.search.kept(most) if is_bracket else math.ceil(most / self.search.reduction_factor)
        if better >= kept:
            trial.stopped = until
        return better >= kept or better + may_come < kept

    def _has_come(self, trial: HalvingTrial, rung: int) -> bool | None:
        """Return whether a trial has reached a rung; None while it still may."""
        if rung in trial.scores and rung <= self._until[trial.number - 1]:
            return True
        return None if trial.is_alive else False

    def _next_rung(self, trial: HalvingTrial) -> int:
        """Return the task of the next rung, or `length` after the last rung, or `length` + 1 for a complete trial."""
        after = self._until[trial.number - 1]
        if after >= self.length:
            return self.length + 1
        if self._is_bracket(trial.number):
            alive = sum(peer.is_alive for peer in self._peers(trial))
            if self.search.kept(alive) >= alive:
                return self.length
        return next((rung for rung in self.rungs if rung > after), self.length)

    # ------------------------------------------------------------------------------------------ what counts for a trial

    def _peers(self, trial: HalvingTrial) -> list[HalvingTrial]:
        """Return the trials with which a trial is compared, including itself."""
        size, lag, number = self.search.bracket_size, self.search.lag, trial.number
        first = max(0, number - size) if lag else (number - 1) // size * size
        last = min(size, lag) if lag else first + size  # last trial of those that are compared with each other
        return self.trials[first : max(number, last)]

    def _is_bracket(self, number: int) -> bool:
        """Return whether the trials with which a trial is compared are all compared with each other."""
        return not self.search.lag or number <= min(self.search.bracket_size, self.search.lag)

    # ------------------------------------------------------------------------------------------ proposals

    def _propose(self) -> bool:
        """Propose the next trial if the results that it depends on are known; return whether it was proposed."""
        number = len(self.trials) + 1
        if self._is_exhausted or number > self._most():
            if not self._open:
                self._tell_all([len(self.trials)] * len(self.stages))
            return False
        known = [count_known(self.search, number, task - self.stages[0], self.length) for task in self.stages]
        for end, passed, task in zip(known, self._passed, self.stages):
            if not all(self._is_settled(trial, task) for trial in self.trials[passed:end]):
                return False
        self._tell_all(known)
        trial = self._new()
        self._is_exhausted = trial is None
        if trial is None:
            return False
        self.journal.read(self.row, trial, self.search.depends_on_timing)
        self.trials.append(trial)
        self._open.append(trial)
        self._until.append(0)
        if self.later:
            self._groups.setdefault(self._first_task(trial), []).append(trial)
        return True

    def _is_settled(self, trial: HalvingTrial, task: int) -> bool:
        return not trial.is_alive or (task in trial.scores and task < self._until[trial.number - 1])

    def _most(self) -> float:
        return math.inf if self.search.searcher == "grid" else self.search.trials

    def _new(self) -> HalvingTrial | None:
        """Return a trial for the next suggestion that is not a duplicate; None if the searcher has no further point."""
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
            self.searcher.on_trial_complete(name, error=True)  # so that the searcher ignores the duplicate
        return None

    def _repeats(self, trial: HalvingTrial, other: HalvingTrial) -> bool:
        """Return whether a trial repeats `other`: has equal settings or, once `other` ended, trains an equal model."""
        return trial.settings == other.settings or (other.number <= self._passed[-1] and same_model(trial, other))

    def _tell_all(self, known: list[int]) -> None:
        """Pass the results of stage i of the first `known[i]` trials to the searcher, stage by stage."""
        for stage, (end, task) in enumerate(zip(known, self.stages)):
            for trial in self.trials[self._passed[stage] : end]:
                self._tell(trial, task)
                self._passed[stage] = trial.number

    def _tell(self, trial: HalvingTrial, until: int) -> None:
        """Pass a trial's results up to task `until` to the searcher, and its end if it has ended by then.

        Later results are not passed, even if they are known already.
        """
        last = min(trial.stopped or until, until)
        is_failed, ends = last not in trial.scores, last in (trial.stopped, self.length)
        done = self._told.get(trial.number, 0)
        if done == math.inf:
            return
        self._told[trial.number] = math.inf if is_failed or ends else last
        if is_failed or (ends and self._is_twin(trial)):
            self.searcher.on_trial_complete(trial.name, error=True)
            return
        for task in sorted(task for task in trial.scores if done < task <= last):
            self.searcher.on_trial_result(trial.name, self._result(trial, task))
        if ends:
            self.searcher.on_trial_complete(trial.name, self._result(trial, last))

    def _is_twin(self, trial: HalvingTrial) -> bool:
        complete = self.trials[: min(trial.number - 1, self._passed[-1])]
        return any(same_model(trial, other) for other in complete)

    def _result(self, trial: HalvingTrial, task: int) -> dict[str, Any]:
        return {"task": task, **dict(zip(self.search.metrics, trial.scores[task]))}

    # ------------------------------------------------------------------------------------------ results

    def report(self, trial: HalvingTrial, result: Mapping[str, Any], until: int) -> None:
        """Record a trial's report after a task or an epoch; the trial's segment ends after `until`.

        Training may end before the last epoch, by `evaluation.patience` or with a method without training. The final
        report then counts for all epochs without a report.
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

    def end(self, trial: HalvingTrial, until: int, is_stopped: bool = False) -> None:
        """End a trial's segment; the trial has failed if its process ended before `until` without a stop.

        Args:
            trial: the trial.
            until: task or epoch after which the segment should end.
            is_stopped: whether a scheduler that depends on timing (schedulers.py) may have stopped the trial earlier.
        """
        if is_stopped and trial.scores and until not in trial.scores:
            trial.stopped = max(trial.scores)
            self.journal.write(self.row, trial)
        trial.failed = not trial.stopped and until not in trial.scores
        self._running.discard(trial.number)


def same_model(trial: HalvingTrial, other: HalvingTrial) -> bool:
    """Return whether a trial trains the model of a complete trial: all settings that `other` has read are equal."""
    return bool(other.reads) and all(trial.settings.get(name) == other.settings.get(name) for name in other.reads)
