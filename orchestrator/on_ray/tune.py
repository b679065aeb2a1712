"""Execution of sweeps, tables and reruns with Ray Tune; each trial is a pass over the task sequence.

Decisions use results from commits and MLflow only, because Tune's tables lose rows when a sweep is restored.
`on_ray.single_worker` runs trials with one worker, `on_ray.trial` runs trials with several workers.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter

from ctvr.methods import trusted
from ctvr.orchestrator.addresses import named_addresses
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.digests import source_digest
from ctvr.orchestrator.errors import TrialFailed
from ctvr.orchestrator.keys.foreign_code import digest_plugins
from ctvr.orchestrator.on_ray.callbacks import BracketMonitor, Plans, TrialMonitor, failures_of_process
from ctvr.orchestrator.on_ray.capacity import capacity, process_resources
from ctvr.orchestrator.on_ray.concurrency import ConcurrencyController
from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher
from ctvr.orchestrator.on_ray.internals import (
    dedupe_actor_deaths,
    keep_errors_in_memory,
    keep_processes,
    kv_get,
    kv_put,
    strip_credentials,
    trials_of,
)
from ctvr.orchestrator.on_ray.interruption import await_end, is_stopping
from ctvr.orchestrator.on_ray.journal import Journal
from ctvr.orchestrator.on_ray.plan import RunSpec, SearchConfig, SearchOutcome, TrialPlan, label_of, run_name
from ctvr.orchestrator.on_ray.schedulers import TimingScheduler
from ctvr.orchestrator.on_ray.search import make_searcher
from ctvr.orchestrator.on_ray.search_space import RowPlan, is_grouped
from ctvr.orchestrator.on_ray.single_worker import run_single_worker
from ctvr.orchestrator.on_ray.successive_halving import Resolve, SuccessiveHalving
from ctvr.orchestrator.on_ray.trial import run_distributed
from ctvr.orchestrator.on_ray.worker import TrialWork


def _trial(config: dict[str, Any], plans: Plans) -> None:
    """Run one trial as Tune's trainable. If Tune retries it after a permanent error, it fails again at once."""
    plan, run = plans[config.get("row", "")], RunSpec(**config["run"])
    verdict = f"ctvr-{plan.session}-{tune.get_context().get_trial_id()}"
    if known := kv_get(verdict):
        raise TrialFailed(known, is_permanent=True)
    plan = replace(plan, tags={**plan.tags, **run.tags})
    full = {**plan.settings, **run.settings, "workers": plan.workers}
    presets = plan.presets if run.presets is None else run.presets
    work = TrialWork(plan, full, presets, run_name(plan, config), run.stop_after_task, run.stop_after_epoch)
    if is_stopping(plan):
        await_end(plan, work.name)
    try:
        if plan.workers == 1:
            run_single_worker(work)
        else:
            run_distributed(work, [TuneReportCallback()])
    except TrialFailed as error:
        if error.is_permanent:
            kv_put(verdict, error.reason)
        raise


def run_specs(
    plan: TrialPlan, num_tasks: int, runs: Sequence[Settings | RunSpec], max_concurrent: int | None = None
) -> SearchOutcome:
    """Run a list of configurations to the end. Ray must be connected.

    Args:
        plan: shared by all runs.
        num_tasks: number of tasks of the stream.
        runs: for each run, settings in addition to the plan's settings, or a `RunSpec`.
        max_concurrent: limit of concurrent runs; computed from the cluster if None.

    Raises:
        ConfigError: if no run fits the cluster.
    """
    room = capacity(plan, max_concurrent).concurrent
    plan = _stamp_plan(plan)
    listed = [asdict(_to_spec(plan, run)) for run in runs]
    algorithm = BasicVariantGenerator(max_concurrent=room)
    # Without a metric, because nothing is searched, and runs on images do not report R@1
    config = tune.TuneConfig(num_samples=1, search_alg=algorithm, trial_dirname_creator=_folder_name)
    watcher = TrialMonitor(plan, len(listed), num_tasks, room, ConcurrencyController(plan, algorithm, max_concurrent))
    param_space = {"run": tune.grid_search(listed)}
    trials, seconds = _fit({"": plan}, config, param_space, watcher, f"tune-{plan.session}")
    return _count_outcomes(trials, len(listed), num_tasks, seconds)


def _stamp_plan(plan: TrialPlan, session: str = "") -> TrialPlan:
    """Return the plan with session, host and source digest of this process; trials compare their own digest with it."""
    session = session or secrets.token_hex(4)
    return replace(
        plan, session=session, host=platform.node(), sources=source_digest(), trusted=(*trusted(), *named_addresses())
    )


def run_rows(
    rows: Mapping[str, RowPlan], num_tasks: int, search: SearchConfig, max_concurrent: int | None = None
) -> dict[str, SearchOutcome]:
    """Search every row of a table with `search.trials` trials; all rows share the connected cluster.

    Unless `search.scheduler` depends on timing, the search depends on results only, so a resumed search proposes the
    same trials again.

    Args:
        rows: name of a row -> its plan and search space.
        num_tasks: number of tasks of the stream.
        search: settings of the search.
        max_concurrent: limit of concurrent trials; computed from the cluster if None.

    Raises:
        ConfigError: if no trial fits the cluster, for a grid over a range without listed values, or a searcher or
            scheduler of another package that fails.
    """
    session = secrets.token_hex(4)
    plans = {name: _stamp_plan(row.plan, session) for name, row in rows.items()}
    plan = next(iter(plans.values()))
    room = capacity(plan, max_concurrent).concurrent
    journal = Journal(journal_path(plan), plan.sources + digest_plugins())
    halving = {
        name: SuccessiveHalving(
            make_searcher(search, row.space, row.plan.epochs or num_tasks),
            search,
            num_tasks,
            Resolve(plans[name], row.space),
            journal,
            name,
            row.space.later if is_grouped(search, row.space) else (),
            row.plan.epochs,
        )
        for name, row in rows.items()
    }
    searcher = HalvingSearcher(halving, plans)
    algorithm = ConcurrencyLimiter(searcher, max_concurrent=room)
    watcher = BracketMonitor(
        plans, search.trials, num_tasks, room, ConcurrencyController(plan, algorithm, max_concurrent), searcher
    )
    searcher.listener = watcher
    first = next(iter(halving.values()))
    scheduler = TimingScheduler(search, first.unit, first.length) if search.depends_on_timing else None
    config = tune.TuneConfig(
        num_samples=-1,
        search_alg=algorithm,
        scheduler=scheduler,  # type: ignore[arg-type]
        trial_dirname_creator=_folder_name,
    )
    seconds = 0.0
    if searcher.schedule():  # a finished search does not start Tune
        _, seconds = _fit(plans, config, {}, watcher, f"tune-{plan.session}")
    watcher.records.finish()
    return {name: searcher.outcome(name, seconds) for name in rows}


def journal_path(plan: TrialPlan) -> Path:
    """Return the path of the journal, next to the plan on the driver's disk."""
    return Path(plan.root) / "sweeps" / Path(urlsplit(plan.storage).path).name / "journal.json"


def _fit(
    plans: Plans, config: tune.TuneConfig, param_space: dict[str, Any], watcher: TrialMonitor, name: str
) -> tuple[list[Any], float]:
    """Run Tune; return its trials and the duration in seconds."""
    started = time.monotonic()
    plan = next(iter(plans.values()))
    trainable = tune.with_resources(tune.with_parameters(_trial, plans=dict(plans)), process_resources(plan))
    config = replace(config, reuse_actors=plan.workers == 1)  # reuse saves slow imports, which drivers do not have
    tuner = tune.Tuner(
        trainable,
        param_space=param_space,
        tune_config=config,
        run_config=tune.RunConfig(
            name=name,
            storage_path=plan.storage,
            callbacks=[watcher],
            failure_config=tune.FailureConfig(max_failures=failures_of_process(plan)),
            verbose=0,
        ),
    )
    strip_credentials()
    dedupe_actor_deaths()
    keep_errors_in_memory()
    keep_processes(watcher.processes_ahead)
    try:
        with _restore_handlers():
            results = tuner.fit()
    except Exception:
        if error := getattr(config.scheduler, "error", None):
            raise error from None
        raise
    finally:
        if watcher.room:
            watcher.room.close()
        watcher.records.finish()
    if watcher.watch.stop.is_requested:  # even if every trial was complete before it could store its state
        raise KeyboardInterrupt
    return trials_of(results), time.monotonic() - started


def _folder_name(trial: Any) -> str:
    return str(trial.trial_id)


def _to_spec(plan: TrialPlan, run: Settings | RunSpec) -> RunSpec:
    if isinstance(run, RunSpec):
        return run
    return RunSpec(label_of({**plan.settings, **run}), dict(run), plan.presets)


def can_resume(plan: TrialPlan) -> bool:
    """Return whether a search of the plan has started, so that its journal exists."""
    return journal_path(plan).is_file()


@contextlib.contextmanager
def _restore_handlers() -> Iterator[None]:
    """Suppress Tune's error line about unfinished trials, and restore the signal handlers after the search."""

    def is_news(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Trials did not complete")

    logger = logging.getLogger("ray.tune.tune")
    logger.addFilter(is_news)
    try:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
        yield
    finally:
        logger.removeFilter(is_news)
        with contextlib.suppress(ValueError):  # not the main thread: the handler was not changed
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _count_outcomes(trials: Sequence[Any], total: int, num_tasks: int, seconds: float) -> SearchOutcome:
    """Count the outcomes of listed trials. A trial TERMINATED before its last task was ended by Ctrl-C."""
    complete = failed = tasks = reused = 0
    for trial in trials:
        last = trial.last_result or {}
        tasks, reused = tasks + int(last.get("task", 0)), reused + int(last.get("reused", 0))
        if trial.status == "ERROR":
            failed += 1
        elif trial.status == "TERMINATED" and int(last.get("task", 0)) >= num_tasks:
            complete += 1
    unfinished = max(0, total - complete - failed)
    return SearchOutcome(total, complete, 0, failed, unfinished, seconds, tasks, reused)
