"""Ray Tune searches a method's settings; one trial is one Ray Train run over the task sequence.

Every figure that decides something here comes from the commits and MLflow; Tune's own tables lose rows
when a sweep is restored. See `ray_train` for what happens inside a trial.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, Searcher
from ray.tune.search.sample import Categorical, Domain, Float, Integer

from orchestrator.config import ConfigError, Settings, suggest
from orchestrator.ray_train import TrialPlan, fit, worker_environment
from orchestrator.tracking import Tracker

log = logging.getLogger(__name__)

DRIVER_CPU = 0.1  # a trial driver only waits for its workers
GAIN = "stream/t2v/r1_gain"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # no banners of Tune; our own lines say more
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # what Tune would write is in MLflow
    "RAY_worker_maximum_startup_concurrency": "8",  # a trial is eight processes that start at once
}


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How settings are searched (`search.*` on the command line)."""

    trials: int = 8
    searcher: str = "tpe"  # tpe (Optuna), random, grid
    scheduler: str = "asha"  # asha, none
    grace_tasks: int = 1  # asha: tasks that every trial may finish
    reduction: int = 2  # asha: 1 / reduction of the trials pass a rung
    seed: int = 0  # of the searcher
    metric: str = GAIN
    mode: str = "max"

    def __post_init__(self) -> None:
        for name, known in (
            ("searcher", ("tpe", "random", "grid")),
            ("scheduler", ("asha", "none")),
            ("mode", ("max", "min")),
        ):
            if getattr(self, name) not in known:
                hint = suggest(getattr(self, name), known)
                raise ValueError(f"{name}: {getattr(self, name)!r} is none of {', '.join(known)}.{hint}")
        if self.trials < 1 or self.grace_tasks < 1 or self.reduction < 2:
            raise ValueError("trials and grace_tasks must be >= 1, reduction >= 2.")


@dataclass(frozen=True)
class Capacity:
    """What a cluster has, and how many trials of a plan fit at once."""

    cpus: float
    gpus: float
    concurrent: int


# ---------------------------------------------------------------------------------------------- cluster


def connect(address: str | None = None, local_cpus: int | None = None) -> None:
    """Join a Ray cluster or start one on this machine.

    Args:
        address: `auto` or an address joins; `local` starts; None joins the cluster that this machine is
            part of and starts one otherwise.
        local_cpus: logical CPUs of a cluster started here.

    Raises:
        ConfigError: if there is no cluster at the address.
    """
    if ray.is_initialized():
        return
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    environment = worker_environment()
    os.environ.update(environment)
    wanted = address or os.environ.get("RAY_ADDRESS") or ("auto" if _is_cluster_node() else "local")
    if wanted != "local":
        try:
            ray.init(address=wanted, runtime_env={"env_vars": environment}, **quiet)
            return
        except ConnectionError as error:
            if address or os.environ.get("RAY_ADDRESS"):
                raise ConfigError(
                    f"address: no Ray cluster answers at {wanted!r}. Start one or leave it out."
                ) from error
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # everything is bound to this machine's loopback
    port = _free_port()
    environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{port}"
    os.environ.update(environment)
    ray.init(
        address="local",
        num_cpus=local_cpus,
        include_dashboard=True,  # Ray Train frees the workers of stopped trials through it (or never)
        dashboard_host="127.0.0.1",
        dashboard_port=port,
        object_store_memory=200 * 2**20,
        runtime_env={"env_vars": environment},
        **quiet,
    )
    _await_dashboard(port)


def _is_cluster_node() -> bool:
    return Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster").is_file()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_dashboard(port: int, seconds: float = 60) -> None:
    """Wait until the State API answers: without it, every stopped trial leaks its workers' resources."""
    url = f"http://127.0.0.1:{port}/api/version"
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise ConfigError(
        f"Ray's dashboard does not answer on port {port} after {seconds:.0f} s; a sweep would hang without it. "
        "Is ray[default] installed?"
    )


def await_nodes(count: int, seconds: float = 900) -> None:
    """Wait until the cluster has `count` nodes; `ray up` returns before its workers have joined.

    Raises:
        ConfigError: after `seconds`, with the number of nodes that came.
    """
    until = time.monotonic() + seconds
    while True:
        alive = sum(1 for node in ray.nodes() if node["Alive"])
        if alive >= count:
            return
        if time.monotonic() > until:
            raise ConfigError(
                f"nodes: {alive} of {count} joined within {seconds:.0f} s. Look at `ray status`, or lower --nodes."
            )
        time.sleep(2)


def capacity(plan: TrialPlan, max_concurrent: int | None = None) -> Capacity:
    """How many trials fit the cluster at once; drivers and workers are counted together, or they deadlock.

    Raises:
        ConfigError: if not even one trial can ever be scheduled.
    """
    have = ray.cluster_resources()
    cpus, gpus = have.get("CPU", 0.0), have.get("GPU", 0.0)
    concurrent = fit_count(plan, cpus, gpus, [n.get("Resources", {}) for n in ray.nodes() if n.get("Alive")])
    if max_concurrent is not None:
        concurrent = min(concurrent, max_concurrent)
    return Capacity(cpus, gpus, concurrent)


def fit_count(plan: TrialPlan, cpus: float, gpus: float, nodes: Sequence[Mapping[str, float]] = ()) -> int:
    """Trials that fit at once.

    Raises:
        ConfigError: if none does; the message says what is missing.
    """
    need = plan.workers * plan.cpus_per_worker + DRIVER_CPU
    if cpus < need:
        raise ConfigError(
            f"a trial needs {need:.1f} CPUs ({plan.workers} workers x {plan.cpus_per_worker} + {DRIVER_CPU}), the "
            f"cluster has {cpus:.1f}. Lower --workers or --cpus-per-worker."
        )
    fits = math.floor(cpus / need + 1e-9)
    if plan.gpus_per_worker:
        wanted = plan.workers * plan.gpus_per_worker
        if gpus < wanted:
            raise ConfigError(
                f"a trial needs {wanted:g} GPUs, the cluster has {gpus:g}. Lower --gpus-per-trial or --workers."
            )
        fits = min(fits, math.floor(gpus / wanted + 1e-9))
    if nodes:
        slots = sum(_slots(plan, node) for node in nodes)
        if slots < plan.workers:
            raise ConfigError(
                f"no node can hold a worker of {plan.cpus_per_worker:g} CPUs and {plan.gpus_per_worker:g} GPUs often "
                f"enough ({slots} places for {plan.workers} workers). Lower --cpus-per-worker or --gpus-per-trial."
            )
    return max(1, fits)


def _slots(plan: TrialPlan, node: Mapping[str, float]) -> int:
    slots = math.floor(node.get("CPU", 0.0) / plan.cpus_per_worker + 1e-9) if plan.cpus_per_worker else 10**6
    if plan.gpus_per_worker:
        slots = min(slots, math.floor(node.get("GPU", 0.0) / plan.gpus_per_worker + 1e-9))
    return slots


# ---------------------------------------------------------------------------------------------- search


def search_algorithm(
    search: SearchConfig, space: Mapping[str, Any], paper: Mapping[str, Any]
) -> tuple[Searcher | BasicVariantGenerator, dict[str, Any]]:
    """The searcher and the parameter space it wants. The paper's own point is always tried first.

    Raises:
        ConfigError: if a grid is asked for over a range that has no listed values.
    """
    point = {name: value for name, value in paper.items() if name in space}
    complete = [point] if set(point) == set(space) else []
    if search.searcher == "grid":
        return BasicVariantGenerator(random_state=search.seed), {
            name: tune.grid_search(grid_values(name, domain, paper.get(name))) for name, domain in space.items()
        }
    if search.searcher == "random":
        return BasicVariantGenerator(points_to_evaluate=complete or None, random_state=search.seed), dict(space)
    from optuna.samplers import TPESampler
    from ray.tune.search.optuna import OptunaSearch

    sampler = TPESampler(seed=search.seed, n_startup_trials=max(3, search.trials // 3), constant_liar=True)
    return (
        OptunaSearch(
            space=dict(space),
            metric=search.metric,
            mode=search.mode,
            points_to_evaluate=complete or None,
            sampler=sampler,
        ),
        {},
    )


def grid_values(name: str, domain: Any, paper: Any) -> list[Any]:
    """Values of a grid: all of a choice; ends, the paper's value and a middle of a range."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, (Float, Integer)):
        low, high = domain.lower, domain.upper - (1 if isinstance(domain, Integer) else 0)
        is_log = "log" in type(domain.get_sampler()).__name__.lower()
        middle = paper if paper is not None else (math.sqrt(low * high) if is_log else (low + high) / 2)
        return sorted({type(low)(value) for value in (low, middle, high)})
    raise ConfigError(f"{name}: a grid needs listed values. Write --space {name}=VALUE,VALUE.")


def override_space(space: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A space with `name=v1,v2` choices put in place of its ranges (`--space`); one value fixes a setting.

    Raises:
        ConfigError: if a word has no `=` or no value.
    """
    changed = dict(space)
    for word in words:
        name, equals, values = word.partition("=")
        listed = [_plain(value.strip()) for value in values.split(",") if value.strip()]
        if not equals or not listed:
            raise ConfigError(f"--space {word!r}: write name=VALUE,VALUE, for example method.beta=0.4,0.6.")
        changed[name.strip()] = tune.choice(listed)
    return changed


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def scheduler(search: SearchConfig, num_tasks: int) -> TrialScheduler:
    """ASHA with finished tasks as its time. max_t is one more, or the last report would kill the trial."""
    if search.scheduler == "none":
        return FIFOScheduler()
    return ASHAScheduler(
        time_attr="task",
        max_t=num_tasks + 1,
        grace_period=min(search.grace_tasks, num_tasks),
        reduction_factor=search.reduction,
    )


# ---------------------------------------------------------------------------------------------- running


def _trial(config: dict[str, Any], plan: TrialPlan) -> None:
    """Tune's trainable: the trial driver."""
    context = tune.get_context()
    settings = dict(config.get("settings") or config)
    name = f"{settings.get('method', plan.settings.get('method'))}-{context.get_trial_id()}"
    fit(settings, plan, f"{plan.sweep}-{name}", [TuneReportCallback()])


class _Watcher(tune.Callback):
    """Prints one line for each finished task and closes the MLflow runs of trials that were stopped."""

    def __init__(self, plan: TrialPlan, trials: int, num_tasks: int) -> None:
        self.plan, self.trials, self.num_tasks = plan, trials, num_tasks
        self.numbers: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.started = time.monotonic()
        self.first_trial: float | None = None

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        number = self.numbers.setdefault(trial.trial_id, len(self.numbers) + 1)
        task = int(result.get("task", 0))
        if task <= self.seen.get(trial.trial_id, 0):
            return
        self.seen[trial.trial_id] = task
        parts = [f"trial {number}/{self.trials}", f"task {task}/{self.num_tasks}"]
        parts.append(f"R@1 {result.get('stream/t2v/r1', math.nan):.2f}")
        if GAIN in result:
            parts.append(f"({result[GAIN]:+.2f} over zero-shot)")
        parts.append(f"BWF {result.get('stream/t2v/bwf', math.nan):.2f}")
        parts.append(f"{result.get('seconds', math.nan):.1f} s")
        _say("  ".join(parts))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        task = self.seen.get(trial.trial_id, 0)
        if task < self.num_tasks:
            number = self.numbers.get(trial.trial_id, "?")
            _say(f"trial {number}/{self.trials}  stopped after task {task}: others do better")
            self._close(trial, "FINISHED", {"ctvr.stopped": f"asha after task {task}"})
        elif self.first_trial is None:
            self.first_trial = time.monotonic() - self.started
            left = self.trials - sum(1 for t in trials if t.is_finished())
            _say(f"first complete trial after {self.first_trial:.0f} s; at most {left} more to go")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        _say(f"trial {self.numbers.get(trial.trial_id, '?')}/{self.trials}  failed: {_reason(trial)}")
        self._close(trial, "FAILED", {"ctvr.error": _reason(trial)})

    def _close(self, trial: Any, status: str, tags: dict[str, str]) -> None:
        tracker = Tracker(self.plan.tracking_uri, Path(self.plan.root))
        for run in tracker.find_runs(sweep=self.plan.sweep):
            if run.tags.get("ctvr.trial", "").endswith(trial.trial_id):
                tracker.set_tags(run.run_id, tags)
                tracker.close(run.run_id, status)


def _reason(trial: Any) -> str:
    """The last line of a trial's error, which is ours where the mistake is the user's."""
    try:
        text = Path(trial.error_file).read_text() if trial.error_file else ""
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if "Error" in line or "Diverged" in line:
            return line[:300]
    return lines[-1][:300] if lines else "no reason was recorded"


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class Outcome:
    """How a set of trials ended."""

    trials: int
    complete: int
    stopped: int
    failed: int
    unfinished: int
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
) -> Outcome:
    """Run a search, or a list of configurations, to its end.

    Args:
        plan: what all trials share.
        num_tasks: of the stream.
        search, space, paper: for a search; `paper` is the first point tried.
        listed: settings of each trial, instead of a search.
        max_concurrent: upper limit of trials at once; computed from the cluster otherwise.
        resume: go on with what an interrupted call under the same `plan.sweep` left.

    Raises:
        ConfigError: if nothing fits the cluster, or there is nothing to resume.
    """
    room = capacity(plan, max_concurrent)
    folder = Path(plan.storage) / "tune"
    started = time.monotonic()
    if search is not None and space:
        algorithm, param_space = search_algorithm(search, space, paper or {})
        total = (
            math.prod(len(v["grid_search"]) for v in param_space.values())
            if search.searcher == "grid"
            else search.trials
        )
        samples = 1 if search.searcher == "grid" else search.trials
        kind = scheduler(search, num_tasks)
        metric, mode = search.metric, search.mode
    else:
        algorithm, samples, kind, metric, mode = BasicVariantGenerator(), 1, FIFOScheduler(), GAIN, "max"
        param_space = {"settings": tune.grid_search(list(listed))}
        total = len(listed)
    trainable = tune.with_resources(tune.with_parameters(_trial, plan=plan), {"CPU": DRIVER_CPU})
    watcher = _Watcher(plan, total, num_tasks)
    if resume:
        if not tune.Tuner.can_restore(str(folder)):
            raise ConfigError(f"--resume {plan.sweep}: nothing to resume in {folder}. Start it without --resume.")
        tuner = tune.Tuner.restore(str(folder), trainable=trainable, resume_unfinished=True, resume_errored=True)
    else:
        tuner = tune.Tuner(
            trainable,
            param_space=param_space,
            tune_config=tune.TuneConfig(
                metric=metric,
                mode=mode,
                num_samples=samples,
                search_alg=algorithm,
                scheduler=kind,
                max_concurrent_trials=room.concurrent if not isinstance(algorithm, BasicVariantGenerator) else None,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=plan.storage,
                callbacks=[watcher],
                failure_config=tune.FailureConfig(max_failures=1),
                verbose=0,
            ),
        )
    if isinstance(algorithm, BasicVariantGenerator):
        algorithm.max_concurrent = room.concurrent
    results = tuner.fit()
    return _outcome(results, num_tasks, time.monotonic() - started)


def _outcome(results: Any, num_tasks: int, seconds: float) -> Outcome:
    complete = stopped = failed = unfinished = 0
    for trial in results._experiment_analysis.trials:
        if trial.status == "ERROR":
            failed += 1
        elif trial.status != "TERMINATED":
            unfinished += 1
        elif int((trial.last_result or {}).get("task", 0)) >= num_tasks:
            complete += 1
        else:
            stopped += 1
    return Outcome(complete + stopped + failed + unfinished, complete, stopped, failed, unfinished, seconds)


def write_plan(plan: TrialPlan, folder: Path, **more: Any) -> None:
    """Keep what a resumed sweep needs to be the same sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "plan.json.tmp"
    temporary.write_text(json.dumps({"plan": asdict(plan), **more}, indent=1))
    temporary.replace(folder / "plan.json")


def read_plan(folder: Path, name: str) -> tuple[TrialPlan, dict[str, Any]]:
    """The plan that `write_plan` kept.

    Raises:
        ConfigError: if there is no sweep of that name.
    """
    file = folder / "plan.json"
    if not file.is_file():
        known = sorted(path.parent.name for path in folder.parent.glob("*/plan.json"))
        raise ConfigError(
            f"sweep: none is called {name!r}.{suggest(name, known)} Known: {', '.join(known) or 'none yet'}."
        )
    kept = json.loads(file.read_text())
    plan = TrialPlan(**kept.pop("plan"))
    return replace(plan, presets=tuple(plan.presets)), kept


__all__ = ["Capacity", "Domain", "Outcome", "SearchConfig", "connect", "run_trials"]
