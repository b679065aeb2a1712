"""Ray Tune runs the trials of a sweep, a table or a rerun; one trial is one Ray Train run over the task sequence.

Every figure that decides something here comes from the commits and MLflow; Tune's own tables lose rows
when a sweep is restored. See `on_ray.trial` for what happens inside a trial.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import secrets
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

from orchestrator.config import Settings, suggest
from orchestrator.digests import source_digest
from orchestrator.errors import ConfigError, TrialFailed
from orchestrator.on_ray.connection import DRIVER_CPU, capacity, cluster, connect
from orchestrator.on_ray.search import (
    GAIN,
    Listed,
    RowSpace,
    SearchConfig,
    TaskHalving,
    count_trials,
    override_space,
    row_search,
    scheduler,
    search_algorithm,
)
from orchestrator.on_ray.trial import TrialPlan, below, fit, run_name
from orchestrator.on_ray.watch import Plans, Room, Watcher
from orchestrator.tracking.tracker import Tracker


def _trial(config: dict[str, Any], plans: Plans) -> None:
    """Tune's trainable: the trial driver. Tune tries it twice; what cannot go better is not trained again."""
    from ray.experimental import internal_kv

    plan = plans[config.get("row", "")]
    trial_id = tune.get_context().get_trial_id()
    verdict = f"ctvr-{plan.session}-{trial_id}".encode()
    known = internal_kv._internal_kv_get(verdict)
    if known:
        raise TrialFailed(known.decode(), is_final=True)
    name = run_name(plan, config, trial_id)
    settings, presets = config.get("settings", config), None
    if "run" in config:
        run = ListedRun(**config["run"])
        settings, presets = run.settings, run.presets
        plan = replace(plan, tags={**plan.tags, **run.tags})
    try:
        fit(dict(settings), plan, name, [TuneReportCallback()], presets)
    except TrialFailed as error:
        if error.is_final:
            internal_kv._internal_kv_put(verdict, error.reason.encode())
        raise


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
    tasks: int = 0  # finished by all trials together
    reused: int = 0  # of these, tasks that another trial had trained

    @property
    def executions(self) -> str:
        """How many tasks were really trained, as a person reads it."""
        return f"task executions: {self.tasks - self.reused} for {self.tasks} finished tasks ({self.reused} reused)"

    @property
    def is_interrupted(self) -> bool:
        return self.unfinished > 0


@dataclass(frozen=True)
class ListedRun:
    """One run of a list. `label` is the same whenever it is run: what is complete is known by it."""

    label: str
    settings: Settings
    presets: tuple[str, ...] | None = None  # none: the plan's
    tags: dict[str, str] = field(default_factory=dict)  # of its MLflow run, beside the plan's


@dataclass(frozen=True)
class RowPlan:
    """What the search of one row of a table is made of."""

    plan: TrialPlan
    space: RowSpace


def run_trials(
    plan: TrialPlan,
    num_tasks: int,
    search: SearchConfig | None = None,
    space: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    listed: Sequence[Settings | ListedRun] = (),
    max_concurrent: int | None = None,
    resume: bool = False,
    recommended: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run a search, or a list of configurations, to its end. Ray is connected.

    Args:
        plan: what all trials share.
        num_tasks: of the stream.
        search, space, paper, recommended: for a search; the two points are tried first.
        listed: the runs of a list, instead of a search.
        max_concurrent: upper limit of trials at once; computed from the cluster otherwise.
        resume: go on with what an interrupted search under the same `plan.sweep` left.

    Raises:
        ConfigError: if nothing fits the cluster.
    """
    room = capacity(plan, max_concurrent).concurrent
    plan = replace(plan, session=secrets.token_hex(4), host=platform.node(), sources=source_digest())
    if search is not None and space:
        algorithm, param_space = search_algorithm(search, space, paper or {}, room, recommended)
        total, name = count_trials(search, param_space), "tune"
        samples = total if search.searcher != "grid" else 1
    else:
        search = SearchConfig(scheduler="none")
        runs = [asdict(_as_listed(plan, run)) for run in listed]
        algorithm, param_space = Listed(max_concurrent=room), {"run": tune.grid_search(runs)}
        total, name, samples = len(runs), f"tune-{plan.session}", 1
    config = tune.TuneConfig(
        metric=search.metric,
        mode=search.mode,
        num_samples=samples,
        search_alg=algorithm,
        scheduler=scheduler(search, num_tasks),
        trial_dirname_creator=_folder_name,
    )
    watcher = Watcher(plan, total, num_tasks, room, Room(plan, algorithm, max_concurrent))
    trials, seconds = _fit({"": plan}, config, param_space, watcher, name, resume)
    return _outcome(trials, total, num_tasks, seconds, watcher.ended)


def run_rows(
    rows: Mapping[str, RowPlan],
    num_tasks: int,
    search: SearchConfig,
    max_concurrent: int | None = None,
    resume: bool = False,
) -> dict[str, Outcome]:
    """Search every row of a table, `search.trials` each, all of them sharing the connected cluster.

    Raises:
        ConfigError: if nothing fits the cluster, or for a grid.
    """
    session = secrets.token_hex(4)
    plans = {name: replace(row.plan, session=session) for name, row in rows.items()}
    plan = next(iter(plans.values()))  # as to resources all are alike
    room = capacity(plan, max_concurrent).concurrent
    algorithm = row_search(search, {name: row.space for name, row in rows.items()}, room)
    total = search.trials * len(rows)
    config = tune.TuneConfig(
        metric=search.metric,
        mode=search.mode,
        num_samples=total,
        search_alg=algorithm,
        scheduler=scheduler(search, num_tasks, list(rows)),
        trial_dirname_creator=_folder_name,
    )
    watcher = Watcher(plans, total, num_tasks, room, Room(plan, algorithm, max_concurrent))
    trials, seconds = _fit(plans, config, {}, watcher, "tune", resume)
    of = {name: [trial for trial in trials if trial.config.get("row") == name] for name in rows}
    return {name: _outcome(of[name], search.trials, num_tasks, seconds, watcher.ended) for name in rows}


def _fit(
    plans: Plans, config: tune.TuneConfig, param_space: dict[str, Any], watcher: Watcher, name: str, resume: bool
) -> tuple[list[Any], float]:
    """Hand everything to Tune; returns its trials and the seconds that it took."""
    started = time.monotonic()
    plan = next(iter(plans.values()))
    trainable = tune.with_resources(tune.with_parameters(_trial, plans=dict(plans)), {"CPU": DRIVER_CPU})
    if resume:
        tuner = _restored(plans, trainable, config, watcher)
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
    try:
        with _quiet_end():
            results: Any = tuner.fit()
    finally:
        if watcher.room:
            watcher.room.close()
    return list(results._experiment_analysis.trials), time.monotonic() - started


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


def _as_listed(plan: TrialPlan, run: Settings | ListedRun) -> ListedRun:
    if isinstance(run, ListedRun):
        return run
    return ListedRun(label_of({**plan.settings, **run}), dict(run), plan.presets)


def label_of(settings: Mapping[str, Any], name: str = "") -> str:
    """A listed run's name, the same whenever it is run; `name` stands for the method's."""
    from orchestrator.digests import digest_of

    return f"{name or settings.get('method')}-seed{settings.get('seed', 0)}-{digest_of(dict(settings))[:6]}"


def can_resume(plan: TrialPlan) -> bool:
    """Whether Tune has written down a state of the search to go on from."""
    from pyarrow import fs

    folder = below(plan.storage, "tune")
    system, path = fs.FileSystem.from_uri(folder) if "://" in folder else (fs.LocalFileSystem(), folder)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return tune.Tuner.can_restore(folder) and any(Path(f.path).match("experiment_state-*.json") for f in found)


def _restored(plans: Plans, trainable: Any, config: tune.TuneConfig, watcher: Watcher) -> tune.Tuner:
    """The tuner of an interrupted search, its trials and searcher as they were; the rest is this process's."""
    storage = next(iter(plans.values())).storage
    tuner = tune.Tuner.restore(below(storage, "tune"), trainable=trainable, resume_unfinished=True, resume_errored=True)
    inner: Any = tuner._local_tuner
    inner._tune_config = config
    inner._run_config.callbacks = [watcher]
    if isinstance(config.scheduler, TaskHalving):
        for row, plan in plans.items():
            config.scheduler.remember(_scores(plan, config.metric or GAIN), row)
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


def _outcome(trials: Sequence[Any], total: int, num_tasks: int, seconds: float, ended: Collection[str]) -> Outcome:
    """How trials ended.

    Args:
        ended: trials of whose end Tune told the watcher. Trials that Ctrl-C ends are TERMINATED too, but not told of.
    """
    complete = stopped = failed = tasks = reused = 0
    for trial in trials:
        last = trial.last_result or {}
        tasks, reused = tasks + int(last.get("task", 0)), reused + int(last.get("reused", 0))
        if trial.status == "ERROR":
            failed += 1
        elif trial.status == "TERMINATED" and int(last.get("task", 0)) >= num_tasks:
            complete += 1
        elif trial.status == "TERMINATED" and trial.trial_id in ended:
            stopped += 1
    unfinished = max(0, total - complete - stopped - failed)
    return Outcome(total, complete, stopped, failed, unfinished, seconds, tasks, reused)


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


__all__ = ["Outcome", "SearchConfig", "capacity", "cluster", "connect", "override_space", "run_rows", "run_trials"]
