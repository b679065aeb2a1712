"""Text shared by the start-up summaries of sweeps and tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.on_ray.plan import Capacity, SearchConfig
from ctvr.orchestrator.on_ray.search import count_trials
from ctvr.orchestrator.on_ray.search_space import SearchSpace, is_grouped
from ctvr.orchestrator.sweeps.comparison import describe_mde
from ctvr.orchestrator.sweeps.epoch_rungs import describe_rungs
from ctvr.orchestrator.sweeps.front import describe_front, front_of
from ctvr.orchestrator.sweeps.measured_memory import memory_text
from ctvr.orchestrator.sweeps.search_spaces import search_space
from ctvr.orchestrator.sweeps.selection import describe_metric, have_no_winner, result_text
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


def _searched(planned: Any) -> str:
    """List the searched settings; of those of --space, with their values and how many others keep their values."""

    def where(name: str) -> str:
        other, values = planned.conditions.get(name, ("", ()))
        return f" where {other} is {' or '.join(map(str, values))}" if other else ""

    if not planned.request.space:
        return ", ".join(f"{name}{where(name)}" for name in planned.space)
    every = {*search_space(planned.request.method)[1], *planned.space}
    listed = planned.space.items()
    values = (f"{name} in {', '.join(map(str, domain.categories))}{where(name)}" for name, domain in listed)
    return f"varies {len(planned.space)} of {len(every)} settings ({'; '.join(values)}; the others as recommended)"


def describe_sweep(planned: Any, room: Capacity, decoded: int, execution: ExecutionConfig, tracker: Tracker) -> str:
    """Describe the sweep before it starts."""
    request, stream, search = planned.request, planned.stream, planned.search
    recommended = ", ".join(f"{name}={value}" for name, value in stream.settings.items())
    count = count_trials(search, planned.searched)
    trials = f"{count} by {search.searcher}{describe_groups(search, planned.searched)}"
    at_once = describe_concurrency(room, most_at_once(search, count))
    measured = memory_text(tracker, planned.experiment, execution.workers) if execution.gpus_per_trial else []
    lines = [
        f"sweep {request.name}: {request.method} on {stream.name}, {len(stream.tasks)} tasks",
        f"  trials     {trials}, {describe_scheduler(search, len(stream.tasks), [planned.epochs])}; {at_once}",
        f"  resources  {resources_text(execution, room)}",
        *precision_lines(execution, [planned.experiment.run.precision], room.models),
        *batch_lines(execution, [planned.experiment.data.batch_size]),
        *(f"  memory     {text}" for text in measured),
        f"  searches   {_searched(planned)} on {planned.experiment.evaluation.split} videos",
        f"  detects    {describe_mde(stream, planned.experiment.evaluation.split)}",
        *([f"  optimises  {describe_metric(search.metric)} ({search.mode})"] if len(search.metrics) > 1 else []),
        f"  confirms   {describe_confirmation(search)}",
        f"  presets    {', '.join(planned.experiment.presets) or 'paper'}; their values are tried first",
        f"  stream     recommends {recommended or 'nothing'}",
        f"  videos     {describe_decoding(decoded)}",
        f"  tracking   {tracker.uri.split('@')[-1]}",
        f"  rerun      {describe_rerun(request.top, request.seeds, request.baselines, search)}",
        "  time       known when the first trial is complete",
    ]
    if mark := stream.table_caveat:
        lines.append(f"  note       {mark}")
    return "\n".join(lines)


def describe_best(planned: Any, trials: Sequence[RunRecord], recommended: Settings) -> list[str]:
    """Describe the best trial of a search, or its Pareto front: names, results, and settings.

    Args:
        trials: complete trials, the best first.
        recommended: all settings of a run without a search.
    """
    metric, best = planned.search.metric, trials[0]
    if have_no_winner(trials, metric):
        said = (
            f"no winner: all {len(trials)} complete trials have {describe_metric(metric)} {result_text(best, metric)}"
        )
        return [f"{said}; the first one is rerun", *_chosen(planned, best)]
    if len(planned.search.metrics) > 1:
        rule = (metric, planned.search.mode)
        front = front_of(trials, rule)
        return [
            describe_front(trials, rule),
            *(line for run in front for line in _chosen(planned, run, f"{run.name}: ")),
        ]
    is_recommended = all(str(best.settings.get(name)) == as_text(recommended.get(name)) for name in planned.space)
    return [
        f"best: {best.name}, {describe_metric(metric)} {result_text(best, metric)} on "
        f"{best.tags.get('ctvr.split')} videos" + (", the recommended settings" if is_recommended else ""),
        *_chosen(planned, best),
    ]


def _chosen(planned: Any, run: RunRecord, title: str = "") -> list[str]:
    """List the searched settings of a trial, after a title."""
    chosen = ", ".join(f"{name}={run.settings[name]}" for name in planned.space if name in run.settings)
    return textwrap.wrap(title + chosen, 100, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
