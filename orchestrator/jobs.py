"""The jobs behind the command line: search, rerun, run, tabulate. Each returns text for a person to read.

A sweep `NAME` is an MLflow parent run with one child per trial. Its winners and the baselines are run
again over fresh seeds, on test videos, as the sweep `NAME-final`; tables are made of that.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import report
from orchestrator.config import ConfigError, Settings, build
from orchestrator.data import FrameSource, StreamData, prepare_stream
from orchestrator.recorder import Recorder
from orchestrator.run import (
    Experiment,
    Places,
    execute,
    load_clip,
    presets_of,
    resolve,
    splits_of,
    zero_shot_curve,
)
from orchestrator.streams import Stream, load_stream
from orchestrator.tracking import RunRecord, Tracker, default_uri, prepare

GAIN = "stream/t2v/r1_gain"
FIRST_SEED = 1  # of reruns; trials of a search use seed 0


@dataclass(frozen=True)
class Where:
    """Folders, servers and resources: what a result does not depend on."""

    runs: Path = Path("runs")
    store: str = ""
    videos: Path | None = None
    address: str | None = None  # of a Ray cluster
    nodes: int = 1
    local_cpus: int | None = None
    storage: str | None = None  # Ray's own state; must be shared between nodes
    workers: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_trial: float = 0.0
    max_concurrent: int | None = None

    def places(self) -> Places:
        return Places(self.runs.resolve(), self.store, self.videos)

    def tracker(self) -> Tracker:
        return Tracker(default_uri(self.runs), self.runs)

    def folder(self, name: str) -> Path:
        return self.runs.resolve() / "sweeps" / name


def say(line: str) -> None:
    """One line for the person who waits, on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def default_presets(method: str, stream: Stream, asked: Sequence[str]) -> tuple[str, ...]:
    """The presets asked for, else the one that the stream recommends if the method has it."""
    if asked:
        return tuple(asked)
    recommended = str(stream.settings.get("preset", ""))
    return (recommended,) if recommended in presets_of(method) else ()


def search_space(method: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """FIXED, SPACE and PAPER of search_spaces/<method>.py.

    Raises:
        ConfigError: if the method has no search space.
    """
    try:
        module = importlib.import_module(f"search_spaces.{method}")
    except ModuleNotFoundError as error:
        if error.name != f"search_spaces.{method}":
            raise
        raise ConfigError(f"method: {method} has nothing to search (no search_spaces/{method}.py).") from error
    return dict(module.FIXED), dict(module.SPACE), dict(getattr(module, "PAPER", {}))


def make_ready(experiment: Experiment, where: Where, splits: Sequence[str], curve: bool = True) -> tuple[Stream, int]:
    """Decode what is missing and compute the zero-shot curve once, before several processes need them.

    Returns the stream as it will be used and the number of videos decoded.
    """
    places = where.places()
    stream = load_stream(experiment.run.stream, places.root, places.videos)
    splits_of(experiment, stream)
    store = places.open_store()
    backbone = load_clip(experiment.backbone)
    source = FrameSource(store, experiment.data, backbone.image_size)
    stream, decoded = prepare_stream(stream, source, splits, experiment.data.skip_missing)
    if curve:
        import torch

        torch.set_num_threads(experiment.run.threads)
        data = StreamData(
            stream, source, backbone.tokenize, backbone.mean, backbone.std, experiment.data, torch.device("cpu")
        )
        zero_shot_curve(experiment, stream, data, backbone, store)
    return stream, decoded


# ----------------------------------------------------------------------------------------------- one run


def run(settings: Settings, presets: Sequence[str], where: Where, fresh: bool = False, keep_model: bool = False) -> str:
    """Train one method over one stream in this process, tracked by MLflow."""
    places = where.places()
    stream = load_stream(str(settings.get("stream", "")), places.root, places.videos)
    chosen = default_presets(str(settings.get("method", "")), stream, presets) if "method" in settings else ()
    experiment = resolve(settings, stream.settings, chosen)
    if experiment.run.workers > 1:
        raise ConfigError("workers: `ctvr run` trains in one process. Use `ctvr rerun` or `ctvr sweep` for several.")
    tracker = where.tracker()
    prepare(tracker.uri, where.runs, stream.name)
    name = f"{experiment.run.method}-seed{experiment.run.seed}-{time.strftime('%m%d-%H%M%S')}"
    recorder = Recorder(tracker, experiment, name, keep_model=keep_model)

    def report_task(task: Any, record: Any, seconds: float) -> None:
        recorder.report(task, record, seconds)
        row = record.metrics[task.index]
        say(
            f"task {task.index + 1}/{task.num_tasks}  R@1 {row['stream/t2v/r1']:.2f}  "
            f"({row.get(GAIN, float('nan')):+.2f} over zero-shot)  BWF {row['stream/t2v/bwf']:.2f}  {seconds:.1f} s"
        )

    result = execute(experiment, places, report=report_task, fresh=fresh, on_ready=recorder.ready)
    if result.resumed == len(result.stream.tasks):
        recorder.complete(result.record)
        say("every task had been finished before; nothing was trained (--fresh trains again)")
    last = result.record.metrics[-1]
    lines = [f"{key.removeprefix('stream/'):<16}{last[key]:8.2f}" for key in sorted(last) if key.startswith("stream/")]
    return "\n".join([f"{experiment.run.method} on {stream.name}, {experiment.evaluation.split} videos", *lines])


# ----------------------------------------------------------------------------------------------- a sweep


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


def plan_sweep(request: SweepRequest, where: Where) -> tuple[Experiment, Stream, dict[str, Any], dict[str, Any], Any]:
    """Check everything that a sweep is made of before anything starts."""
    from orchestrator.ray_tune import SearchConfig, override_space

    places = where.places()
    stream = load_stream(request.stream, places.root, places.videos)
    search = build(SearchConfig, request.search or {}, "search")
    fixed, space, paper = search_space(request.method)
    space = override_space(space, request.space)
    split = "val" if stream.has_val else "test"
    settings = {**fixed, "evaluation.split": split, **request.overrides}
    settings.update({"method": request.method, "stream": request.stream, "workers": where.workers})
    space = {name: domain for name, domain in space.items() if name not in request.overrides}
    presets = default_presets(request.method, stream, request.presets)
    experiment = resolve(settings, stream.settings, presets)
    for name, domain in space.items():
        resolve({**settings, name: domain.sample()}, stream.settings, presets)
    for baseline in request.baselines:
        method, _, preset = baseline.partition(":")
        chosen = default_presets(method, stream, (preset,) if preset else ())
        resolve({"method": method, "stream": request.stream}, stream.settings, chosen)
    return experiment, stream, space, paper, search


def sweep(request: SweepRequest, where: Where) -> str:
    """Search a method's settings, then rerun the winners beside the baselines if asked to."""
    from orchestrator.ray_train import TrialPlan
    from orchestrator.ray_tune import await_nodes, capacity, connect, run_trials, write_plan

    folder = where.folder(request.name)
    if (folder / "plan.json").exists():
        raise ConfigError(
            f"--name {request.name}: this sweep exists. Write `ctvr sweep --resume {request.name}` to go on with it, "
            "or choose another name."
        )
    experiment, stream, space, paper, search = plan_sweep(request, where)
    splits = ("train", "val", "test") if stream.has_val else ("train", "test")
    stream, decoded = make_ready(experiment, where, splits)
    tracker = where.tracker()
    prepare(tracker.uri, where.runs, stream.name)
    connect(where.address, where.local_cpus)
    await_nodes(where.nodes)
    base = {"method": request.method, "stream": request.stream, **request.overrides}
    base["evaluation.split"] = experiment.evaluation.split
    fixed, _, _ = search_space(request.method)
    shared = TrialPlan(
        sweep=request.name,
        root=str(where.runs.resolve()),
        store=where.store,
        tracking_uri=tracker.uri,
        parent=None,
        storage=where.storage or str(folder),
        settings={**fixed, **base},
        presets=experiment.presets,
        videos=str(where.videos) if where.videos else None,
        workers=where.workers,
        cpus_per_worker=where.cpus_per_worker,
        gpus_per_worker=where.gpus_per_trial / where.workers,
    )
    room = capacity(shared, where.max_concurrent)
    say(_plan_text(request, stream, experiment, space, search, room, decoded, where))
    parent = tracker.open_sweep(request.name, stream.name, {**experiment.settings, **_flat_search(search)}, {})
    plan = replace(shared, parent=parent, tags={"ctvr.role": "trial"})
    write_plan(plan, folder, request=asdict(request), num_tasks=len(stream.tasks))
    outcome = run_trials(plan, len(stream.tasks), search, space, paper, max_concurrent=where.max_concurrent)
    return _conclude(request, where, tracker, stream, outcome, parent)


def resume(name: str, where: Where) -> str:
    """Go on with an interrupted sweep: unfinished trials first, then what was to follow."""
    from orchestrator.ray_tune import SearchConfig, connect, read_plan, run_trials

    plan, kept = read_plan(where.folder(name), name)
    request = _read_request(kept["request"])
    places = where.places()
    stream = load_stream(request.stream, places.root, places.videos)
    tracker = where.tracker()
    prepare(tracker.uri, where.runs, stream.name)
    connect(where.address, where.local_cpus)
    search = build(SearchConfig, request.search or {}, "search")
    outcome = run_trials(plan, len(stream.tasks), search, search_space(request.method)[1], resume=True)
    return _conclude(request, where, tracker, stream, outcome, plan.parent)


def _read_request(kept: Mapping[str, Any]) -> SweepRequest:
    """A request as `write_plan` kept it: JSON has no tuples."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
    return SweepRequest(**values)


def _conclude(
    request: SweepRequest, where: Where, tracker: Tracker, stream: Stream, outcome: Any, parent: str | None
) -> str:
    if outcome.is_interrupted:
        raise Interrupted(
            f"sweep {request.name}: {outcome.unfinished} trials are unfinished. Go on with: "
            f"ctvr sweep --resume {request.name}" + (f" --runs {where.runs}" if str(where.runs) != "runs" else "")
        )
    if parent is not None:
        status = "FINISHED" if outcome.complete else "FAILED"
        tracker.set_tags(parent, {"ctvr.trials": str(outcome.trials), "ctvr.complete_trials": str(outcome.complete)})
        tracker.close(parent, status)
    lines = [
        f"sweep {request.name}: {outcome.trials} trials in {outcome.seconds:.0f} s: {outcome.complete} complete, "
        f"{outcome.stopped} stopped early, {outcome.failed} failed"
    ]
    if not outcome.complete:
        raise FailedRuns("\n".join([*lines, "no trial is complete, so there is no winner. `make ui` shows why."]))
    winner = best_trials(tracker, request.name, 1)[0]
    lines.append(
        f"best: {winner.name}, {GAIN} {last_value(winner, GAIN):+.2f} on {winner.tags.get('ctvr.split')} videos"
    )
    lines += [f"  {name} = {winner.settings.get(name)}" for name in search_space(request.method)[1]]
    if request.seeds:
        lines.append(rerun(request.name, where, request.top, request.seeds, request.baselines))
    return "\n".join(lines)


class Interrupted(RuntimeError):
    """The user stopped a sweep; it can be resumed."""


class FailedRuns(RuntimeError):
    """Runs were started and did not succeed."""


def last_value(run: RunRecord, key: str) -> float:
    """A metric's value at its last step; NaN if it was never recorded."""
    return run.metrics[key][-1][1] if run.metrics.get(key) else float("nan")


def best_trials(tracker: Tracker, sweep_name: str, top: int) -> list[RunRecord]:
    """The best complete trials of a sweep, by their gain over zero-shot after the last task.

    Raises:
        ConfigError: if the sweep is unknown or has no complete trial.
    """
    if tracker.find_sweep(sweep_name) is None:
        raise ConfigError(
            f"sweep: none is called {sweep_name!r} in {tracker.uri.split('@')[-1]}. `make ui` lists them."
        )
    complete = [run for run in tracker.find_runs(sweep=sweep_name) if run.tags.get("ctvr.complete") == "true"]
    if not complete:
        raise ConfigError(f"sweep {sweep_name}: no trial is complete. Resume it: ctvr sweep --resume {sweep_name}")
    return sorted(complete, key=lambda run: -last_value(run, GAIN))[:top]


def rerun(
    sweep_name: str, where: Where, top: int = 1, seeds: int = 3, baselines: Sequence[str] = (), keep_model: bool = True
) -> str:
    """Run the best trials of a sweep and the baselines again, over fresh seeds, on test videos; then tabulate."""
    from orchestrator.ray_train import TrialPlan
    from orchestrator.ray_tune import connect, run_trials

    tracker = where.tracker()
    winners = best_trials(tracker, sweep_name, top)
    stream_name = winners[0].settings["stream"]
    places = where.places()
    stream = load_stream(stream_name, places.root, places.videos)
    prepare(tracker.uri, where.runs, stream.name)
    configurations = rerun_settings(winners, stream, stream_name, seeds, baselines)
    experiment = resolve(configurations[0])
    make_ready(experiment, where, ("train", "test"))
    connect(where.address, where.local_cpus)
    name = f"{sweep_name}-final-{time.strftime('%m%d-%H%M%S')}"
    parent = tracker.open_sweep(name, stream.name, {"rerun_of": sweep_name, "seeds": seeds, "top": top}, {})
    trials = len(tracker.find_runs(sweep=sweep_name))
    plan = TrialPlan(
        sweep=name,
        root=str(where.runs.resolve()),
        store=where.store,
        tracking_uri=tracker.uri,
        parent=parent,
        storage=where.storage or str(where.folder(name)),
        videos=str(where.videos) if where.videos else None,
        workers=where.workers,
        cpus_per_worker=where.cpus_per_worker,
        gpus_per_worker=where.gpus_per_trial / where.workers,
        keep_model=keep_model,
        tags={
            "ctvr.role": "final",
            "ctvr.rerun_of": sweep_name,
            "ctvr.searched": f"{winners[0].settings['method']}:{trials}",
        },
    )
    say(f"rerun: {len(configurations)} runs of {len(configurations) // seeds} configurations over {seeds} seeds")
    outcome = run_trials(plan, len(stream.tasks), listed=configurations, max_concurrent=where.max_concurrent)
    if outcome.is_interrupted:
        raise Interrupted(
            f"rerun {name}: {outcome.unfinished} runs are unfinished. Go on with: ctvr rerun --sweep {sweep_name}"
        )
    tracker.close(parent, "FINISHED" if not outcome.failed else "FAILED")
    text = table(where, sweep=name)
    if outcome.failed:
        raise FailedRuns(f"{text}\n{outcome.failed} runs failed and are missing in the table. `make ui` shows why.")
    return text


def rerun_settings(
    winners: Sequence[RunRecord], stream: Stream, stream_name: str, seeds: int, baselines: Sequence[str]
) -> list[Settings]:
    """Complete settings of every rerun: baselines first, then the winners, each over fresh seeds."""
    configurations: list[Settings] = []
    for word in baselines:
        method, _, preset = word.partition(":")
        chosen = default_presets(method, stream, (preset,) if preset else ())
        configurations.append(resolve({"method": method, "stream": stream_name}, stream.settings, chosen).settings)
    configurations += [resolve(_as_given(winner.settings)).settings for winner in winners]
    return [
        {**settings, "evaluation.split": "test", "seed": FIRST_SEED + seed}
        for settings in configurations
        for seed in range(seeds)
    ]


def _as_given(settings: Mapping[str, Any]) -> Settings:
    """Settings as MLflow keeps them, lists written as on the command line."""
    return {name: str(value).strip("[]") if str(value).startswith("[") else value for name, value in settings.items()}


def table(where: Where, sweep: str | None = None, stream: str | None = None) -> str:
    """Write and return the table of a sweep's complete runs (or of every complete run of a stream)."""
    tracker = where.tracker()
    runs = tracker.find_runs(stream=stream, sweep=sweep)
    if not runs:
        raise ConfigError(f"table: no runs of {sweep or stream!r} in {tracker.uri.split('@')[-1]}.")
    made = report.build(tracker, runs)
    folder = where.runs.resolve() / "tables" / (sweep or stream or "all")
    files = report.write(made, folder)
    return f"{report.to_markdown(made)}\n\nwritten: {', '.join(str(file) for file in files)}"


def _flat_search(search: Any) -> Settings:
    return {f"search.{name}": value for name, value in asdict(search).items()}


def _plan_text(
    request: SweepRequest,
    stream: Stream,
    experiment: Experiment,
    space: Mapping[str, Any],
    search: Any,
    room: Any,
    decoded: int,
    where: Where,
) -> str:
    """What will happen, before it does."""
    recommended = ", ".join(f"{name}={value}" for name, value in stream.settings.items())
    lines = [
        f"sweep {request.name}: {request.method} on {stream.name}, {len(stream.tasks)} tasks",
        f"  trials     {search.trials} by {search.searcher}, {search.scheduler}; {room.concurrent} at once",
        f"  resources  {where.workers} workers each, on {room.cpus:g} CPUs and {room.gpus:g} GPUs",
        f"  searches   {', '.join(space)} on {experiment.evaluation.split} videos",
        f"  presets    {', '.join(experiment.presets) or 'paper'}",
        f"  stream     recommends {recommended or 'nothing'}",
        f"  videos     {decoded} decoded now, the rest was in the store",
        f"  tracking   {where.tracker().uri.split('@')[-1]}",
    ]
    if mark := stream.settings_mark:
        lines.append(f"  note       {mark}")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------- the store


def build_cache(stream_name: str, overrides: Settings, where: Where) -> str:
    """Decode every video of a stream into the store, as a run with these settings would find them."""
    places = where.places()
    stream = load_stream(stream_name, places.root, places.videos)
    experiment = resolve({"method": "zero_shot", "stream": stream_name, **overrides}, stream.settings)
    splits = ("train", "val", "test") if stream.has_val else ("train", "test")
    source = FrameSource(places.open_store(), experiment.data, load_clip(experiment.backbone).image_size)
    stream, decoded = prepare_stream(stream, source, splits, experiment.data.skip_missing)
    return f"stream {stream.name}: {decoded} videos decoded, the rest was in the store"


def verify_cache(where: Where) -> str:
    """Read every object and check its digest; damaged ones are removed and will be made again."""
    bad = [f"{name}: {problem}" for name, problem in where.places().open_store().verify(remove=True) if problem]
    listed = "".join(f"\n  {line}" for line in bad[:20])
    return f"{len(bad)} damaged objects, removed{listed}" if bad else "every object is sound"


def list_cache(where: Where) -> str:
    """Number of objects of each kind, and their size in all."""
    store = where.places().open_store()
    kinds = ("frames", "weights", "gallery", "commits")
    lines = [f"{kind:<10}{len(store.list(kind)):8d}" for kind in kinds]
    return "\n".join([*lines, f"{'all':<10}{store.size().objects:8d}, {store.size().bytes / 2**20:.1f} MiB"])
