"""Ray Tune runs the trials of a sweep; one trial is one Ray Train run over the task sequence.

Every figure that decides something here comes from the commits and MLflow; Tune's own tables lose rows
when a sweep is restored. See `ray_train` for what happens inside a trial.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import platform
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.tune.integration.ray_train import TuneReportCallback

from orchestrator.config import ConfigError, Settings, suggest
from orchestrator.digests import source_digest
from orchestrator.leaks import redact
from orchestrator.ray_cluster import DRIVER_CPU, capacity, cluster, connect
from orchestrator.ray_search import (
    GAIN,
    Listed,
    SearchConfig,
    TaskHalving,
    count_trials,
    override_space,
    scheduler,
    search_algorithm,
)
from orchestrator.ray_train import TrialFailed, TrialPlan, fit, run_name
from orchestrator.tracking import Tracker

log = logging.getLogger(__name__)


def _trial(config: dict[str, Any], plan: TrialPlan) -> None:
    """Tune's trainable: the trial driver. Tune tries it twice; what cannot go better is not trained again."""
    from ray.experimental import internal_kv

    trial_id = tune.get_context().get_trial_id()
    verdict = f"ctvr-{plan.session}-{trial_id}".encode()
    known = internal_kv._internal_kv_get(verdict)
    if known:
        raise TrialFailed(known.decode(), is_final=True)
    run = config.get("run", {"settings": config, "presets": None})
    presets = None if run["presets"] is None else tuple(run["presets"])
    try:
        fit(dict(run["settings"]), plan, run_name(plan, config, trial_id), [TuneReportCallback()], presets)
    except TrialFailed as error:
        if error.is_final:
            internal_kv._internal_kv_put(verdict, error.reason.encode())
        raise


class Watcher(tune.Callback):
    """Prints a line for each finished task, and closes the MLflow runs of trials that did not end by themselves.

    Args:
        plan: of the trials.
        trials: how many there will be.
        num_tasks: of the stream.
        concurrent: trials at once.
    """

    def __init__(self, plan: TrialPlan, trials: int, num_tasks: int, concurrent: int) -> None:
        self.plan, self.trials, self.num_tasks, self.concurrent = plan, trials, num_tasks, concurrent
        self.numbers: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.ended: set[str] = set()
        self._begun: dict[str, float] = {}
        self._longest = 0.0  # seconds of a complete trial

    def get_state(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "seen": self.seen, "ended": sorted(self.ended)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.numbers, self.seen, self.ended = dict(state["numbers"]), dict(state["seen"]), set(state["ended"])

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._label(trial)
        self._begun.setdefault(trial.trial_id, time.monotonic())
        self.ended.discard(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        task = int(result.get("task", 0))
        if task <= self.seen.get(trial.trial_id, 0):  # reported again after a restart
            return
        self.seen[trial.trial_id] = task
        parts = [self._label(trial), f"task {task}/{self.num_tasks}"]
        parts.append(f"R@1 {result.get('stream/t2v/r1', math.nan):.2f}")
        if GAIN in result:
            parts.append(f"({result[GAIN]:+.2f} over zero-shot)")
        parts.append(f"BWF {result.get('stream/t2v/bwf', math.nan):.2f}")
        parts.append(f"{result.get('seconds', math.nan):.1f} s")
        _say("  ".join(parts))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        task = self.seen.get(trial.trial_id, 0)
        self.ended.add(trial.trial_id)
        if task < self.num_tasks:
            _say(f"{self._label(trial)}  stopped after task {task}: others do better")
            self._close(trial, "FINISHED", {"ctvr.stopped": f"asha after task {task}"})
        elif trial.trial_id in self._begun:
            self._longest = max(self._longest, time.monotonic() - self._begun[trial.trial_id])
            _say(f"{self._label(trial)}  complete after {duration(self._longest)}{self._outlook()}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended.add(trial.trial_id)
        reason = _reason(trial)
        _say(f"{self._label(trial)}  failed: {reason}")
        self._close(trial, "FAILED", {"ctvr.error": reason})

    def _label(self, trial: Any) -> str:
        number = self.numbers.setdefault(trial.trial_id, len(self.numbers) + 1)
        what = f" {trial.config['run']['label']}" if "run" in trial.config else ""
        return f"trial {number}/{self.trials}{what}"

    def _outlook(self) -> str:
        """The time that is left, if no further trial is stopped early."""
        left = self.trials - len(self.ended)
        if left <= 0:
            return ""
        return f"; {left} to go, at most {duration(math.ceil(left / self.concurrent) * self._longest)}"

    def _close(self, trial: Any, status: str, tags: dict[str, str]) -> None:
        name = run_name(self.plan, trial.config, trial.trial_id)
        tracker = Tracker(self.plan.tracking_uri, Path(self.plan.root))
        try:
            for run in tracker.find_runs(sweep=self.plan.sweep, tags={"ctvr.trial": name}):
                tracker.set_tags(run.run_id, tags)
                tracker.close(run.run_id, status)
        except Exception as error:  # a server that is away must not end the sweep
            log.warning("tracking: run %s stays open: %s", name, error)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _reason(trial: Any) -> str:
    """Why a trial failed, in one line; read where this process wrote it, which may be ahead of the storage."""
    try:
        error: Any = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except (OSError, TypeError, ValueError, AttributeError, ImportError, EOFError, cloudpickle.pickle.PickleError):
        return "no reason was recorded"
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, TrialFailed):
        return lines[0][:400] if lines else "no reason was recorded"
    return f"{type(error).__name__}: {redact(lines[0])[:300]}" if lines else type(error).__name__


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stderr.flush()


# ------------------------------------------------------------------------------------------------ running


@dataclass(frozen=True)
class Outcome:
    """How a set of trials ended."""

    trials: int
    complete: int
    stopped: int
    failed: int
    unfinished: int  # interrupted, or not even begun
    seconds: float

    @property
    def is_interrupted(self) -> bool:
        return self.unfinished > 0


def run_trials(
    plan: TrialPlan,
    num_tasks: int,
    search: SearchConfig | None = None,
    space: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    listed: Sequence[Settings] = (),
    max_concurrent: int | None = None,
    resume: bool = False,
    presets: Sequence[Sequence[str]] = (),
) -> Outcome:
    """Run a search, or a list of configurations, to its end. Ray is connected.

    Args:
        plan: what all trials share.
        num_tasks: of the stream.
        search, space, paper: for a search; `paper` is the first point tried.
        listed: settings of each trial, instead of a search.
        max_concurrent: upper limit of trials at once; computed from the cluster otherwise.
        resume: go on with what an interrupted search under the same `plan.sweep` left.
        presets: of each listed trial; `plan.presets` otherwise.

    Raises:
        ConfigError: if nothing fits the cluster.
    """
    room = capacity(plan, max_concurrent).concurrent
    started = time.monotonic()
    plan = replace(plan, session=secrets.token_hex(4), host=platform.node(), sources=source_digest())
    if search is not None and space:
        algorithm, param_space = search_algorithm(search, space, paper or {}, room)
        total, kind, name = count_trials(search, param_space), scheduler(search, num_tasks), "tune"
    else:
        runs = _listed_runs(plan, listed, presets)
        algorithm, param_space = Listed(max_concurrent=room), {"run": tune.grid_search(runs)}
        total, kind, name = len(runs), scheduler(SearchConfig(scheduler="none"), num_tasks), f"tune-{plan.session}"
    config = tune.TuneConfig(
        metric=search.metric if search else GAIN,
        mode=search.mode if search else "max",
        num_samples=search.trials if search is not None and search.searcher != "grid" else 1,
        search_alg=algorithm,
        scheduler=kind,
        trial_dirname_creator=_folder_name,
    )
    trainable = tune.with_resources(tune.with_parameters(_trial, plan=plan), {"CPU": DRIVER_CPU})
    watcher = Watcher(plan, total, num_tasks, room)
    if resume:
        tuner = _restored(plan, trainable, config, watcher)
    else:
        tuner = tune.Tuner(
            trainable,
            param_space=param_space,
            tune_config=config,
            run_config=tune.RunConfig(
                name=name,
                storage_path=plan.storage,
                callbacks=[watcher],
                failure_config=tune.FailureConfig(max_failures=1),
                verbose=0,
            ),
        )
    _keep_secrets()
    with _quiet_end():
        results = tuner.fit()
    return _outcome(results, total, num_tasks, time.monotonic() - started)


def _keep_secrets() -> None:
    """Stop Tune from handing AWS keys on in the runtime environment of trials: Ray writes it to logs and shows it.

    Processes of a cluster that was started here inherit the keys; the nodes of another one have their own.
    """
    from ray.tune.execution import class_cache

    class_cache.ENV_VARS_TO_PROPAGATE = {
        name for name in class_cache.ENV_VARS_TO_PROPAGATE if not name.startswith("AWS_")
    }


def _folder_name(trial: Any) -> str:
    return str(trial.trial_id)


def _listed_runs(plan: TrialPlan, listed: Sequence[Settings], presets: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    chosen: list[Any] = [*presets] if presets else [plan.presets] * len(listed)
    return [
        {"label": label_of({**plan.settings, **settings}), "settings": dict(settings), "presets": list(names)}
        for settings, names in zip(listed, chosen)
    ]


def label_of(settings: Mapping[str, Any]) -> str:
    """A listed run's name, the same whenever it is run."""
    from orchestrator.digests import digest_of

    return f"{settings.get('method')}-seed{settings.get('seed', 0)}-{digest_of(dict(settings))[:6]}"


def can_resume(plan: TrialPlan) -> bool:
    """Whether Tune has written down a state of the search to go on from."""
    from pyarrow import fs

    folder = f"{plan.storage.rstrip('/')}/tune"
    system, path = fs.FileSystem.from_uri(folder) if "://" in folder else (fs.LocalFileSystem(), folder)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return tune.Tuner.can_restore(folder) and any(Path(f.path).match("experiment_state-*.json") for f in found)


def _restored(plan: TrialPlan, trainable: Any, config: tune.TuneConfig, watcher: Watcher) -> tune.Tuner:
    """The tuner of an interrupted search, its trials and searcher as they were; the rest is this process's."""
    tuner = tune.Tuner.restore(
        f"{plan.storage.rstrip('/')}/tune", trainable=trainable, resume_unfinished=True, resume_errored=True
    )
    inner: Any = tuner._local_tuner
    inner._tune_config = config
    inner._run_config.callbacks = [watcher]
    if isinstance(config.scheduler, TaskHalving):
        config.scheduler.remember(_scores(plan, config.metric or GAIN))
    return tuner


def _scores(plan: TrialPlan, metric: str) -> dict[str, dict[int, float]]:
    """Trial id -> finished tasks -> metric, of a sweep as MLflow has it."""
    runs = Tracker(plan.tracking_uri, Path(plan.root)).find_runs(sweep=plan.sweep)
    return {
        run.tags.get("ctvr.trial", "").rpartition("-")[2]: dict(run.metrics[metric])
        for run in runs
        if metric in run.metrics
    }


@contextlib.contextmanager
def _quiet_end() -> Iterator[None]:
    """Tune lists unfinished trials as an error and keeps its own Ctrl-C handler; both end with the search."""

    def is_news(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Trials did not complete")

    logger = logging.getLogger("ray.tune.tune")
    logger.addFilter(is_news)
    try:
        handler = signal.getsignal(signal.SIGINT)
        yield
    finally:
        logger.removeFilter(is_news)
        with contextlib.suppress(ValueError):  # not the main thread: nothing was changed
            signal.signal(signal.SIGINT, handler)


def _outcome(results: Any, total: int, num_tasks: int, seconds: float) -> Outcome:
    complete = stopped = failed = 0
    for trial in results._experiment_analysis.trials:
        if trial.status == "ERROR":
            failed += 1
        elif trial.status == "TERMINATED" and int((trial.last_result or {}).get("task", 0)) >= num_tasks:
            complete += 1
        elif trial.status == "TERMINATED":
            stopped += 1
    return Outcome(total, complete, stopped, failed, max(0, total - complete - stopped - failed), seconds)


# ---------------------------------------------------------------------------------------------- the plan


def write_plan(plan: TrialPlan, folder: Path, **more: Any) -> None:
    """Keep what a resumed sweep needs to be the same sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "plan.json.tmp"
    temporary.write_text(json.dumps({"plan": asdict(plan), **more}, indent=1))
    temporary.replace(folder / "plan.json")


def read_plan(folder: Path, name: str) -> tuple[TrialPlan, dict[str, Any]]:
    """The plan that `write_plan` kept.

    Raises:
        ConfigError: if there is no sweep of that name, or its plan is of another version.
    """
    file = folder / "plan.json"
    if not file.is_file():
        known = sorted(path.parent.name for path in folder.parent.glob("*/plan.json"))
        raise ConfigError(
            f"sweep: none is called {name!r}.{suggest(name, known)} Known: {', '.join(known) or 'none yet'}."
        )
    try:
        kept = json.loads(file.read_text())
        plan = TrialPlan(**kept.pop("plan"))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"sweep {name}: {file} is no plan of this version ({error}). Start a new sweep.") from error
    return replace(plan, presets=tuple(plan.presets)), kept


__all__ = ["Outcome", "SearchConfig", "capacity", "cluster", "connect", "override_space", "run_trials"]
