"""Plans of sweeps and trials as plain data; Ray is not needed to write or read them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from ctvr.methods.settings import SettingError, setting
from ctvr.orchestrator.config import Settings, build, suggest
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan_places import OPTIONS, own_places, writer_of
from ctvr.orchestrator.on_ray.plan_types import check_types, naming_plan, wrong_value
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.redaction import redact_data
from ctvr.orchestrator.streams.manifest import read_json
from ctvr.orchestrator.streams.metric_names import ACCURACY, GAIN, MEAN, SEARCHED

if TYPE_CHECKING:
    from ctvr.orchestrator.store.paths import RunPaths

__all__ = ["ACCURACY", "GAIN", "MEAN", "SEARCHED"]  # for type checkers only

NUMBER = "ctvr.number"  # tag of a trial's run; among equally good trials the lowest number wins
SEARCHERS = ("tpe", "random", "grid", "grouped_tpe")
GROUPED_FROM = 16  # trials from which a search is grouped by default: two brackets


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Settings of a search (`search.*` on the command line)."""

    trials: int = setting(8, doc="number of trials")
    searcher: str = setting(
        "auto",
        doc="tpe (Optuna), grouped_tpe (groups that share their first task), random, grid, the name of an installed "
        "package's searcher, or auto, which chooses by the budget",
    )
    scheduler: str = setting("halving", doc="halving, or none: every trial runs to its end")
    bracket_size: int = setting(8, doc="trials that are suggested together and compared with each other")
    brackets_at_once: int = setting(
        0,
        doc="brackets that run at the same time; each is proposed from those that ended before. 0: as many as "
        "fit on the cluster when a sweep starts; its plan records the number",
    )
    group_size: int = setting(4, doc="trials that share the settings of the first task, with grouped_tpe")
    min_survivors: int = setting(2, doc="smallest number of trials of a bracket after a rung, with halving")
    grace_tasks: int = setting(1, doc="first tasks that every trial finishes; on a stream of one task, epochs")
    reduction_factor: int = setting(2, doc="divisor of the number of trials at each rung")
    confirm: int = setting(
        2,
        doc="best trials that are run again on validation videos, next to the recommended settings; 0: none. With "
        "several objectives, trials of the Pareto front (8 unless given)",
    )
    confirm_seeds: int = setting(3, doc="seeds of each confirmed trial")
    seed: int = setting(0, doc="seed of the searcher")
    metric: str = setting(
        GAIN,
        doc="metric that ranks trials; a method's search space may name another. Several, comma-separated, are the "
        "objectives of a search for a Pareto front",
    )
    mode: str = setting("max", doc="better direction of the metric, max or min; of several, comma-separated")

    def __post_init__(self) -> None:
        if self.searcher == "auto":  # its meaning is recorded and shown
            object.__setattr__(self, "searcher", "grouped_tpe" if self.trials >= GROUPED_FROM else "tpe")
        if self.scheduler == "asha":
            raise SettingError(
                "<scheduler>: asha was removed",
                "Write halving or none. A sweep that was started with asha cannot be resumed; a new one "
                "reuses its finished tasks.",
            )
        searchers: Iterable[str] = SEARCHERS
        if self.searcher not in SEARCHERS:
            searchers = (*SEARCHERS, *plugin_searchers())
        for name, known in (
            ("searcher", searchers),
            ("scheduler", ("halving", "none")),
        ):
            if getattr(self, name) not in known:
                hint = suggest(getattr(self, name), known).strip()
                raise SettingError(f"<{name}>: {getattr(self, name)!r} is none of {', '.join(known)}", hint)
        self._check_objectives()
        if self.searcher == "grouped_tpe" and self.group_size < 2:
            raise SettingError(
                f"<searcher>=grouped_tpe needs groups of at least 2, got group {self.group_size}",
                write="<searcher>=tpe",
            )
        for name, least, remedy in (
            ("trials", 1, "Write --trials 8, or train without a search: ctvr run METHOD STREAM"),
            ("brackets_at_once", 0, "Write 0 to fill the cluster"),
            ("grace_tasks", 1, "Write search.grace_tasks=1"),
            ("bracket_size", 1, "Write search.bracket_size=8"),
            ("min_survivors", 1, "Write search.min_survivors=2"),
            ("reduction_factor", 2, "Write search.reduction_factor=2"),
            ("confirm", 0, "Write --confirm 0 to confirm nothing"),
            ("confirm_seeds", 2, "Write search.confirm_seeds=3"),
        ):
            if getattr(self, name) < least:
                raise SettingError(f"<{name}> must be >= {least}, got {getattr(self, name)}", f"{remedy}.")

    def _check_objectives(self) -> None:
        for mode in self.modes:
            if mode not in ("max", "min"):
                raise ValueError(f"mode: {mode!r} is none of max, min.{suggest(mode, ('max', 'min'))}")
        if len(self.modes) != len(self.metrics):
            raise ValueError(
                f"mode: {len(self.metrics)} metrics need one direction each, got {self.mode}. Write for example "
                "search.mode=max,min."
            )
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"metric: {self.metric} names a metric twice. Name each once.")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the objectives, one or several."""
        return names_of(self.metric)

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the better direction of each objective."""
        return names_of(self.mode)

    def kept(self, number: int) -> int:
        """Return how many of `number` trials continue after a rung."""
        return max(math.ceil(number / self.reduction_factor), min(number, self.min_survivors))


def names_of(text: str) -> tuple[str, ...]:
    """Split comma-separated names, such as those of objectives."""
    return tuple(name.strip() for name in text.split(","))


def plugin_searchers() -> dict[str, EntryPoint]:
    """Return the searchers of other packages: entry points `ctvr.searchers`. Our own names cannot be replaced."""
    return {point.name: point for point in entry_points(group="ctvr.searchers") if point.name not in SEARCHERS}


def rungs(grace: int, reduction: int, length: int) -> list[int]:
    """Return the tasks (or epochs) after which trials are compared: `grace * reduction**i`, below `length`."""
    found = []
    while grace < length:
        found.append(grace)
        grace *= reduction
    return found


def brackets_for(search: SearchConfig, trials: int, length: int, places: float) -> int:
    """Return the number of concurrent brackets that keep a cluster busy.

    Each rung leaves fewer trials. In the mean over its time (work / `length`), a bracket of 8 trials of 10 tasks
    occupies 2.8 slots. A fifth more brackets make up for the time in which they wait for each other
    (`python -m tools.search_simulation`).

    Args:
        search: settings of the search.
        trials: number of trials of the search.
        length: tasks of the stream, or epochs where trials are compared after epochs.
        places: number of trials that the cluster can run at once.
    """
    left = min(search.bracket_size, trials)
    before, work = 0, 0
    for rung in rungs(search.grace_tasks, search.reduction_factor, length) if search.scheduler == "halving" else []:
        work, before = work + left * (rung - before), rung
        left = search.kept(left)
    work += left * (length - before)
    brackets = math.ceil(1.2 * places * length / work)
    return max(1, min(brackets, math.ceil(trials / search.bracket_size)))


def count_startup_trials(search: SearchConfig) -> int:
    """Return the number of trials, ended or running, from which TPE models results; before, it draws at random."""
    return max(3, search.trials // 3)


def count_random_trials(search: SearchConfig, trials: int) -> int:
    """Return how many of the `trials` trials of a TPE search are proposed without any result.

    The first `brackets_at_once` brackets are proposed before one has ended.
    """
    return min(trials, max(count_startup_trials(search), max(1, search.brackets_at_once) * search.bracket_size))


@dataclass(frozen=True)
class TrialPlan:
    """Everything that a trial needs besides its own settings. Plain data, which Ray pickles."""

    sweep: str
    root: str  # the runs folder, the same on every node
    store: str
    tracking_uri: str
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
    patience: float = 24.0  # maximum hours that workers wait for work of a single worker
    keep_model: bool = False
    reuse: bool = True  # adopt tasks that another trial has finished where the results cannot differ
    tags: dict[str, str] = field(default_factory=dict)
    session: str = ""  # id of the process that drives the trials; a resumed sweep has another
    host: str = ""  # host of that process
    sources: str = ""  # `digests.source_digest` on that host
    trusted: tuple[str, ...] = ()  # classes and addresses that the user of this process trusts; never of a plan.json

    def places(self) -> RunPaths:
        from ctvr.orchestrator.store.paths import RunPaths

        return RunPaths(Path(self.root), self.store, Path(self.videos) if self.videos else None)


@dataclass(frozen=True)
class RunSpec:
    """One run of a list. `label` is equal in every execution, so that complete runs are recognised."""

    label: str
    settings: Settings
    presets: tuple[str, ...] | None = None  # None: those of the plan
    tags: dict[str, str] = field(default_factory=dict)  # tags of its MLflow run, in addition to the plan's
    stop_after_task: int | None = None  # number of tasks after which it ends, to be continued later; None: no limit
    stop_after_epoch: int | None = None  # the same for epochs, on a stream of one task


@dataclass(frozen=True)
class SearchOutcome:
    """Counts of how a set of trials ended."""

    trials: int
    complete: int
    stopped: int
    failed: int
    unfinished: int  # interrupted, or not started
    seconds: float
    tasks: int = 0  # tasks finished by all trials together
    reused: int = 0  # number of these that another trial trained

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
    """Resources of a cluster, and how many trials of a plan fit at once.

    `by_processors`: number of trials without the memory limit; 0 where the user gave a limit.
    """

    cpus: float
    gpus: float
    concurrent: int
    by_processors: int = 0
    memory_per_worker: int = 0  # bytes; 0: unknown
    models: tuple[str, ...] = ()  # models of the cluster's GPUs by Ray's names, the commonest first

    @property
    def memory_binds(self) -> bool:
        return self.concurrent < self.by_processors


def join_uri(storage: str, name: str) -> str:
    """Return a folder of Ray's storage: a path, or a URI whose query (`?endpoint_override=...`) stays at its end."""
    if "://" not in storage:
        return str(Path(storage) / name)
    parts = urlsplit(storage)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def run_name(plan: TrialPlan, config: Mapping[str, Any]) -> str:
    """Return the name of a trial's Train run and MLflow run; `config` is Tune's."""
    return f"{plan.sweep}-{config['run']['label']}"


def still_note(name: str) -> str:
    """Return the key-value key for the message about a run's stalled worker (learning/training/pulse.py)."""
    return f"ctvr-still-{name}"


def label_of(settings: Mapping[str, Any], name: str = "") -> str:
    """Return a deterministic name for a listed run; `name` replaces the name of its method."""
    return f"{name or settings.get('method')}-seed{settings.get('seed', 0)}-{digest_of(dict(settings))[:6]}"


def write_plan(plan: TrialPlan, folder: Path, **more: Any) -> None:
    """Write the plan that a resumed sweep needs, with the process that wrote it; secrets are redacted."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"plan": asdict(plan), "writer": writer_of(folder), **more}
    publish(folder / "plan.json", json.dumps(redact_data(kept), indent=1).encode())


_PARTS = ("request", "where", "writer")  # JSON objects in plan.json, besides the trials' plan


def read_plan(folder: Path, name: str) -> tuple[TrialPlan, dict[str, Any]]:
    """Read the plan that `write_plan` wrote. The places in one from elsewhere do not count (`require_given`).

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
