"""The rerun: winners of searches and baselines run again over fresh seeds, on test videos; tables are made of that.

A rerun is an MLflow parent run `NAME-final-...`, whose name is a digest of all that decides its results: the
same winners, seeds, code and data are the same rerun. One that was interrupted goes on, and what is
complete is not run again.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.config import Settings
from orchestrator.console import say
from orchestrator.digests import digest_of
from orchestrator.errors import ConfigError, FailedRuns
from orchestrator.jobs.deployment import Deployment
from orchestrator.jobs.methods import default_presets
from orchestrator.jobs.ready import make_all_ready
from orchestrator.jobs.session import check_machine, connected, interruptible, send_waiting, trial_plan
from orchestrator.jobs.table import table
from orchestrator.learning.experiment import Experiment
from orchestrator.learning.resolve import find, presets_of, resolve
from orchestrator.learning.run import trains
from orchestrator.on_ray.plan import GAIN, MEAN, ListedRun, TrialPlan, label_of, read_plan
from orchestrator.on_ray.tune import run_listed
from orchestrator.on_ray.wave_search import NUMBER
from orchestrator.streams.load import load_stream
from orchestrator.streams.stream import Stream
from orchestrator.tables.build import Direction, seconds_of
from orchestrator.tables.presets import split_row
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.values import RunRecord

FIRST_SEED = 1  # of reruns; trials of a search use seed 0, and a seed that one used is left out
RULES = {GAIN: "R@1 gain over zero-shot", MEAN: "R@1, the mean over tasks"}
OVERRIDES = "ctvr.overrides"  # tag of a sweep's parent run: what its user gave, as JSON


@dataclass(frozen=True)
class Rerun:
    """One run of a rerun, and what its record says beside the settings."""

    experiment: Experiment
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return label_of(self.experiment.settings, self.experiment.name)

    def listed(self) -> ListedRun:
        return ListedRun(self.label, self.experiment.settings, self.experiment.presets, self.tags)


# --------------------------------------------------------------------------------------------- the winners


def last_value(run: RunRecord, key: str) -> float:
    """A metric's value at its last step; NaN if it was never recorded."""
    last = run.last(key)
    return last[1] if last else float("nan")


def selection(sweep: RunRecord) -> tuple[str, str]:
    """What a sweep's winner is the best by: (metric, "max" or "min")."""
    return str(sweep.settings.get("search.metric", GAIN)), str(sweep.settings.get("search.mode", "max"))


def best_trials(tracker: Tracker, sweep_name: str, top: int) -> list[RunRecord]:
    """The best complete trials of a sweep, by the metric it was searched for, after the last task.

    Raises:
        ConfigError: if the sweep is unknown or has no complete trial.
    """
    sweep = tracker.find_sweep(sweep_name)
    if sweep is None:
        raise ConfigError(
            f"sweep: none is called {sweep_name!r} in {tracker.uri.split('@')[-1]}. `ctvr ui` lists them."
        )
    complete = tracker.find_runs(sweep=sweep_name, tags={"ctvr.complete": "true"})
    if not complete:
        raise ConfigError(f"sweep {sweep_name}: no trial is complete. Resume it: ctvr sweep --resume {sweep_name}")
    metric, mode = selection(sweep)

    def best_first(run: RunRecord) -> tuple[float, str]:
        """Of equal trials the one that was suggested first; under ASHA, which numbers none, by the settings."""
        value = last_value(run, metric)
        rank = math.inf if math.isnan(value) else value if mode == "min" else -value
        settings = digest_of({name: str(setting) for name, setting in run.settings.items()})
        return rank, run.tags.get(NUMBER, "~") + settings

    return sorted(complete, key=best_first)[:top]


def winner(run: RunRecord) -> Experiment:
    """The configuration of a complete trial, as MLflow has it."""
    presets = [name for name in run.tags.get("ctvr.presets", "").split(",") if name]
    return resolve(_as_given(run.settings), None, presets)


def _as_given(settings: Mapping[str, Any]) -> Settings:
    """Settings as MLflow keeps them, lists written as on the command line."""
    return {name: str(value).strip("[]") if str(value).startswith("[") else value for name, value in settings.items()}


def common(overrides: Mapping[str, Any]) -> Settings:
    """The settings that a user gave for a sweep and that hold for its baselines too: all but the method's own."""
    return {
        name: value
        for name, value in overrides.items()
        if name.split(".")[0] in {"backbone", "data", "optim", "evaluation", "precision", "threads"}
    }


def baseline(word: str, stream: Stream, stream_name: str, shared: Settings, workers: int) -> Experiment:
    """A method named as `method` or `method:preset,preset`, under the settings that a sweep's user gave.

    Raises:
        ConfigError: if there is no such method or preset.
    """
    method, presets = split_row(word)
    find(method)
    chosen = default_presets(method, stream, presets)
    return resolve({**shared, "method": method, "stream": stream_name, "workers": workers}, stream.settings, chosen)


def baseline_rows(words: Sequence[str]) -> list[str]:
    """Baselines that were listed by comma: a word that is a preset of the row before it belongs to that row.

    `lwf:original,framefusion_moe:no-ffa,no-tame` are two rows. To list a method that has the name of such a preset,
    put it first.

    Raises:
        ConfigError: if there is no such method.
    """
    rows: list[str] = []
    for word in words:
        method = rows[-1].partition(":")[0] if rows and ":" in rows[-1] else ""
        if method and word in presets_of(method):
            rows[-1] += f",{word}"
        else:
            rows.append(word)
    return rows


def used_seeds(trials: Sequence[RunRecord]) -> frozenset[int]:
    """The seeds of trials."""
    return frozenset(int(run.settings["seed"]) for run in trials if "seed" in run.settings)


def over_seeds(found: Sequence[Rerun], seeds: int, workers: int, used: frozenset[int] = frozenset()) -> list[Rerun]:
    """Each over fresh seeds on test videos, once where nothing is trained; what is listed twice runs once.

    `used` are the seeds of the trials that were chosen among: none of them is taken.
    """
    free = itertools.islice((seed for seed in itertools.count(FIRST_SEED) if seed not in used), seeds)
    fresh_seeds = list(free)
    runs: dict[str, Rerun] = {}
    for each in found:
        for seed in fresh_seeds if trains(each.experiment) else fresh_seeds[:1]:
            fresh = {"evaluation.split": "test", "seed": seed, "workers": workers}
            made = resolve({**each.experiment.settings, **fresh}, None, each.experiment.presets)
            runs[digest_of(made.settings)] = replace(each, experiment=made)  # a winner's tags stay, not a baseline's
    return list(runs.values())


def searched_tags(method: str, trials: Sequence[RunRecord], metric: str) -> dict[str, str]:
    """What a winner's reruns say of its search: how many trials it had, how long they took, how it was chosen."""
    split = next((run.tags["ctvr.split"] for run in trials if "ctvr.split" in run.tags), "val")
    return {
        "ctvr.searched": f"{method}:{len(trials)}",
        "ctvr.search_seconds": f"{sum(seconds_of(run) for run in trials):.1f}",
        "ctvr.selection": f"{RULES.get(metric, metric)} on {split} videos",
    }


def unsearched_tags(method: str) -> dict[str, str]:
    """What the reruns of a configuration that was not searched say: nothing was chosen."""
    return {"ctvr.searched": f"{method}:0"}


def beside_winners(
    baselines: Sequence[Experiment],
    winners: Sequence[RunRecord],
    trials: Sequence[RunRecord],
    metric: str,
    seeds: int,
    workers: int,
) -> list[Rerun]:
    """Every run of a sweep's rerun: the baselines first, then the winners among `trials`, each over its seeds."""
    found = [Rerun(each, unsearched_tags(each.name)) for each in baselines]
    for best in map(winner, winners):
        found.append(Rerun(best, searched_tags(best.name, trials, metric)))
    return over_seeds(found, seeds, workers, used_seeds(trials))


# ----------------------------------------------------------------------------------------------- the rerun


def rerun(
    sweep_name: str,
    where: Deployment,
    top: int = 1,
    seeds: int = 3,
    baselines: Sequence[str] = (),
    direction: Direction = "t2v",
    keep_model: bool = True,
) -> str:
    """Run the best trials of a sweep and the baselines again, over fresh seeds, on test videos; then tabulate."""
    if top < 1 or seeds < 1:
        raise ConfigError(f"--top and --seeds must be >= 1, got {top} and {seeds}.")
    tracker = where.tracker()
    check_machine(where, sweep_name)
    winners = best_trials(tracker, sweep_name, top)
    sweep = tracker.find_sweep(sweep_name)
    assert sweep is not None  # best_trials has found it
    stream_name = winners[0].settings["stream"]
    places = where.places()
    stream = load_stream(stream_name, places.root, places.videos)
    given = _overrides_of(sweep, where)
    if given is None and baselines:
        raise ConfigError(
            f"--baselines {','.join(baselines)}: it is not known which settings sweep {sweep_name} was given, so they "
            "would train with others than its winners. Rerun it where it was started, or without --baselines."
        )
    shared = common(given or {})
    beside = [baseline(word, stream, stream_name, shared, where.workers) for word in baseline_rows(baselines)]
    trials = tracker.find_runs(sweep=sweep_name)
    runs = beside_winners(beside, winners, trials, selection(sweep)[0], seeds, where.workers)
    again = f"ctvr rerun --sweep {sweep_name} --top {top} --seeds {seeds}"
    again += f" --baselines {','.join(baselines)}" if baselines else ""
    again += f" --direction {direction}" if direction != "t2v" else ""
    settings: Settings = {"rerun_of": sweep_name, "seeds": seeds, "top": top}
    settings |= {"baselines": ",".join(baselines)} if baselines else {}
    return run_again(sweep_name, runs, where, tracker, settings, again, direction, keep_model)


def run_again(
    sweep_name: str,
    runs: Sequence[Rerun],
    where: Deployment,
    tracker: Tracker,
    settings: Settings,
    again: str,
    direction: Direction = "t2v",
    keep_model: bool = True,
) -> str:
    """Run a list in parallel, less what is complete already, and write the table of it.

    Args:
        sweep_name: what is rerun.
        runs: of one stream.
        settings: of the parent run.
        again: the command that goes on after an interruption.
        direction: what the table shows.

    Raises:
        FailedRuns: with the table of the others, if some failed.
    """
    experiments = [run.experiment for run in runs]
    ready = make_all_ready(experiments, where, ("train", "test"), curve=False)
    if decoded := sum(each.decoded for each in {id(each): each for each in ready}.values()):
        say(f"{decoded} videos decoded")
    stream = ready[0].stream
    identity = [run.key(each.stream, each.frames) for run, each in zip(experiments, ready)]
    name = f"{sweep_name}-final-{digest_of(identity)[:6]}"
    parent = tracker.open_sweep(name, stream.name, settings, {})
    tags = {"ctvr.role": "final", "ctvr.rerun_of": sweep_name}
    failed = 0
    with interruptible(f"rerun {name}", again, where, tracker, [parent]):
        left = not_complete(runs, name, tracker)
        say(f"rerun {name}: {len(runs)} runs, {len(runs) - len(left)} of them complete already")
        if left:
            with connected(where, tracker) as there:
                if not there.gpus_per_trial:
                    make_all_ready([run.experiment for run in left], there, ("train", "test"), curve=True)
                plan = replace(trial_plan(there, name, tracker), parent=parent, tags=tags, keep_model=keep_model)
                failed = _run_all(plan, left, len(stream.tasks), there)
    tracker.close(parent, "FAILED" if failed else "FINISHED")
    if waiting := send_waiting(tracker):
        raise FailedRuns(
            f"{waiting} records wait because MLflow does not answer, so there is no table. Start it again, then: "
            f"ctvr sync; {again}"
        )
    if failed == len(runs):
        raise FailedRuns(f"rerun {name}: all {failed} runs failed. `ctvr ui` shows why.")
    text = table(where, sweep=name, direction=direction)
    if failed:
        raise FailedRuns(f"{text}\n{failed} runs failed and are missing in the table. `ctvr ui` shows why.")
    return text


def _run_all(plan: TrialPlan, runs: Sequence[Rerun], num_tasks: int, where: Deployment) -> int:
    """Run experiments on the connected cluster; returns how many failed."""
    listed = [run.listed() for run in runs]
    outcome = run_listed(plan, num_tasks, listed, where.max_concurrent)
    if outcome.is_interrupted:  # Ray Tune ends in order on Ctrl-C, and returns
        raise KeyboardInterrupt
    return outcome.failed


def not_complete(runs: Sequence[Rerun], name: str, tracker: Tracker) -> list[Rerun]:
    """The runs of the rerun `name` that have no complete record."""
    complete = tracker.find_runs(sweep=name, tags={"ctvr.complete": "true"})
    done = {run.tags.get("ctvr.trial") for run in complete}
    return [run for run in runs if f"{name}-{run.label}" not in done]


def _overrides_of(sweep: RunRecord, where: Deployment) -> Settings | None:
    """What the user gave for a sweep: as its parent run has it, else this machine's plan of it; None if unknown."""
    if OVERRIDES in sweep.tags:
        return dict(json.loads(sweep.tags[OVERRIDES]))
    if not (where.folder(sweep.name) / "plan.json").is_file():
        return None
    kept = read_plan(where.folder(sweep.name), sweep.name)[1]
    return dict(kept.get("request", {}).get("overrides", {}))
