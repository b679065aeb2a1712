"""Search of a method's settings. A sweep `NAME` is an MLflow parent run with one child per trial.

`sweeps.rerun` repeats the winners over new seeds, `sweeps.table_sweep` searches tables, `sweeps.resume` resumes both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ctvr.methods.base import Override
from ctvr.orchestrator.config import Settings, build
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError, RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.presets import get_method, preset_settings, presets_of
from ctvr.orchestrator.learning.protocols import protocol_of
from ctvr.orchestrator.learning.resolve import check_domain, resolve
from ctvr.orchestrator.learning.run import check_streams
from ctvr.orchestrator.on_ray.capacity import capacity, final_concurrency
from ctvr.orchestrator.on_ray.plan import SearchConfig, SearchOutcome, TrialPlan, brackets_for, write_plan
from ctvr.orchestrator.on_ray.search import count_listed, count_trials, describe_space, override_space
from ctvr.orchestrator.on_ray.search_space import Condition, SearchSpace, parse_condition, parse_values, within
from ctvr.orchestrator.on_ray.tune import can_resume, run_search
from ctvr.orchestrator.streams.metric_names import COSTS
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps import mlflow_notes
from ctvr.orchestrator.sweeps.confirm import candidates, confirm
from ctvr.orchestrator.sweeps.driver import only_driver
from ctvr.orchestrator.sweeps.epoch_rungs import epochs_compared
from ctvr.orchestrator.sweeps.plan_text import describe_best, describe_sweep, flat_search
from ctvr.orchestrator.sweeps.preflight import forbid_seed
from ctvr.orchestrator.sweeps.preparation import prepare_run
from ctvr.orchestrator.sweeps.rerun import OVERRIDES, baseline, baseline_rows, rerun, shared_overrides
from ctvr.orchestrator.sweeps.run_names import require_free_name
from ctvr.orchestrator.sweeps.search_bounds import apply_conditions, clip_to_backbone, meeting
from ctvr.orchestrator.sweeps.search_spaces import (
    default_metric,
    default_presets,
    depth_settings,
    later_task_settings,
    search_conditions,
    search_space,
    upper_bounds,
)
from ctvr.orchestrator.sweeps.selection import SPACE, best_trials, expand_task_orders, have_no_winner
from ctvr.orchestrator.sweeps.session import (
    check_machine,
    close_search,
    flush_outbox,
    interruptible,
    ray_cluster,
    resume_options,
    trial_plan,
    warn_unsent,
)
from ctvr.orchestrator.sweeps.trust import resume_command
from ctvr.orchestrator.tables.shown_columns import Direction
from ctvr.orchestrator.tracking.mirror import check_mirror
from ctvr.orchestrator.tracking.tracker import Tracker

MOST_OF_FRONT = 8  # trials of a Pareto front that are confirmed by default


@dataclass(frozen=True)
class SweepRequest:
    """Request of `ctvr sweep`."""

    method: str
    stream: str
    name: str
    overrides: Settings
    presets: tuple[str, ...] = ()
    search: Settings | None = None  # settings of SearchConfig
    space: tuple[str, ...] = ()  # `name=v1,v2 [where other=w1,w2]`: the only settings that are searched
    space_add: tuple[str, ...] = ()  # `name=v1,v2`: searched together with the method's search space
    top: int = 1
    seeds: int = 0  # > 0: rerun the winners and write a table
    baselines: tuple[str, ...] = ()
    direction: Direction = "t2v"  # retrieval direction of the table
    orders: int = 1  # number of task orders in the rerun


@dataclass(frozen=True)
class PlannedSweep:
    """A checked request with the components of its trials."""

    request: SweepRequest
    stream: Stream
    experiment: Experiment  # a trial's experiment, except the searched settings
    fixed_settings: Settings  # settings shared by all trials, from the user and the search space
    space: dict[str, Any]
    paper_point: dict[str, Any]
    search: SearchConfig
    conditions: dict[str, Condition] = field(
        default_factory=dict
    )  # setting -> its condition; others are always searched

    @property
    def recommended(self) -> dict[str, Any]:
        """Return the recommended point of the space; numbers of blocks are limited to those of the tower."""
        settings = self.experiment.settings
        point = {name: settings[name] for name in self.space if name in settings}  # excludes settings of other variants
        for name in point.keys() & set(depth_settings(self.request.method)):
            point[name] = min(point[name], max(self.space[name].categories))
        return point

    def unsearched(self, workers: int) -> Experiment:
        """Return the experiment of the recommended settings, as in the search's first trial."""
        full = {**self.fixed_settings, **self.recommended, "workers": workers}
        return resolve(full, self.stream.settings, self.experiment.presets)

    def filling(self, places: float) -> PlannedSweep:
        """Set the number of concurrent brackets so that they fill `places` trials, unless the user gave a number.

        The number becomes part of the request, which the sweep's plan records.
        """
        if self.search.brackets_at_once:
            return self
        trials = count_trials(self.search, self.searched)
        number = brackets_for(self.search, trials, self.epochs or len(self.stream.tasks), places)
        request = replace(self.request, search={**(self.request.search or {}), "brackets_at_once": number})
        return replace(self, request=request, search=replace(self.search, brackets_at_once=number))

    @property
    def epochs(self) -> int:
        """Return the number of epochs of a trial if trials are compared after epochs, else 0."""
        if not self.experiment.evaluation.every_epoch:
            return 0
        return epochs_compared(self.search, self.experiment, len(self.stream.method_tasks), self.space)

    @property
    def searched(self) -> SearchSpace:
        later = tuple(name for name in later_task_settings(self.request.method) if name in self.space)
        later = later if len(self.stream.tasks) > 1 else ()  # trials that differ only in unread settings are one model
        bounds = upper_bounds(self.request.method)
        words = (*self.request.space, *self.request.space_add)
        listed = tuple(name for name in (parse_values(word)[0] for word in words) if name in self.space)
        points = self.paper_point, self.recommended, self.stream.settings
        return SearchSpace(self.space, *points, later, bounds, listed, self.conditions)


def plan_sweep(request: SweepRequest, execution: ExecutionConfig) -> PlannedSweep:
    """Check a sweep's request before anything starts.

    Raises:
        ConfigError: for a setting, preset or baseline that cannot run.
    """
    get_method(request.method)
    listed = [parse_values(word)[0] for word in (*request.space, *request.space_add)]
    forbid_seed([*request.overrides, *listed])
    if twice := next((name for name in listed if name in request.overrides or listed.count(name) > 1), None):
        raise ConfigError(f"--space {twice}: is given twice. List all its values once, and omit {twice}=VALUE.")
    if request.top < 1 or request.seeds < 0:
        raise ConfigError(
            f"must be >= 1 and --seeds >= 0, got {request.top} and {request.seeds}", "--top", remedy="Write --top 1."
        )
    expand_task_orders((), request.orders)
    stream = execution.load_stream(request.stream, render=False)
    check_domain(request.method, stream)
    metric = default_metric(request.method, protocol_of(stream).kind)
    asked = {**metric, **(request.search or {})}
    if "," in str(asked["metric"]):
        asked.setdefault("confirm", MOST_OF_FRONT)
    search = build(SearchConfig, asked, "search", dotted=False)
    presets = default_presets(request.method, stream, request.presets)
    space, paper, given = _searched(request, stream, presets)
    if not space:
        raise ConfigError(f"sweep: all settings of {request.method} are fixed, so none is searched. Use `ctvr run`.")
    full = {**given, "workers": execution.workers}
    if any(name.startswith(COSTS) for name in search.metrics) and "evaluation.costs" not in full:
        given["evaluation.costs"] = full["evaluation.costs"] = True
    experiment = resolve(full, stream.settings, presets)
    if "evaluation.every_epoch" not in full and epochs_compared(search, experiment, len(stream.method_tasks), space):
        given["evaluation.every_epoch"] = full["evaluation.every_epoch"] = True
        experiment = resolve(full, stream.settings, presets)
    check_mirror(experiment.tracking.mirror)
    check_streams(experiment, stream, execution.places())
    if stream.has_val and experiment.evaluation.split == "test":
        raise ConfigError(
            f"a sweep selects settings on the validation videos of {stream.name}",
            "evaluation.split=test",
            remedy="Omit it.",
        )
    space = clip_to_backbone(request.method, space, experiment, (*request.space, *request.space_add))
    conditions = {} if request.space else search_conditions(request.method)
    conditions |= dict(filter(None, map(parse_condition, (*request.space, *request.space_add))))
    space, conditions = apply_conditions(space, conditions, experiment.settings, listed)
    given["method"] = experiment.run.method  # for a named configuration the method; its preset is in `presets`
    bounds = upper_bounds(request.method)
    known = space.keys() & experiment.settings.keys()
    bounded = {name: experiment.settings[name] for name in {*bounds, *bounds.values()} & known}
    for name, domain in space.items():
        for value in getattr(domain, "categories", None) or [domain.sample()]:
            point = {**bounded, **meeting(name, conditions), name: value}
            resolve({**full, **within(point, bounds)}, stream.settings, presets)
    for word in baseline_rows(request.baselines):
        baseline(word, stream, request.stream, shared_overrides(request.overrides), execution.workers)
    planned = PlannedSweep(request, stream, experiment, given, space, paper, search, conditions)
    chosen = (request.search or {}).get("searcher", "auto") != "auto"
    if not chosen and count_listed(planned.searched) <= search.trials:
        planned = replace(planned, search=replace(search, searcher="grid"))
    return planned


def _searched(
    request: SweepRequest, stream: Stream, presets: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any], Settings]:
    """Return the searched space, the paper's point in it, and the settings that all trials share.

    Settings that the user or an ablation fixes are not searched. A recipe overrides the space's fixed settings.
    """
    fixed, own, paper = search_space(request.method)
    space = override_space({} if request.space else own, (*request.space, *request.space_add))
    for name in preset_settings(request.method, presets, request.overrides, stream.settings):
        fixed.pop(name, None)
    known = presets_of(request.method)
    changes = [known[preset] for preset in presets if isinstance(known.get(preset), Override)]
    changed = {name for settings in changes for name in settings}
    split = "val" if stream.has_val else "test"
    given = {**fixed, "evaluation.split": split, **request.overrides}
    given.update({"method": request.method, "stream": request.stream})
    return {name: domain for name, domain in space.items() if name not in {*request.overrides, *changed}}, paper, given


def sweep(request: SweepRequest, execution: ExecutionConfig) -> str:
    """Search a method's settings, then rerun the winners and the baselines if requested."""
    require_free_name(request.name, execution)
    execution.check()
    request = replace(request, stream=find_manifest(request.stream))
    planned = plan_sweep(request, execution)
    check_machine(execution, request.name, [planned.experiment])
    with only_driver(execution.folder(request.name), request.name):
        require_free_name(request.name, execution)  # checked again: another driver may have started first
        return _search(planned, execution, None)


def read_request(name: str, kept: Mapping[str, Any]) -> SweepRequest:
    """Restore a request from a plan, with lists as tuples.

    Raises:
        ConfigError: if another version wrote the plan.
    """
    values = dict(kept)
    if "space_add" not in values:  # before 0.3, --space extended the method's search space
        values |= {"space": (), "space_add": values.get("space", ())}
    try:
        return build(SweepRequest, values, dotted=False)
    except ConfigError as error:
        raise ConfigError(
            f"its plan is of another version ({str(error)[:300]})", f"sweep {name}", remedy="Start a new sweep."
        ) from error


def resume_sweep(name: str, plan: TrialPlan, kept: Mapping[str, Any], execution: ExecutionConfig) -> str:
    """Resume an interrupted sweep with its unfinished trials.

    Args:
        plan, kept: the sweep's plan, read by `on_ray.plan.read_plan`.
        execution: settings of the first command, on the current cluster.

    Raises:
        ConfigError: if another version wrote the plan.
    """
    return _search(plan_sweep(read_request(name, kept.get("request", {})), execution), execution, plan)


def _search(planned: PlannedSweep, execution: ExecutionConfig, plan: TrialPlan | None) -> str:
    """Run the search of a checked sweep, then its confirmation and rerun. `plan`: an interrupted sweep's plan."""
    request, stream = planned.request, planned.stream
    with ray_cluster(execution) as execution:
        is_new = plan is None
        if plan is None:
            plan = trial_plan(execution, request.name, [planned.experiment])
            plan = replace(plan, settings=planned.fixed_settings, epochs=planned.epochs)
            plan = replace(plan, presets=planned.experiment.presets, tags={"ctvr.role": "trial"})
        plan = replace(plan, max_nodes=execution.max_nodes)
        room = capacity(plan, execution.max_concurrent)
        if is_new:  # a resumed search must propose the same trials again
            planned = planned.filling(final_concurrency(plan, room, execution.max_concurrent))
            request = planned.request
        ready = prepare_run(planned.experiment, execution, stream.splits, not execution.gpus_per_trial, on_cluster=True)
        stream = ready.stream
        tracker = execution.tracker(stream.name)  # created only now, so that a refusal leaves no database
        say(describe_sweep(planned, room, ready.decoded, execution, tracker))
        if ready.zero_shot:
            split = planned.experiment.evaluation.split
            say(f"  zero-shot  R@1 {ready.zero_shot[-1]:.2f} on {split} videos, without training")
        settings = {**planned.experiment.settings, **flat_search(planned.search)}
        tags = {OVERRIDES: json.dumps(request.overrides), SPACE: json.dumps(describe_space(planned.space))}
        parent = tracker.open_sweep(request.name, stream.name, settings, tags)
        question = f"Which settings of {request.method} are best on {stream.name}?"
        mlflow_notes.write_sweep_note(tracker, parent, request.name, question, planned.search, planned.space)
        plan = replace(plan, parent=parent, root=str(execution.places().root), tracking_uri=tracker.uri)
        if can_resume(plan):
            say("resumed: finished tasks are kept")
        kept = {"request": asdict(request), "num_tasks": len(stream.tasks), "where": resume_options(execution)}
        write_plan(plan, execution.folder(request.name), **kept)
        again = resume_command(request.name)
        with interruptible(f"sweep {request.name}", again, execution, tracker, [parent]):
            outcome = run_search(plan, len(stream.tasks), planned.search, planned.searched, execution.max_concurrent)
            if outcome.is_interrupted:  # on Ctrl-C Ray Tune stops cleanly and returns
                raise KeyboardInterrupt
            return _conclude(planned, execution, tracker, outcome, parent)


def _conclude(
    planned: PlannedSweep, execution: ExecutionConfig, tracker: Tracker, outcome: SearchOutcome, parent: str
) -> str:
    """Close the parent run of a search, select the winner, confirm it and rerun it."""
    request = planned.request
    close_search(tracker, parent, outcome)
    lines = [
        f"sweep {request.name}: {outcome.trials} trials in {outcome.seconds:.0f} s: {outcome.complete} complete, "
        f"{outcome.stopped} stopped early, {outcome.failed} failed",
        outcome.executions,
    ]
    if not outcome.complete:
        warn_unsent(tracker)
        raise RunsFailed("\n".join([*lines, "no trial is complete, so no winner is selected. `ctvr ui` shows why."]))
    if waiting := flush_outbox(tracker):
        lines += [
            f"{waiting} records wait because MLflow does not respond, so no winner can be selected.",
            f"Restart MLflow, then: ctvr sync; ctvr rerun --sweep {request.name}",
        ]
        raise RunsFailed("\n".join(lines))
    trials = best_trials(tracker, request.name, None)
    lines += describe_best(planned, trials, planned.unsearched(execution.workers).settings)
    mlflow_notes.annotate_search(tracker, parent, request.name, planned.space, planned.search)
    if planned.search.confirm:
        listed = candidates(tracker, request.name, planned.unsearched(execution.workers), planned.search)
        only = "complete" if len(planned.search.metrics) == 1 else "on the Pareto front"
        why = f"only the recommended trial is {only}"
        why = "all trials are equal" if have_no_winner(trials, planned.search.metric) else why
        say("\n".join(lines) if listed else f"confirmation: skipped, because {why}")
        again = resume_command(request.name)
        verdicts = confirm(request.name, listed, len(planned.stream.tasks), execution, tracker, planned.search, again)
        lines += [verdict.text for verdict in verdicts.values()]
        mlflow_notes.append_confirmation(tracker, parent, [verdict.text for verdict in verdicts.values()])
    if request.seeds:
        counts, orders = (request.top, request.seeds), request.orders
        lines.append(rerun(request.name, execution, *counts, request.baselines, request.direction, orders))
    return "\n".join(lines)
