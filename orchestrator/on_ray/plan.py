"""Plans of sweeps and trials as plain data; Ray is not needed to write or read them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from ctvr.methods.plug_ins import installed
from ctvr.methods.settings import SettingError, setting
from ctvr.orchestrator.config import Settings, build, suggest
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan_places import OPTIONS, own_places, writer_of
from ctvr.orchestrator.on_ray.plan_types import check_types, naming_plan, wrong_value
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.redaction import redact_data
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.metric_names import ACCURACY, GAIN, MEAN, SEARCHED

if TYPE_CHECKING:
    from ctvr.orchestrator.store.paths import RunPaths

__all__ = ["ACCURACY", "GAIN", "MEAN", "SEARCHED"]  # for type checkers only

TIMING = "ctvr.timing"  # tag of a trial's run: the scheduler, if it depends on timing
NUMBER = "ctvr.number"  # tag of a trial's run; among equally good trials the lowest number wins
SEARCHERS = ("tpe", "random", "grid", "grouped_tpe")
SCHEDULERS = ("halving", "none")  # their decisions depend on results only
TUNE_SCHEDULERS = {  # classes of ray.tune.schedulers
    "asha": "ASHAScheduler",
    "hyperband": "HyperBandScheduler",
    "median_stopping": "MedianStoppingRule",
    "bohb": "HyperBandForBOHB",
}
GROUPED_FROM = 16  # trials from which a search is grouped by default: two brackets


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Settings of a search (`search.*` on the command line)."""

    trials: int = setting(8, doc="number of trials of the search")
    searcher: str = setting(
        "auto",
        doc="searcher: tpe (Optuna), grouped_tpe (TPE in groups of trials that share their first task), random, "
        "grid, or the name of an installed package's searcher. auto: chosen by the number of trials",
    )
    scheduler: str = setting(
        "halving",
        doc="scheduler. halving: successive halving; none: no trial is stopped; asha, hyperband, median_stopping, "
        "bohb: those of Ray Tune, which depend on timing; or the name of an installed package's scheduler",
    )
    bracket_size: int = setting(
        8, doc="number of trials that are compared at a rung: a bracket or, with `lag`, a trial and those before it"
    )
    brackets_at_once: int = setting(
        0,
        doc="number of brackets that run at the same time; each is proposed from brackets that ended before. 0: "
        "chosen (to fill the cluster, or a `lag` instead) when a sweep starts, and recorded in its plan",
    )
    lag: int = setting(
        0,
        doc="lag of a search without brackets: trial k is proposed from the results of trials 1 to k - lag, and "
        "compared with those before it. A larger lag is faster, but more trials are random. 0: chosen when a "
        "sweep starts, unless brackets_at_once is set, and recorded in its plan",
    )
    group_size: int = setting(4, doc="number of trials with equal settings of the first task, with grouped_tpe")
    min_survivors: int = setting(
        2, doc="minimum number of trials of a bracket (with `lag`: of the first trials) that continue after a rung"
    )
    grace_tasks: int = setting(
        1, doc="number of tasks (of epochs on a stream of one task) that every trial finishes before it can be stopped"
    )
    reduction_factor: int = setting(2, doc="factor by which each rung divides the number of trials")
    confirm: int = setting(
        2,
        doc="number of best trials that are trained again and compared with the recommended settings on validation "
        "videos; 0: none. With several objectives, number of trials of the Pareto front (default: 8)",
    )
    confirm_seeds: int = setting(3, doc="number of new seeds of each trial that is confirmed")
    seed: int = setting(0, doc="seed of the searcher")
    metric: str = setting(
        GAIN,
        doc="metric that ranks trials; a method's search space may have another default. Several metrics, "
        "comma-separated, are the objectives of a search for a Pareto front",
    )
    mode: str = setting("max", doc="better direction of the metric, max or min; comma-separated for several metrics")

    def __post_init__(self) -> None:
        if self.searcher == "auto":  # replaced here, so that records show the chosen searcher
            is_grouped = self.trials >= GROUPED_FROM and not self.depends_on_timing
            object.__setattr__(self, "searcher", "grouped_tpe" if is_grouped else "tpe")
        for name, ours, others in (
            ("searcher", SEARCHERS, partial(installed, "searchers")),
            ("scheduler", SCHEDULERS, timing_schedulers),
        ):
            known = ours if getattr(self, name) in ours else (*ours, *others())
            if getattr(self, name) not in known:
                hint = suggest(getattr(self, name), known).strip()
                raise SettingError(f"<{name}>: {getattr(self, name)!r} is none of {', '.join(known)}", hint)
        self._check_objectives()
        if self.searcher == "grouped_tpe" and self.group_size < 2:
            raise SettingError(
                f"<searcher>=grouped_tpe needs groups of at least 2 trials, got <group_size>={self.group_size}",
                write="<searcher>=tpe",
            )
        if self.depends_on_timing and self.searcher == "grouped_tpe":
            raise SettingError(
                f"<scheduler>={self.scheduler} cannot stop the trials of <searcher>=grouped_tpe", write="<searcher>=tpe"
            )
        if self.depends_on_timing and len(self.metrics) > 1:
            raise SettingError(
                f"<scheduler>={self.scheduler} compares trials by one <metric>, got {self.metric}",
                write="<scheduler>=halving",
            )
        if self.lag and self.brackets_at_once:
            raise SettingError(
                f"<lag>={self.lag} and <brackets_at_once>={self.brackets_at_once} exclude each other",
                "Use one of them.",
            )
        for name, least, remedy in (
            ("trials", 1, "Use --trials 8, or train without a search: ctvr run METHOD STREAM"),
            ("brackets_at_once", 0, "Use 0 to fill the cluster"),
            ("lag", 0, "Use 0 to fit it to the cluster"),
            ("grace_tasks", 1, "Use search.grace_tasks=1"),
            ("bracket_size", 1, "Use search.bracket_size=8"),
            ("min_survivors", 1, "Use search.min_survivors=2"),
            ("reduction_factor", 2, "Use search.reduction_factor=2"),
            ("confirm", 0, "Use --confirm 0 to skip the confirmation"),
            ("confirm_seeds", 2, "Use search.confirm_seeds=3"),
        ):
            if getattr(self, name) < least:
                raise SettingError(f"<{name}> must be >= {least}, got {getattr(self, name)}", f"{remedy}.")

    def _check_objectives(self) -> None:
        for mode in self.modes:
            if mode not in ("max", "min"):
                raise ValueError(f"mode: {mode!r} is none of max, min.{suggest(mode, ('max', 'min'))}")
        if len(self.modes) != len(self.metrics):
            raise ValueError(
                f"mode: {len(self.metrics)} metrics need one direction each, got {self.mode}. Use for example "
                "search.mode=max,min."
            )
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"metric: {self.metric} names a metric twice. Use each once.")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that are the objectives, one or several."""
        return names_of(self.metric)

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the better direction of each objective."""
        return names_of(self.mode)

    @property
    def depends_on_timing(self) -> bool:
        """Return whether trials are stopped by a scheduler whose decisions depend on the order of reports."""
        return self.scheduler not in SCHEDULERS

    def kept(self, number: int) -> int:
        """Return how many of `number` trials continue after a rung."""
        return max(math.ceil(number / self.reduction_factor), min(number, self.min_survivors))


def names_of(text: str) -> tuple[str, ...]:
    """Split comma-separated names, such as the names of objectives."""
    return tuple(name.strip() for name in text.split(","))


def timing_schedulers() -> dict[str, EntryPoint]:
    """Return the schedulers that depend on timing: classes of Ray Tune, and plug-ins."""
    of_tune = {
        name: EntryPoint(name, f"ray.tune.schedulers:{cls}", "ctvr.schedulers") for name, cls in TUNE_SCHEDULERS.items()
    }
    return installed("schedulers", SCHEDULERS) | of_tune


@dataclass(frozen=True)
class TrialPlan:
    """Everything that a trial needs in addition to its own settings. Plain data, which Ray pickles."""

    sweep: str  # name of the sweep
    root: str  # the runs folder; every node uses this path
    store: str  # URI of the store
    tracking_uri: str  # of MLflow
    parent: str | None  # MLflow run id of the sweep
    storage: str  # folder or URI of Ray's state of the trials
    settings: Settings = field(default_factory=dict)  # settings of all trials, as the user gave them
    presets: tuple[str, ...] = ()
    videos: str | None = None
    workers: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    accelerator_type: str = ""  # GPU model that every worker needs, by Ray's name; "": any
    memory_per_worker: int = 0  # estimated bytes (memory.py); 0: unknown
    epochs: int = 0  # epochs of a trial if a search compares trials after epochs; 0: after tasks
    max_failures: int = 3  # allowed failures since the last finished task, without lost nodes
    max_nodes: int | None = None  # maximum number of all nodes of the cluster
    patience: float = 24.0  # maximum hours that workers wait for one worker, or that a trial makes no progress
    keep_model: bool = False  # whether the trained model is logged to MLflow
    reuse: bool = True  # adopt tasks that another trial has finished where the results cannot differ
    tags: dict[str, str] = field(default_factory=dict)
    session: str = ""  # id of the process that drives the trials; a resumed sweep has a new id
    host: str = ""  # host of that process
    sources: str = ""  # `digests.source_digest` on that host
    trusted: tuple[str, ...] = ()  # classes and addresses that the driver's user trusts; not read from a plan.json

    def places(self) -> RunPaths:
        from ctvr.orchestrator.store.paths import RunPaths

        return RunPaths(Path(self.root), self.store, Path(self.videos) if self.videos else None)


@dataclass(frozen=True)
class RunSpec:
    """One run in a list. `label` is the same in each execution of the list, so that complete runs are recognized."""

    label: str
    settings: Settings
    presets: tuple[str, ...] | None = None  # None: the plan's presets
    tags: dict[str, str] = field(default_factory=dict)  # tags of its MLflow run, in addition to the plan's tags
    stop_after_task: int | None = None  # number of tasks after which it ends; a later run may continue it
    stop_after_epoch: int | None = None  # number of epochs after which it ends, on a stream of one task


@dataclass(frozen=True)
class SearchOutcome:
    """Outcome of a search: numbers of trials by state, its duration, and the tasks of its trials."""

    trials: int
    complete: int
    stopped: int
    failed: int
    unfinished: int  # interrupted, or not started
    seconds: float
    tasks: int = 0  # tasks finished by all trials together
    reused: int = 0  # number of these tasks that another trial trained

    @property
    def executions(self) -> str:
        """Return a text on the tasks that were reused from other trials."""
        share = f" ({self.reused / self.tasks:.0%})" if self.tasks else ""
        return f"reused {self.reused} of {self.tasks} task executions{share}"

    @property
    def is_interrupted(self) -> bool:
        return self.unfinished > 0


@dataclass(frozen=True)
class Capacity:
    """Resources of a cluster, and the number of trials of a plan that fit at once.

    `by_processors`: number of trials that fit the CPUs and GPUs; 0 if the user gave a limit of trials.
    """

    cpus: float
    gpus: float
    concurrent: int
    by_processors: int = 0
    memory_per_worker: int = 0  # bytes; 0: unknown
    models: tuple[str, ...] = ()  # GPU models of the cluster by Ray's names, the most frequent first

    @property
    def memory_binds(self) -> bool:
        return self.concurrent < self.by_processors


def join_uri(storage: str, name: str) -> str:
    """Return folder `name` of Ray's storage, a path or URI. A URI keeps its query (`?endpoint_override=...`)."""
    if "://" not in storage:
        return str(Path(storage) / name)
    parts = urlsplit(storage)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def run_name(plan: TrialPlan, config: Mapping[str, Any]) -> str:
    """Return the name of a trial's Ray Train run and MLflow run; `config` is the trial's configuration in Tune."""
    return f"{plan.sweep}-{config['run']['label']}"


def still_note(name: str) -> str:
    """Return the key, in Ray's key-value store, of the message about a run's stalled worker (learning/.../pulse.py)."""
    return f"ctvr-still-{name}"


def progress_note(session: str, name: str) -> str:
    """Return the key, in Ray's key-value store, of a run's progress in one driver session (learning/.../pulse.py)."""
    return f"ctvr-progress-{session}-{name}"


def label_of(settings: Mapping[str, Any], name: str = "") -> str:
    """Return a deterministic name for a run with the given settings; `name` replaces the name of its method."""
    return f"{name or settings.get('method')}-seed{settings.get('seed', 0)}-{digest_of(dict(settings))[:6]}"


def write_plan(plan: TrialPlan, folder: Path, **more: Any) -> None:
    """Write plan.json, which a resumed sweep reads, with further JSON parts `more`; secrets are redacted."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"plan": asdict(plan), "writer": writer_of(folder), **more}
    publish(folder / "plan.json", json.dumps(redact_data(kept), indent=1).encode())


_PARTS = ("request", "where", "writer")  # JSON objects in plan.json, in addition to the trials' plan


def read_plan(folder: Path, name: str) -> tuple[TrialPlan, dict[str, Any]]:
    """Return the plan and the other parts of the plan.json of sweep `name`.

    If another host, user or folder wrote it, its addresses and folders are removed (`own_places`).

    Raises:
        ConfigError: for an unknown name, or a plan with a wrong value or of another version.
    """
    file = folder / "plan.json"
    if not os.path.lexists(file):
        known = sorted(path.parent.name for path in folder.parent.glob("*/plan.json"))
        raise ConfigError(
            f"{name!r} does not exist.{suggest(name, known)} Known: {', '.join(known) or 'none yet'}.", "sweep"
        )
    kept = read_json(file)
    for part in ("", "plan", *_PARTS):
        if not isinstance(found := kept if not part else kept.get(part, {}), dict):
            raise wrong_value("is not an object", file, part, found)
    check_types(TrialPlan, kept.get("plan"), file, "plan")
    for part, key in (("plan", "sweep"), ("request", "name")):
        if (named := kept.get(part, {}).get(key, name)) != name:
            raise wrong_value(f"is not the name of the folder, {name}", file, f"{part}.{key}", named)
    for key in ("root", *(each for each in OPTIONS if each in kept["plan"])):
        place = kept["plan"].get(key)
        if place and "://" not in place and not os.path.isabs(place):  # `write_plan` gets absolute paths
            raise wrong_value("is not an absolute path", file, f"plan.{key}", place)
    with naming_plan(file):
        written, parts = own_places(kept.pop("plan"), kept, folder)
        return replace(build(TrialPlan, written, dotted=False), trusted=()), parts
