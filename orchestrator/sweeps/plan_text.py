"""Descriptions of a sweep or table: before it starts, and how its searches ended."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.on_ray.plan import Capacity, SearchConfig, SearchOutcome, count_random_trials
from ctvr.orchestrator.on_ray.search_space import SearchSpace, is_grouped
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
)
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text

if TYPE_CHECKING:
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.tracking.tracker import Tracker


def describe_confirmation(search: SearchConfig) -> str:
    """Describe how the best trials, or those of the Pareto front, are confirmed."""
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
    """Describe how trials of a stream of `num_tasks` tasks are run and stopped; `epochs` as in `describe_rungs`."""
    size = f"brackets of {search.bracket_size}"
    if search.brackets_at_once > 1:
        size += f", {search.brackets_at_once} brackets at once"
    text = f"scheduler {search.scheduler} in {size} (points that train the same model are one trial)"
    return text + describe_rungs(search, num_tasks, epochs)


def most_at_once(search: SearchConfig, trials: int, rows: int = 1) -> int:
    """Return how many trials a search, or each of the searches of a table, can run at once."""
    return rows * min(trials, max(1, search.brackets_at_once) * search.bracket_size)


def describe_decoding(decoded: int) -> str:
    return f"{decoded} decoded, the others were in the store" if decoded else "none decoded: all are in the store"


def describe_searcher(search: SearchConfig, trials: int) -> str:
    """Return how the points of a search are proposed: `at random` if TPE proposes each before a result."""
    if search.searcher not in ("tpe", "grouped_tpe"):
        return f"by {search.searcher}"
    count = count_random_trials(search, trials)
    return "at random" if count >= trials else f"by {search.searcher} (the first {count} at random)"


def describe_groups(search: SearchConfig, searched: SearchSpace) -> str:
    """Return which trials of a grouped search share their first task, or why none do; empty for other searchers."""
    if search.searcher != "grouped_tpe":
        return ""
    if not is_grouped(search, searched):
        return " (as tpe: task 1 reads either all searched settings or none)"
    return f" (groups of {search.group_size} share task 1, and differ in {', '.join(searched.later)})"


def describe_rerun(top: int, seeds: int, baselines: Sequence[str], search: SearchConfig) -> str:
    """Return how the best trials, or those of the Pareto front, are rerun after the search."""
    if not seeds:
        return "nothing is rerun"
    others = f", next to {', '.join(baselines)}" if baselines else ""
    which = f"the best {top}"
    if len(search.metrics) > 1:
        which = "the confirmed front" if search.confirm else f"up to {top} of the Pareto front"
    return f"{which} over {seeds} seeds on test videos{others}"


def flat_search(search: SearchConfig) -> Settings:
    """Return the settings of a search by dotted name, as the parent run records them."""
    return {f"search.{name}": value for name, value in asdict(search).items()}


def _describe_space(search: PlannedSearch, has_space_option: bool) -> str:
    """List the searched settings; of those of --space, with their values and how many others keep their values."""

    def where(name: str) -> str:
        other, values = search.conditions.get(name, ("", ()))
        return f" where {other} is {' or '.join(map(str, values))}" if other else ""

    if not has_space_option:
        return ", ".join(f"{name}{where(name)}" for name in search.space)
    every = {*search_space(search.row.method)[1], *search.space}
    listed = search.space.items()
    values = (f"{name} in {', '.join(map(str, domain.categories))}{where(name)}" for name, domain in listed)
    return f"varies {len(search.space)} of {len(every)} settings ({'; '.join(values)}; the others as recommended)"


def describe_plan(plan: SweepPlan, room: Capacity, decoded: int, execution: ExecutionConfig, tracker: Tracker) -> str:
    """Describe a sweep or table before it starts."""
    request, stream = plan.request, plan.stream
    runs = [row.experiment for row in plan.rows]
    kind, what = ("table", request.preset.title) if request.is_table else ("sweep", plan.rows[0].row.method)
    about = _about_table(plan, execution.workers) if request.is_table else _about_search(plan, execution, tracker)
    lines = [
        f"{kind} {request.name}: {what}{',' * request.is_table} on {stream.name}, {len(stream.tasks)} tasks",
        f"  trials     {_trials(plan, room)}",
        f"  resources  {resources_text(execution, room)}",
        *precision_lines(execution, [run.run.precision for run in runs], room.models),
        *batch_lines(execution, [run.data.batch_size for run in runs]),
        *about,
        f"  videos     {describe_decoding(decoded)}",
        f"  tracking   {tracker.uri.split('@')[-1]}",
        "  time       known when the first trial is complete",
    ]
    if mark := stream.table_caveat:
        lines.append(f"  note       {mark}")
    return "\n".join(lines)


def _trials(plan: SweepPlan, room: Capacity) -> str:
    """Describe the number of trials, and how they are chosen and stopped."""
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


def _about_search(plan: SweepPlan, execution: ExecutionConfig, tracker: Tracker) -> list[str]:
    """Return the lines of a plan that describe the search of one method."""
    search, config, stream, request = plan.searches[""], plan.search_config, plan.stream, plan.request
    experiment = search.experiment
    recommended = ", ".join(f"{name}={value}" for name, value in stream.settings.items())
    measured = memory_text(tracker, experiment, execution.workers) if execution.gpus_per_trial else []
    return [
        *(f"  memory     {text}" for text in measured),
        f"  searches   {_describe_space(search, bool(request.space))} on {experiment.evaluation.split} videos",
        f"  detects    {describe_mde(stream, experiment.evaluation.split)}",
        *([f"  optimises  {describe_metric(config.metric)} ({config.mode})"] if len(config.metrics) > 1 else []),
        f"  presets    {', '.join(experiment.presets) or 'paper'}; their values are tried first",
        f"  stream     recommends {recommended or 'nothing'}",
        f"  confirms   {describe_confirmation(config)}",
        f"  rerun      {describe_rerun(request.top, request.preset.seeds, request.baselines, config)}",
    ]


def _about_table(plan: SweepPlan, workers: int) -> list[str]:
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
        f"  rerun      all rows over {seeds} seeds{orders} on test videos: {len(runs)} runs in one rerun",
    ]
    if left_out := [row.name for row in request.preset.rows if not row.is_for(stream_names(plan.stream))]:
        lines.append(f"  left out   {'; '.join(left_out)} (not for this stream)")
    return lines


def describe_outcome(
    plan: SweepPlan, row: str, outcome: SearchOutcome, trials: Sequence[RunRecord], workers: int
) -> list[str]:
    """Describe how a search ended: its counts, and its best trial.

    Args:
        row: a row of a table; "" in a sweep of one method.
        trials: complete trials, the best first.
        workers: workers of a run.
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
    """Describe the best trial of a search, or its Pareto front: names, results, and settings.

    Args:
        trials: complete trials, the best first.
        recommended: all settings of a run without a search.
    """
    metric, best = config.metric, trials[0]
    if have_no_winner(trials, metric):
        said = (
            f"no winner: all {len(trials)} complete trials have {describe_metric(metric)} {result_text(best, metric)}"
        )
        return [f"{said}; the first one is rerun", *_chosen(search, best)]
    if len(config.metrics) > 1:
        rule = (metric, config.mode)
        front = front_of(trials, rule)
        return [
            describe_front(trials, rule),
            *(line for run in front for line in _chosen(search, run, f"{run.name}: ")),
        ]
    is_recommended = all(str(best.settings.get(name)) == as_text(recommended.get(name)) for name in search.space)
    return [
        f"best: {best.name}, {describe_metric(metric)} {result_text(best, metric)} on "
        f"{best.tags.get('ctvr.split')} videos" + (", the recommended settings" if is_recommended else ""),
        *_chosen(search, best),
    ]


def _chosen(search: PlannedSearch, run: RunRecord, title: str = "") -> list[str]:
    """List the searched settings of a trial, after a title."""
    chosen = ", ".join(f"{name}={run.settings[name]}" for name in search.space if name in run.settings)
    return textwrap.wrap(title + chosen, 100, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
