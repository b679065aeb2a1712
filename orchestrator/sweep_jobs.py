"""The jobs that run on a cluster: search a method's settings, resume a search, rerun the winners over seeds.

A sweep `NAME` is an MLflow parent run with one child per trial. Its winners and the baselines are run
again over fresh seeds, on test videos, as the sweep `NAME-final-...`; tables are made of that.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import ConfigError, Settings, build
from orchestrator.jobs import (
    GAIN,
    Ready,
    Where,
    absolute,
    default_presets,
    find_manifest,
    find_method_or_say,
    make_ready,
    say,
    search_space,
    table,
)
from orchestrator.run import Experiment, preset_settings, resolve, trains
from orchestrator.store import digest_of
from orchestrator.streams import Stream, load_stream
from orchestrator.tracking import RunRecord, Tracker, default_uri

if TYPE_CHECKING:
    from orchestrator.ray_train import TrialPlan
    from orchestrator.ray_tune import Outcome

MLFLOW_SECONDS = 120.0  # how long a finished sweep waits for a server that is away
FIRST_SEED = 1  # of reruns; trials of a search use seed 0


@dataclass(frozen=True)
class SweepRequest:
    """What `ctvr sweep` was asked for."""

    method: str
    stream: str
    name: str
    overrides: Settings
    presets: tuple[str, ...] = ()
    search: Settings | None = None  # settings of SearchConfig
    space: tuple[str, ...] = ()
    top: int = 1
    seeds: int = 0  # > 0: rerun the winners and tabulate
    baselines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """A request that was checked: what its trials are made of."""

    request: SweepRequest
    stream: Stream
    experiment: Experiment  # of a trial, but for what is searched
    given: Settings  # what all trials share, as the user and the search space gave it
    space: dict[str, Any]
    paper: dict[str, Any]
    search: Any  # SearchConfig


def plan_sweep(request: SweepRequest, where: Where) -> Sweep:
    """Check everything that a sweep is made of before anything starts.

    Raises:
        ConfigError: for whatever could not run.
    """
    from orchestrator.ray_tune import SearchConfig, near_paper, override_space

    find_method_or_say(request.method)
    search = build(SearchConfig, request.search or {}, "search")
    fixed, space, paper = search_space(request.method)
    space = override_space(space, request.space)
    if request.top < 1 or request.seeds < 0:
        raise ConfigError(f"--top must be >= 1 and --seeds >= 0, got {request.top} and {request.seeds}.")
    places = where.places()
    stream = load_stream(request.stream, places.root, places.videos)
    split = "val" if stream.has_val else "test"
    given = {**fixed, "evaluation.split": split, **request.overrides}
    given.update({"method": request.method, "stream": request.stream})
    full = {**given, "workers": where.workers}
    space = {name: domain for name, domain in space.items() if name not in request.overrides}
    if not space:
        raise ConfigError(f"sweep: every setting of {request.method} is fixed, nothing is searched. Use `ctvr run`.")
    presets = default_presets(request.method, stream, request.presets)
    experiment = resolve(full, stream.settings, presets)
    method = experiment.run.method
    paper = near_paper(space, paper, preset_settings(method, experiment.presets, {**full, "method": method}))
    given["method"] = experiment.run.method  # of a named configuration: the method, its preset is among the presets
    for name, domain in space.items():
        for value in getattr(domain, "categories", None) or [domain.sample()]:
            resolve({**full, name: value}, stream.settings, presets)
    for word in request.baselines:
        baseline(word, stream, request.stream, common(request.overrides), where.workers)
    return Sweep(request, stream, experiment, given, space, paper, search)


def common(overrides: Mapping[str, Any]) -> Settings:
    """The settings that a user gave for a sweep and that hold for its baselines too: all but the method's own."""
    return {
        name: value
        for name, value in overrides.items()
        if name.split(".")[0] in {"backbone", "data", "optim", "evaluation", "precision", "threads"}
    }


def baseline(word: str, stream: Stream, stream_name: str, shared: Settings, workers: int) -> Experiment:
    """A method named as `method` or `method:preset`, under the settings that a sweep's user gave.

    Raises:
        ConfigError: if there is no such method or preset.
    """
    method, _, preset = word.partition(":")
    find_method_or_say(method)
    chosen = default_presets(method, stream, (preset,) if preset else ())
    return resolve({**shared, "method": method, "stream": stream_name, "workers": workers}, stream.settings, chosen)


def sweep(request: SweepRequest, where: Where) -> str:
    """Search a method's settings, then rerun the winners beside the baselines if asked to."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", request.name):
        raise ConfigError(f"--name {request.name!r}: letters, digits and . _ - only; it names folders.")
    folder = where.folder(request.name)
    if (folder / "plan.json").exists():
        raise ConfigError(
            f"--name {request.name}: this sweep exists. Write `ctvr sweep --resume {request.name}` to go on with it, "
            "or choose another name."
        )
    where.check()
    request = replace(request, stream=find_manifest(request.stream))
    _check_machine(where, request.name)
    return _search(plan_sweep(request, where), where, None)


def resume(name: str, where: Where) -> str:
    """Go on with an interrupted sweep: unfinished trials first, then what was to follow."""
    from orchestrator.ray_tune import read_plan

    plan, kept = read_plan(where.folder(name), name)
    where.check()
    where = _kept_where(where, plan, kept)
    return _search(plan_sweep(_read_request(kept["request"]), where), where, plan)


def _search(planned: Sweep, where: Where, plan: TrialPlan | None) -> str:
    """The search of a checked sweep, and what follows it. `plan`: of an interrupted one."""
    from orchestrator.ray_tune import can_resume, capacity, cluster, run_trials, write_plan

    request, stream = planned.request, planned.stream
    tracker = where.tracker(stream.name)
    with cluster(where.address, where.local_cpus, where.nodes):
        where = _with_gpus(where)
        if plan is None:
            plan = replace(_trial_plan(where, request.name, tracker), settings=planned.given)
            plan = replace(plan, presets=planned.experiment.presets, tags={"ctvr.role": "trial"})
        room = capacity(plan, where.max_concurrent)
        ready = make_ready(planned.experiment, where, _splits(stream), curve=not where.gpus_per_trial)
        stream = ready.stream
        say(_plan_text(planned, room, ready.decoded, where, tracker))
        settings = {**planned.experiment.settings, **_flat_search(planned.search)}
        parent = tracker.open_sweep(request.name, stream.name, settings, {})
        plan = replace(plan, parent=parent, root=str(where.places().root), tracking_uri=tracker.uri)
        if goes_on := can_resume(plan):
            say("resumed: finished tasks are kept")
        kept = {"request": asdict(request), "num_tasks": len(stream.tasks), "where": _portable(where)}
        write_plan(plan, where.folder(request.name), **kept)
        with _interruptible(f"sweep {request.name}", f"ctvr sweep --resume {request.name}", where, tracker, parent):
            outcome = run_trials(
                plan,
                len(stream.tasks),
                planned.search,
                planned.space,
                planned.paper,
                max_concurrent=where.max_concurrent,
                resume=goes_on,
            )
            _refuse_unfinished(outcome)
            return _conclude(planned, where, tracker, outcome, parent)


def _conclude(planned: Sweep, where: Where, tracker: Tracker, outcome: Outcome, parent: str) -> str:
    """The end of a search: the parent run is closed, the winner named and rerun."""
    request = planned.request
    tracker.set_tags(parent, {"ctvr.trials": str(outcome.trials), "ctvr.complete_trials": str(outcome.complete)})
    tracker.close(parent, "FINISHED" if outcome.complete else "FAILED")
    lines = [
        f"sweep {request.name}: {outcome.trials} trials in {outcome.seconds:.0f} s: {outcome.complete} complete, "
        f"{outcome.stopped} stopped early, {outcome.failed} failed"
    ]
    if not outcome.complete:
        _say_waiting(tracker)
        raise FailedRuns("\n".join([*lines, "no trial is complete, so there is no winner. `ctvr ui` shows why."]))
    if waiting := _send_waiting(tracker):
        lines += [
            f"{waiting} records wait because MLflow does not answer, so no winner can be named.",
            _once_back(request.name),
        ]
        raise FailedRuns("\n".join(lines))
    winner = best_trials(tracker, request.name, 1)[0]
    lines.append(
        f"best: {winner.name}, {GAIN} {last_value(winner, GAIN):+.2f} on {winner.tags.get('ctvr.split')} videos"
    )
    lines += [f"  {name} = {winner.settings.get(name)}" for name in planned.space]
    if request.seeds:
        lines.append(rerun(request.name, where, request.top, request.seeds, request.baselines))
    return "\n".join(lines)


class Interrupted(RuntimeError):
    """The user stopped a sweep; it can be resumed."""


class FailedRuns(RuntimeError):
    """Runs were started and did not succeed."""


def _refuse_unfinished(outcome: Outcome) -> None:
    if outcome.is_interrupted:  # Ray Tune ends a search in order on Ctrl-C, and returns
        raise KeyboardInterrupt


@contextmanager
def _interruptible(what: str, again: str, where: Where, tracker: Tracker, parent: str) -> Iterator[None]:
    """Turns Ctrl-C into the one line that says how to go on; runs that were open are marked as killed."""
    try:
        yield
    except KeyboardInterrupt:
        place = "" if str(where.runs) == "runs" else f" --runs {where.runs}"
        _close_open_runs(tracker, parent)
        raise Interrupted(f"{what} is not finished; its finished tasks are kept. Go on with: {again}{place}") from None


def _close_open_runs(tracker: Tracker, parent: str) -> None:
    try:
        for run in tracker.find_runs(sweep=parent):
            if run.status == "RUNNING":
                tracker.close(run.run_id, "KILLED")
        tracker.close(parent, "KILLED")
    except Exception as error:  # nothing of this may hide the line that says how to go on
        say(f"tracking: some runs of the sweep stay open ({type(error).__name__})")


def _send_waiting(tracker: Tracker) -> int:
    """Send what workers could not send to MLflow; a server that was restarted gets a while. Returns what is left."""
    until = time.monotonic() + MLFLOW_SECONDS
    while (left := tracker.flush()[1]) and time.monotonic() < until:
        time.sleep(2)
    return left


def _say_waiting(tracker: Tracker) -> None:
    """Workers' warnings are in Ray's logs: what they could not send is told here."""
    _, left = tracker.flush()
    if left:
        say(f"tracking: {left} records wait because MLflow did not answer. Send them later: ctvr sync")


def _once_back(sweep_name: str) -> str:
    return f"Start it again, then: ctvr sync; ctvr rerun --sweep {sweep_name}"


# ------------------------------------------------------------------------------------- plans and clusters


def _trial_plan(where: Where, name: str, tracker: Tracker) -> TrialPlan:
    from orchestrator.ray_train import TrialPlan

    places = where.places()
    storage = f"{absolute(where.storage).rstrip('/')}/{name}" if where.storage else str(where.folder(name))
    return TrialPlan(
        sweep=name,
        root=str(places.root),
        store=places.store,
        tracking_uri=tracker.uri,
        parent=None,
        storage=storage,
        videos=str(places.videos) if places.videos else None,
        workers=where.workers,
        cpus_per_worker=where.cpus_per_worker,
        gpus_per_worker=(where.gpus_per_trial or 0.0) / where.workers,
    )


def _check_machine(where: Where, name: str) -> None:
    """Refuse a plan that this machine cannot hold before any video is rendered or decoded."""
    from orchestrator.ray_cluster import check_local

    check_local(_trial_plan(where, name, Tracker(default_uri(where.runs), where.runs)), where.address, where.local_cpus)


def _with_gpus(where: Where) -> Where:
    """`where` with the number of GPUs that a trial gets; Ray is connected."""
    from orchestrator.ray_cluster import choose_gpus

    return replace(where, gpus_per_trial=choose_gpus(where.gpus_per_trial, where.workers))


def _portable(where: Where) -> Settings:
    """What a resumed sweep takes from the first command, if it is not given anew."""
    names = ("address", "nodes", "local_cpus", "max_concurrent")
    return {name: getattr(where, name) for name in names}


def _kept_where(where: Where, plan: TrialPlan, kept: Mapping[str, Any]) -> Where:
    """Where an interrupted sweep goes on: its own trials, on the cluster that is there now."""
    first = dict(kept.get("where", {}))
    first = {name: value for name, value in first.items() if getattr(where, name) in (None, 1)}
    return replace(
        where,
        **first,
        store=plan.store,
        videos=Path(plan.videos) if plan.videos else None,
        workers=plan.workers,
        cpus_per_worker=plan.cpus_per_worker,
        gpus_per_trial=plan.gpus_per_worker * plan.workers,
    )


def _read_request(kept: Mapping[str, Any]) -> SweepRequest:
    """A request as `write_plan` kept it: JSON has no tuples."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
    return SweepRequest(**values)


def _splits(stream: Stream) -> tuple[str, ...]:
    return ("train", "val", "test") if stream.has_val else ("train", "test")


# ----------------------------------------------------------------------------------------------- a rerun


def last_value(run: RunRecord, key: str) -> float:
    """A metric's value at its last step; NaN if it was never recorded."""
    last = run.last(key)
    return last[1] if last else float("nan")


def best_trials(tracker: Tracker, sweep_name: str, top: int) -> list[RunRecord]:
    """The best complete trials of a sweep, by their gain over zero-shot after the last task.

    Raises:
        ConfigError: if the sweep is unknown or has no complete trial.
    """
    if tracker.find_sweep(sweep_name) is None:
        raise ConfigError(
            f"sweep: none is called {sweep_name!r} in {tracker.uri.split('@')[-1]}. `ctvr ui` lists them."
        )
    complete = tracker.find_runs(sweep=sweep_name, tags={"ctvr.complete": "true"})
    if not complete:
        raise ConfigError(f"sweep {sweep_name}: no trial is complete. Resume it: ctvr sweep --resume {sweep_name}")

    def worst_first(run: RunRecord) -> float:
        value = last_value(run, GAIN)
        return math.inf if math.isnan(value) else -value

    return sorted(complete, key=worst_first)[:top]


def rerun(
    sweep_name: str, where: Where, top: int = 1, seeds: int = 3, baselines: Sequence[str] = (), keep_model: bool = True
) -> str:
    """Run the best trials of a sweep and the baselines again, over fresh seeds, on test videos; then tabulate.

    The same winners, seeds, code and data are the same rerun: one that was interrupted goes on, and what
    is complete is not run again.
    """
    from orchestrator.ray_tune import cluster

    if top < 1 or seeds < 1:
        raise ConfigError(f"--top and --seeds must be >= 1, got {top} and {seeds}.")
    tracker = where.tracker()
    _check_machine(where, sweep_name)
    winners = best_trials(tracker, sweep_name, top)
    stream_name = winners[0].settings["stream"]
    places = where.places()
    stream = load_stream(stream_name, places.root, places.videos)
    shared = common(_overrides_of(sweep_name, where))
    runs = rerun_experiments(winners, stream, stream_name, seeds, baselines, shared, where.workers)
    ready = _make_all_ready(runs, where)
    stream = ready[0].stream
    identity = [run.key(each.stream, each.frames) for run, each in zip(runs, ready)]
    name = f"{sweep_name}-final-{digest_of(identity)[:6]}"
    searched = f"{winners[0].settings['method']}:{len(tracker.find_runs(sweep=sweep_name))}"
    tags = {"ctvr.role": "final", "ctvr.rerun_of": sweep_name, "ctvr.searched": searched}
    parent = tracker.open_sweep(name, stream.name, {"rerun_of": sweep_name, "seeds": seeds, "top": top}, {})
    again = f"ctvr rerun --sweep {sweep_name} --top {top} --seeds {seeds}"
    again += f" --baselines {','.join(baselines)}" if baselines else ""
    failed = 0
    with _interruptible(f"rerun {name}", again, where, tracker, parent):
        left = _not_complete(runs, name, tracker)
        say(f"rerun {name}: {len(runs)} runs, {len(runs) - len(left)} of them complete already")
        if left:
            with cluster(where.address, where.local_cpus, where.nodes):
                where = _with_gpus(where)
                plan = replace(_trial_plan(where, name, tracker), parent=parent, tags=tags, keep_model=keep_model)
                failed = _run_listed(plan, left, len(stream.tasks), where)
    tracker.close(parent, "FAILED" if failed else "FINISHED")
    if waiting := _send_waiting(tracker):
        raise FailedRuns(f"{waiting} records wait because MLflow does not answer. {_once_back(sweep_name)}")
    text = table(where, sweep=name)
    if failed:
        raise FailedRuns(f"{text}\n{failed} runs failed and are missing in the table. `ctvr ui` shows why.")
    return text


def _run_listed(plan: TrialPlan, runs: Sequence[Experiment], num_tasks: int, where: Where) -> int:
    """Run experiments on the connected cluster; returns how many failed."""
    from orchestrator.ray_tune import run_trials

    outcome = run_trials(
        plan,
        num_tasks,
        listed=[run.settings for run in runs],
        presets=[run.presets for run in runs],
        max_concurrent=where.max_concurrent,
    )
    _refuse_unfinished(outcome)
    return outcome.failed


def _not_complete(runs: Sequence[Experiment], name: str, tracker: Tracker) -> list[Experiment]:
    from orchestrator.ray_tune import label_of

    complete = tracker.find_runs(sweep=name, tags={"ctvr.complete": "true"})
    done = {run.tags.get("ctvr.trial") for run in complete}
    return [run for run in runs if f"{name}-{label_of(run.settings)}" not in done]


def _make_all_ready(runs: Sequence[Experiment], where: Where) -> list[Ready]:
    """Decode what any of the runs needs; they mostly need the same."""
    made: dict[str, Ready] = {}
    needs = [digest_of([asdict(part) for part in (run.data, run.backbone, run.evaluation)]) for run in runs]
    for need, run in zip(needs, runs):
        if need not in made:
            made[need] = make_ready(run, where, curve=where.gpus_per_trial == 0)
    decoded = sum(each.decoded for each in made.values())
    if decoded:
        say(f"{decoded} videos decoded")
    return [made[need] for need in needs]


def _overrides_of(sweep_name: str, where: Where) -> Settings:
    """What the user gave for a sweep; empty if it was made elsewhere."""
    from orchestrator.ray_tune import read_plan

    if not (where.folder(sweep_name) / "plan.json").is_file():
        return {}
    return _read_request(read_plan(where.folder(sweep_name), sweep_name)[1]["request"]).overrides


def rerun_experiments(
    winners: Sequence[RunRecord],
    stream: Stream,
    stream_name: str,
    seeds: int,
    baselines: Sequence[str],
    shared: Settings,
    workers: int,
) -> list[Experiment]:
    """Every rerun: baselines first, then the winners, each over fresh seeds; once where nothing is trained."""
    found = [baseline(word, stream, stream_name, shared, workers) for word in baselines]
    for winner in winners:
        presets = [name for name in winner.tags.get("ctvr.presets", "").split(",") if name]
        found.append(resolve(_as_given(winner.settings), None, presets))
    runs: dict[str, Experiment] = {}
    for each in found:
        for seed in range(seeds if trains(each) else 1):
            fresh = {"evaluation.split": "test", "seed": FIRST_SEED + seed, "workers": workers}
            made = resolve({**each.settings, **fresh}, None, each.presets)
            runs.setdefault(digest_of(made.settings), made)
    return list(runs.values())


def _as_given(settings: Mapping[str, Any]) -> Settings:
    """Settings as MLflow keeps them, lists written as on the command line."""
    return {name: str(value).strip("[]") if str(value).startswith("[") else value for name, value in settings.items()}


def _flat_search(search: Any) -> Settings:
    return {f"search.{name}": value for name, value in asdict(search).items()}


def _plan_text(planned: Sweep, room: Any, decoded: int, where: Where, tracker: Tracker) -> str:
    """What will happen, before it does."""
    request, stream, search = planned.request, planned.stream, planned.search
    recommended = ", ".join(f"{name}={value}" for name, value in stream.settings.items())
    gpus = f" and {where.gpus_per_trial:g} GPUs" if where.gpus_per_trial else ""
    cpus = where.workers * where.cpus_per_worker
    videos = f"{decoded} decoded now, the rest was in the store" if decoded else "0 decoded: all are in the store"
    lines = [
        f"sweep {request.name}: {request.method} on {stream.name}, {len(stream.tasks)} tasks",
        f"  trials     {search.trials} by {search.searcher}, scheduler {search.scheduler}; {room.concurrent} at once",
        f"  resources  {where.workers} workers, {cpus:g} CPUs{gpus} for each trial, of {room.cpus:g} CPUs and "
        f"{room.gpus:g} GPUs",
        f"  searches   {', '.join(planned.space)} on {planned.experiment.evaluation.split} videos",
        f"  presets    {', '.join(planned.experiment.presets) or 'paper'}; their values are tried first",
        f"  stream     recommends {recommended or 'nothing'}",
        f"  videos     {videos}",
        f"  tracking   {tracker.uri.split('@')[-1]}",
        f"  then       {_what_follows(request)}",
        "  time       known when the first trial is complete",
    ]
    if mark := stream.settings_mark:
        lines.append(f"  note       {mark}")
    return "\n".join(lines)


def _what_follows(request: SweepRequest) -> str:
    if not request.seeds:
        return "nothing is rerun"
    beside = f" beside {', '.join(request.baselines)}" if request.baselines else ""
    return f"the best {request.top} over {request.seeds} seeds on test videos{beside}"
