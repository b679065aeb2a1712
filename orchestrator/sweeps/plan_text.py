"""Texts that describe a sweep or table before it starts, and the outcome of its searches."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import count
from ctvr.orchestrator.on_ray.plan import GROUPED_FROM, Capacity, SearchConfig, SearchOutcome
from ctvr.orchestrator.on_ray.search_budget import FREE_FROM, MODELLED, count_random_trials, fill_brackets, inform_half
from ctvr.orchestrator.on_ray.search_space import SearchSpace, is_grouped
from ctvr.orchestrator.on_ray.search_time import task_times
from ctvr.orchestrator.sweeps.comparison import describe_mde, last_value
from ctvr.orchestrator.sweeps.epoch_rungs import describe_rungs
from ctvr.orchestrator.sweeps.front import describe_front, front_of
from ctvr.orchestrator.sweeps.measured_memory import memory_text
from ctvr.orchestrator.sweeps.plan import SweepPlan, stream_names
from ctvr.orchestrator.sweeps.planned_search import PlannedSearch
from ctvr.orchestrator.sweeps.search_spaces import search_space
from ctvr.orchestrator.sweeps.selection import (
    Rerun,
    describe_metric,
    expand_seeds,
    expand_task_orders,
    have_no_winner,
    result_text,
)
from ctvr.orchestrator.sweeps.session import (
    batch_lines,
    describe_concurrency,
    precision_lines,
    resources_text,
    sharing_lines,
)
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text

if TYPE_CHECKING:
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.tracking.tracker import Tracker


def describe_confirmation(search: SearchConfig) -> str:
    """Describe the confirmation of the best trials, or of the trials on the Pareto front."""
    if not search.confirm:
        return f"nothing: the {'Pareto front' if len(search.metrics) > 1 else 'best trial'} is accepted without a test"
    if len(search.metrics) > 1:
        return (
            f"up to {search.confirm} trials of the Pareto front and the recommended settings over "
            f"{search.confirm_seeds} new seeds on the same videos, from which the front is computed again"
        )
    return (
        f"the best {search.confirm} and the recommended settings over {search.confirm_seeds} new seeds on the same "
        "videos; the recommended settings are kept unless a trial wins"
    )


def describe_scheduler(search: SearchConfig, num_tasks: int, epochs: Iterable[int] = ()) -> str:
    """Describe how trials are started and stopped on a stream of `num_tasks` tasks; `epochs`: see `describe_rungs`."""
    how = f" in brackets of {search.bracket_size}"
    if search.depends_on_timing:
        known = f"the trials up to {search.lag} before it" if search.lag else "ended brackets"
        how = f", which depends on timing; each trial proposed from {known}"
    elif search.lag:
        how = f", each trial compared with the {search.bracket_size - 1} before it, lag {search.lag}"
    elif search.brackets_at_once > 1:
        how += f", {search.brackets_at_once} brackets at once"
    text = f"scheduler {search.scheduler}{how} (points that train the same model are one trial)"
    return text + describe_rungs(search, num_tasks, epochs)


def most_at_once(search: SearchConfig, trials: int, rows: int = 1) -> int:
    """Return the number of trials that a search, or all `rows` searches of a table, can run at once."""
    return rows * min(trials, trials if search.lag else max(1, search.brackets_at_once) * search.bracket_size)


def describe_searcher(search: SearchConfig, trials: int) -> str:
    """Describe how trials are proposed; "at random" if TPE proposes all trials before it has enough results."""
    if search.searcher not in MODELLED:
        return f"by {search.searcher}"
    count = count_random_trials(search, trials)
    return "at random" if count >= trials else f"by {search.searcher} (the first {count} at random)"


def describe_choice(plan: SweepPlan, places: int) -> list[str]:
    """Return a line with two options for a search, if the cluster is large for it.

    The first option is faster. In the second option, more trials are suggested from earlier results.

    Args:
        plan: the sweep.
        places: number of worker slots, that is, of trials that the cluster can run at once.
    """
    config, trials, rows = plan.search_config, plan.trials_per_row, len(plan.searches)
    share = places / max(1, rows)
    if config.searcher not in MODELLED or not GROUPED_FROM <= trials < FREE_FROM * share:
        return []
    ways = list[str]()
    for way in fill_brackets(config, trials, plan.length, share), inform_half(config, trials, share):
        name = f"search.lag={way.lag}" if way.lag else f"search.brackets_at_once={way.brackets_at_once}"
        known = trials - count_random_trials(way, trials)
        times = task_times(way, trials, plan.length, places, rows)
        unit = "an epoch" if plan.length != len(plan.stream.tasks) else "a task"
        time = f"{times:.1f} x" if ways else f"{times:.1f} x the time of {unit}"
        used = " (used)" if (way.lag, way.brackets_at_once) == (config.lag, config.brackets_at_once) else ""
        found = f"{known} of {trials} trials informed" if known else "all trials at random"
        ways.append(f"{name}{used}: {time}, {found}")
    return [f"  choice     {'; '.join(ways)} (simulated)"]


def describe_groups(search: SearchConfig, searched: SearchSpace) -> str:
    """Describe the trials of a grouped search that share their first task, or why none do; "" for other searchers."""
    if search.searcher != "grouped_tpe":
        return ""
    if not is_grouped(search, searched):
        return " (as tpe: task 1 reads either all searched settings or none)"
    return f" (groups of {search.group_size} share task 1, and differ in {', '.join(searched.later)})"


def describe_rerun(top: int, seeds: int, baselines: Sequence[str], search: SearchConfig) -> str:
    """Describe the rerun of the best trials, or of the trials on the Pareto front, after the search."""
    if not seeds:
        return "nothing is rerun"
    others = f", next to {', '.join(baselines)}" if baselines else ""
    which = f"the best {top}"
    if len(search.metrics) > 1:
        which = "the confirmed front" if search.confirm else f"up to {top} of the Pareto front"
    return f"{which} over {count(seeds, 'seed')} on test videos{others}"


def flat_search(search: SearchConfig) -> Settings:
    """Return the settings of a search by dotted name, as the parent run records them."""
    return {f"search.{name}": value for name, value in asdict(search).items()}


def _describe_space(search: PlannedSearch, has_space_option: bool) -> str:
    """List the searched settings; with --space, also their values and the total number of settings."""

    def where(name: str) -> str:
        other, values = search.conditions.get(name, ("", ()))
        return f" where {other} is {' or '.join(map(str, values))}" if other else ""

    if not has_space_option:
        return ", ".join(f"{name}{where(name)}" for name in search.space)
    every = {*search_space(search.row.method)[1], *search.space}
    listed = search.space.items()
    values = (f"{name} in {', '.join(map(str, domain.categories))}{where(name)}" for name, domain in listed)
    return f"varies {len(search.space)} of {len(every)} settings ({'; '.join(values)}; the others as recommended)"


def describe_request(plan: SweepPlan, workers: int = 1) -> str:
    """Describe the searches and reruns of a sweep or table before it joins a cluster; see also `describe_plan`."""
    request, stream = plan.request, plan.stream
    kind, what = ("table", request.preset.title) if request.is_table else ("sweep", plan.rows[0].row.method)
    about = _describe_table(plan, workers) if request.is_table else _describe_search(plan)
    head = f"{kind} {request.name}: {what}{',' * request.is_table} on {stream.name}, {len(stream.tasks)} tasks"
    note = [f"  note       {stream.table_caveat}"] if stream.table_caveat else []
    return "\n".join([head, *about, *note])


def describe_plan(plan: SweepPlan, room: Capacity, decoded: int, execution: ExecutionConfig, tracker: Tracker) -> str:
    """Describe the execution of a sweep or table on its cluster, before its first trial starts.

    Args:
        plan: the plan.
        room: resources of the cluster.
        decoded: number of newly decoded videos.
        execution: execution settings.
        tracker: records of runs.
    """
    runs = [row.experiment for row in plan.rows]
    measured = []
    if execution.gpus_per_trial and not plan.request.is_table:
        measured = memory_text(tracker, plan.searches[""].experiment, execution.workers)
    lines = [
        f"  trials     {_trials(plan, room)}",
        *describe_choice(plan, room.concurrent),
        f"  resources  {resources_text(execution, room)}",
        *precision_lines(execution, [run.run.precision for run in runs], room.models),
        *batch_lines(execution, [run.data.batch_size for run in runs]),
        *sharing_lines(execution, [(run.data.batch_size, run.run.precision) for run in runs]),
        *(f"  memory     {text}" for text in measured),
        f"  videos     {f'{decoded} decoded, the others' if decoded else 'none decoded: all'} are in the store",
        f"  tracking   {tracker.uri.split('@')[-1]}",
        "  time       known when the first trial is complete",
    ]
    return "\n".join(lines)


def _trials(plan: SweepPlan, room: Capacity) -> str:
    """Describe the number of trials, and how they are proposed and stopped."""
    config, searches = plan.search_config, plan.searches
    if not searches:
        return "none: every row runs its listed settings"
    how = describe_searcher(config, plan.trials_per_row)
    count = f"{plan.trials_per_row} {how}"
    if plan.request.is_table:
        count = f"{plan.trials_per_row} for each row, {plan.trials_per_row * len(searches)} in all, {how}"
    else:
        count += describe_groups(config, searches[""].search_space)
    scheduler = describe_scheduler(config, len(plan.stream.tasks), [search.epochs for search in searches.values()])
    return (
        f"{count}, {scheduler}; {describe_concurrency(room, most_at_once(config, plan.trials_per_row, len(searches)))}"
    )


def _describe_search(plan: SweepPlan) -> list[str]:
    """Return the lines of a plan that describe the search of one method."""
    search, config, stream, request = plan.searches[""], plan.search_config, plan.stream, plan.request
    experiment = search.experiment
    recommended = ", ".join(f"{name}={value}" for name, value in stream.settings.items())
    return [
        f"  searches   {_describe_space(search, bool(request.space))} on {experiment.evaluation.split} videos",
        f"  detects    {describe_mde(stream, experiment.evaluation.split)}",
        *([f"  optimizes  {describe_metric(config.metric)} ({config.mode})"] if len(config.metrics) > 1 else []),
        f"  presets    {', '.join(experiment.presets) or 'paper'}; their values are tried first",
        f"  stream     recommends {recommended or 'nothing'}",
        f"  confirms   {describe_confirmation(config)}",
        f"  rerun      {describe_rerun(request.top, request.preset.seeds, request.baselines, config)}",
    ]


def _describe_table(plan: SweepPlan, workers: int) -> list[str]:
    """Return the lines of a plan that describe the rows of a table."""
    request, searches, seeds = plan.request, plan.searches, plan.request.preset.seeds
    split = next((search.experiment.evaluation.split for search in searches.values()), "test")
    runs = expand_seeds([Rerun(row.experiment) for row in plan.rows], seeds, workers)
    runs = expand_task_orders(runs, request.orders)
    orders = f" and {request.orders} orders of tasks" if request.orders > 1 else ""
    unsearched = [row.row.name for row in plan.rows if row.search is None]
    lines = [
        f"  searched   {', '.join(searches) or 'no row'}",
        f"  presets    {', '.join(unsearched) or 'no row'} (not searched)",
        *([f"  chosen by  {describe_metric(plan.search_config.metric)} on {split} videos"] if searches else []),
        f"  confirms   {describe_confirmation(plan.search_config) if searches else 'nothing is searched'}",
        f"  rerun      all rows over {count(seeds, 'seed')}{orders} on test videos: "
        f"{count(len(runs), 'run')} in one rerun",
    ]
    if left_out := [row.name for row in request.preset.rows if not row.is_for(stream_names(plan.stream))]:
        lines.append(f"  left out   {'; '.join(left_out)} (not for this stream)")
    return lines


def describe_outcome(
    plan: SweepPlan, row: str, outcome: SearchOutcome, trials: Sequence[RunRecord], workers: int
) -> list[str]:
    """Return lines on the outcome of a search: numbers of trials, and the best trial.

    Args:
        plan: the plan.
        row: name of a row of a table; "" in a sweep of one method.
        outcome: outcome of the search.
        trials: complete trials, the best first.
        workers: number of workers of a run.
    """
    counts = f"{outcome.complete} complete, {outcome.stopped} stopped early, {outcome.failed} failed"
    nothing = "no trial is complete, so no winner is selected"
    if row:
        found = f"best {_result(trials[0], plan.search_config)}" if trials else nothing
        if trials and have_no_winner(trials, plan.search_config.metric):
            found = f"no winner, all have {_result(trials[0], plan.search_config)}"
        return [f"{row}: {counts}; {found}"]
    lines = [
        f"sweep {plan.request.name}: {outcome.trials} trials in {outcome.seconds:.0f} s: {counts}",
        outcome.executions,
    ]
    if not trials:
        return [*lines, f"{nothing}. `ctvr ui` shows why."]
    search = plan.searches[row]
    return [*lines, *describe_best(search, plan.search_config, trials, search.recommended_experiment(workers).settings)]


def _result(run: RunRecord, config: SearchConfig) -> str:
    return f"{describe_metric(config.metric)} {last_value(run, config.metric):+.2f}"


def describe_best(
    search: PlannedSearch, config: SearchConfig, trials: Sequence[RunRecord], recommended: Settings
) -> list[str]:
    """Return lines on the best trial of a search, or on its Pareto front: names, results, and settings.

    Args:
        search: the search.
        config: settings of the search.
        trials: complete trials, the best first.
        recommended: all recommended settings.
    """
    metric, best = config.metric, trials[0]
    if have_no_winner(trials, metric):
        said = (
            f"no winner: all {len(trials)} complete trials have {describe_metric(metric)} {result_text(best, metric)}"
        )
        return [f"{said}; the first one is rerun", *_list_settings(search, best)]
    if len(config.metrics) > 1:
        rule = (metric, config.mode)
        front = front_of(trials, rule)
        return [
            describe_front(trials, rule),
            *(line for run in front for line in _list_settings(search, run, f"{run.name}: ")),
        ]
    is_recommended = all(str(best.settings.get(name)) == as_text(recommended.get(name)) for name in search.space)
    return [
        f"best: {best.name}, {describe_metric(metric)} {result_text(best, metric)} on "
        f"{best.tags.get('ctvr.split')} videos" + (", the recommended settings" if is_recommended else ""),
        *_list_settings(search, best),
    ]


def _list_settings(search: PlannedSearch, run: RunRecord, title: str = "") -> list[str]:
    """List the searched settings of a trial, after a title."""
    chosen = ", ".join(f"{name}={run.settings[name]}" for name in search.space if name in run.settings)
    return textwrap.wrap(title + chosen, 100, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
