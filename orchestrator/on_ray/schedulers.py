"""Adapter for schedulers of Ray Tune and of other packages, whose decisions depend on timing.

With such a scheduler, Ray Tune runs a trial as one Tune trial instead of segments. At each report (a task or an epoch),
the scheduler may stop or pause it.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from ray.tune.schedulers import (
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import SearchConfig, timing_schedulers

CHANGE_TRIALS = (PopulationBasedTraining, PopulationBasedTrainingReplay, ResourceChangingScheduler)


class TimingScheduler:
    """Wraps a scheduler of Ray Tune, and passes it each report of a trial once, except the last report.

    A trial that starts again reports its finished tasks again, which HyperBand refuses. A trial that Tune stops at its
    last report could not record its end.

    Args:
        search: settings of the search. The scheduler receives the settings for which it has a parameter, by Ray
            Tune's names: `metric`, `mode`, `time_attr`, `max_t`, `grace_period`, `reduction_factor`, `min_time_slice`,
            `stop_last_trials`.
        unit: "task" or "epoch".
        length: number of tasks, or epochs, of a trial.

    Raises:
        ConfigError: if the class is not a scheduler of Ray Tune, changes running trials, or cannot be instantiated.
    """

    metric = None  # if it were set, Tune would end the search at a report without the metric

    def __init__(self, search: SearchConfig, unit: str, length: int) -> None:
        point = timing_schedulers()[search.scheduler]
        self._name, self._unit, self._length = f"search.scheduler={point.name} ({point.value})", unit, length
        self._objective = search.metric
        self._reported: dict[str, int] = {}  # Tune's trial id -> last task
        self.error: ConfigError | None = None  # kept here, because Tune replaces errors of a scheduler by its own
        given = {"metric": search.metric, "mode": search.mode, "time_attr": unit, "max_t": length}
        given |= {"grace_period": search.grace_tasks, "reduction_factor": search.reduction_factor}
        given |= {"min_time_slice": length}  # MedianStoppingRule pauses a trial when it has run for this time
        given |= {"stop_last_trials": False}  # HyperBand's brackets end up to a reduction factor before `max_t`
        self._inner = self._call(lambda: _make(point.load(), given))
        if not isinstance(self._inner, TrialScheduler):
            raise ConfigError("is not a ray.tune.schedulers.TrialScheduler", self._name, remedy="See docs/search.md.")
        if isinstance(self._inner, CHANGE_TRIALS):
            raise ConfigError("changes the settings or resources of running trials", self._name, remedy="Use asha.")

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Accept Tune's settings; the scheduler already has the metric and its mode."""
        return True

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return the scheduler's decision on a report: `CONTINUE`, `PAUSE` or `STOP`."""
        done = int(result.get(self._unit, 0))
        is_known = done <= self._reported.get(trial.trial_id, 0) or self._objective not in result
        if is_known or done >= self._length:
            return TrialScheduler.CONTINUE
        self._reported[trial.trial_id] = done
        return str(self._call(lambda: self._inner.on_trial_result(tune_controller, trial, result)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return (lambda *words, **named: self._call(partial(found, *words, **named))) if callable(found) else found

    def _call(self, call: Any) -> Any:
        """Call code of the scheduler's package; convert its errors to a ConfigError, which ends the sweep."""
        try:
            return call()
        except Exception as error:
            self.error = ConfigError(f"{type(error).__name__}: {error}", f"{self._name} failed")
            raise self.error from error


def _make(make: Any, given: dict[str, Any]) -> Any:
    accepted = inspect.signature(make).parameters
    return make(**{name: value for name, value in given.items() if name in accepted})
