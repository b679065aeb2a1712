"""A whole table: every row searched by one budget and one rule, then all winners and seeds in one rerun.

A table `NAME` is an MLflow parent run, a sweep `NAME-ROW` for each row that is searched, and the rerun
`NAME-final-...`. Trials of all rows share one cluster and take turns, so that no row's last trial keeps it
waiting. A row that fails does not end the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.config import Settings, build
from orchestrator.console import say
from orchestrator.errors import ConfigError, FailedRuns, Interrupted
from orchestrator.jobs.deployment import Deployment, find_manifest
from orchestrator.jobs.methods import default_presets
from orchestrator.jobs.ready import make_all_ready, searched_splits
from orchestrator.jobs.rerun import (
    RULES,
    Rerun,
    best_trials,
    last_value,
    over_seeds,
    run_again,
    searched_tags,
    unsearched_tags,
    used_seeds,
    winner,
)
from orchestrator.jobs.session import (
    check_machine,
    connected,
    interruptible,
    portable,
    resources_text,
    say_waiting,
    send_waiting,
    trial_plan,
)
from orchestrator.jobs.sweep import (
    Sweep,
    SweepRequest,
    check_new,
    close_search,
    flat_search,
    plan_sweep,
    refuse_seed,
    schedule_text,
    videos_text,
)
from orchestrator.learning.experiment import Experiment
from orchestrator.learning.resolve import find, resolve
from orchestrator.on_ray.capacity import capacity
from orchestrator.on_ray.plan import GAIN, MEAN, Capacity, Outcome, RowPlan, SearchConfig, TrialPlan, write_plan
from orchestrator.on_ray.tune import can_resume, run_rows
from orchestrator.streams.load import load_stream
from orchestrator.streams.stream import Stream
from orchestrator.tables.beside_paper import ROW, TABLE_NAME
from orchestrator.tables.build import Direction
from orchestrator.tables.marks import NOTES
from orchestrator.tables.presets import TablePreset, TableRow, as_data, parse_preset
from orchestrator.tracking.tracker import Tracker


@dataclass(frozen=True)
class TableRequest:
    """What `ctvr sweep --preset TABLE` was asked for. Words of the command line are in the preset already."""

    name: str
    stream: str
    preset: TablePreset
    overrides: Settings  # of all rows
    direction: Direction = "t2v"  # what the table shows


@dataclass(frozen=True)
class PlannedRow:
    """A row that was checked."""

    row: TableRow
    experiment: Experiment  # of a trial, but for what is searched; of a rerun, where nothing is
    sweep: Sweep | None  # None: not searched


@dataclass(frozen=True)
class PlannedTable:
    """A request that was checked."""

    request: TableRequest
    stream: Stream
    search: SearchConfig  # of no meaning where no row is searched
    rows: tuple[PlannedRow, ...]

    @property
    def searched(self) -> list[PlannedRow]:
        return [row for row in self.rows if row.sweep is not None]


def plan_table(request: TableRequest, where: Deployment) -> PlannedTable:
    """Check every row before anything starts.

    Raises:
        ConfigError: for whatever could not run; the message names the row.
    """
    preset = request.preset
    if preset.seeds < 0:
        raise ConfigError(f"--seeds: must be >= 0, got {preset.seeds}.")
    trials = build(_Trials, {"trials": preset.search.get("trials", SearchConfig().trials)}, "search").trials
    if not trials and not preset.seeds:
        raise ConfigError("table: without trials and without seeds nothing is run. Write --seeds 3.")
    refuse_seed(request.overrides)
    search = build(SearchConfig, {**preset.search, "trials": trials or 1}, "search")
    if search.searcher == "grid":
        raise ConfigError("search.searcher: the rows of a table get equally many trials. Write tpe or random.")
    places = where.places()
    stream = load_stream(request.stream, places.root, places.videos)
    if "metric" not in preset.search:  # one rule for all rows
        search = replace(search, metric=MEAN if stream.protocol == "cvlm" else GAIN)
    if preset.protocol not in {"any", stream.protocol}:
        raise ConfigError(
            f"--stream: {stream.name} is evaluated as {stream.protocol}, this table's rows are {preset.protocol} "
            f"methods. Choose a stream such as {preset.stream}."
        )
    names = stream_names(stream)
    if not any(row.is_for(names) for row in preset.rows):
        raise ConfigError(f"--stream: none of the table's rows can run on {stream.name}. Choose {preset.stream}.")
    rows = []
    for row in preset.rows:
        if not row.is_for(names):
            continue
        try:
            rows.append(_plan_row(request, row, stream, search, bool(trials), where))
        except ConfigError as error:
            raise ConfigError(f"row {row.name}: {error}") from error
    return PlannedTable(request, stream, search, tuple(rows))


def stream_names(stream: Stream) -> list[str]:
    """What a stream is called, and the published benchmark that it is."""
    return [stream.name, *([stream.paper] if stream.paper else [])]


@dataclass(frozen=True)
class _Trials:
    trials: int

    def __post_init__(self) -> None:
        if self.trials < 0:
            raise ValueError(f"trials must be >= 0, got {self.trials}. 0 reruns the recommended presets alone.")


def _plan_row(
    request: TableRequest, row: TableRow, stream: Stream, search: SearchConfig, is_searched: bool, where: Deployment
) -> PlannedRow:
    find(row.method)
    overrides = {**request.preset.settings_of(row, stream_names(stream)), **request.overrides}
    if row.searched and is_searched:
        asked = SweepRequest(
            row.method, request.stream, f"{request.name}-{row.slug}", overrides, row.presets, asdict(search)
        )
        sweep = plan_sweep(asked, where)
        return PlannedRow(row, sweep.experiment, sweep)
    full = {**overrides, "method": row.method, "stream": request.stream, "workers": where.workers}
    return PlannedRow(row, resolve(full, stream.settings, default_presets(row.method, stream, row.presets)), None)


# ----------------------------------------------------------------------------------------------- running


def sweep_table(request: TableRequest, where: Deployment) -> str:
    """Search every row, rerun all winners and seeds, write the table."""
    check_new(request.name, where)
    where.check()
    request = replace(request, stream=find_manifest(request.stream))
    check_machine(where, request.name)
    return _run(plan_table(request, where), where)


def go_on(name: str, kept: Mapping[str, Any], where: Deployment) -> str:
    """Go on with an interrupted table; rows that are finished are not searched again.

    Args:
        kept: what `on_ray.plan.read_plan` found of it.
        where: as the first command had it, on the cluster of today.

    Raises:
        ConfigError: if another version kept it.
    """
    try:
        table = kept["table"]
        preset = parse_preset(table["preset"])
        request = TableRequest(name, table["stream"], preset, table["overrides"], table.get("direction", "t2v"))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"sweep {name}: its plan is of another version ({error}). Start a new table.") from error
    return _run(plan_table(request, where), where)


def _run(planned: PlannedTable, where: Deployment) -> str:
    request, stream = planned.request, planned.stream
    tracker = where.tracker(stream.name)
    with connected(where, tracker) as there:
        plan = trial_plan(there, request.name, tracker)
        room = capacity(plan, there.max_concurrent)
        ready = make_all_ready(
            [row.experiment for row in planned.rows], there, searched_splits(stream), curve=not there.gpus_per_trial
        )
        stream = ready[0].stream
        say(_plan_text(planned, room, max(each.decoded for each in ready), there, tracker))
        settings = {"rows": ",".join(row.row.name for row in planned.rows), "seeds": request.preset.seeds}
        settings |= {**flat_search(planned.search), "search.trials": planned.search.trials if planned.searched else 0}
        parent = tracker.open_sweep(request.name, stream.name, settings, {"ctvr.table": request.preset.title})
        plan = replace(plan, parent=parent)
        rows = {row.row.name: _row_plan(row, plan, stream.name, planned, tracker) for row in planned.searched}
        if goes_on := bool(rows) and can_resume(plan):
            say("resumed: finished tasks are kept")
        table = {"preset": as_data(request.preset), "stream": request.stream, "overrides": request.overrides}
        table["direction"] = request.direction
        write_plan(plan, there.folder(request.name), table=table, where=portable(there))
        again = f"ctvr sweep --resume {request.name}"
        parents = [*(row.plan.parent or "" for row in rows.values()), parent]
        with interruptible(f"table {request.name}", again, there, tracker, parents):
            outcomes: dict[str, Outcome] = {}
            if rows:
                num_tasks = len(stream.tasks)
                outcomes = run_rows(rows, num_tasks, planned.search, there.max_concurrent, goes_on)
            if any(outcome.is_interrupted for outcome in outcomes.values()):
                raise KeyboardInterrupt
            for name, outcome in outcomes.items():
                close_search(tracker, rows[name].plan.parent or "", outcome)
            if waiting := send_waiting(tracker):
                raise FailedRuns(
                    f"{waiting} records wait because MLflow does not answer, so no winner can be named. Start it "
                    f"again, then: ctvr sync; {again}"
                )
            return _conclude(planned, outcomes, there, tracker, parent)


def _row_plan(row: PlannedRow, plan: TrialPlan, stream: str, table: PlannedTable, tracker: Tracker) -> RowPlan:
    """The search of a row, below an MLflow parent of its own."""
    assert row.sweep is not None
    name = row.sweep.request.name
    settings = {**row.experiment.settings, **flat_search(table.search)}
    parent = tracker.open_sweep(name, stream, settings, {"ctvr.table": table.request.preset.title})
    made = replace(
        plan,
        sweep=name,
        parent=parent,
        settings=row.sweep.given,
        presets=row.experiment.presets,
        tags={"ctvr.role": "trial"},
    )
    return RowPlan(made, row.sweep.searched)


def _conclude(
    planned: PlannedTable, outcomes: Mapping[str, Outcome], where: Deployment, tracker: Tracker, parent: str
) -> str:
    """What the searches found, then the rerun of all rows and their table."""
    request, metric = planned.request, planned.search.metric
    lines, runs, failed, searched = [], [], [], []
    for place, row in enumerate(planned.rows):
        tags = {"ctvr.place": f"{place:03d}", "ctvr.table": request.preset.title}
        tags |= {ROW: row.row.name} | ({TABLE_NAME: request.preset.name} if request.preset.name else {})
        tags |= {"ctvr.note": NOTES.join(row.row.notes)} if row.row.notes else {}
        experiment = row.experiment
        if row.sweep is not None:
            outcome, name = outcomes[row.row.name], row.sweep.request.name
            searched.append(name)
            found = f"{outcome.complete} complete, {outcome.stopped} stopped early, {outcome.failed} failed"
            if not outcome.complete:
                failed.append(row.row.name)
                lines.append(f"{row.row.name}: {found}; no trial is complete, so there is no winner")
                continue
            best = best_trials(tracker, name, 1)[0]
            experiment = winner(best)
            lines.append(f"{row.row.name}: {found}; best {RULES.get(metric, metric)} {last_value(best, metric):+.2f}")
            tags |= searched_tags(experiment.name, tracker.find_runs(sweep=name), metric)
        else:
            tags |= unsearched_tags(experiment.name)
        runs.append(Rerun(experiment, tags))
    say("\n".join(lines))
    used = frozenset[int]().union(*(used_seeds(tracker.find_runs(sweep=name)) for name in searched))
    try:
        text = _rerun(planned, over_seeds(runs, request.preset.seeds, where.workers, used), where, tracker)
    except (FailedRuns, Interrupted) as error:
        tracker.close(parent, "KILLED" if isinstance(error, Interrupted) else "FAILED")
        raise type(error)("\n".join([str(error), *_failures(failed)])) from None
    tracker.close(parent, "FAILED" if failed else "FINISHED")
    if failed:
        raise FailedRuns("\n".join([text, *_failures(failed)]))
    return "\n".join([*lines, text])


def _rerun(planned: PlannedTable, runs: list[Rerun], where: Deployment, tracker: Tracker) -> str:
    name, seeds = planned.request.name, planned.request.preset.seeds
    if not seeds:
        say_waiting(tracker)
        return ""
    if not runs:
        say_waiting(tracker)
        raise FailedRuns(f"table {name}: no row has a winner, so there is no table. `ctvr ui` shows why.")
    settings = {"rerun_of": name, "seeds": seeds, "rows": len({run.tags["ctvr.place"] for run in runs})}
    again = f"ctvr sweep --resume {name}"
    return run_again(name, runs, where, tracker, settings, again, planned.request.direction)


def _failures(rows: list[str]) -> list[str]:
    return [f"rows without a winner, missing in the table: {', '.join(rows)}"] if rows else []


def _plan_text(planned: PlannedTable, room: Capacity, decoded: int, where: Deployment, tracker: Tracker) -> str:
    """What will happen, before it does."""
    request, search, searched = planned.request, planned.search, planned.searched
    unsearched = [row.row.name for row in planned.rows if row.sweep is None]
    budget = "none: every row runs its recommended preset"
    if searched:
        budget = f"{search.trials} for each row, {search.trials * len(searched)} in all, by {search.searcher}, "
        budget += f"{schedule_text(search)}; {room.concurrent} at once"
    split = searched[0].experiment.evaluation.split if searched else "test"
    runs = over_seeds([Rerun(row.experiment) for row in planned.rows], request.preset.seeds, where.workers)
    lines = [
        f"table {request.name}: {request.preset.title}, on {planned.stream.name}, {len(planned.stream.tasks)} tasks",
        f"  searched   {', '.join(row.row.name for row in searched) or 'no row'}",
        f"  presets    {', '.join(unsearched) or 'no row'} (not searched)",
        f"  trials     {budget}",
        f"  chosen by  {RULES.get(search.metric, search.metric)} on {split} videos",
        f"  then       all rows over {request.preset.seeds} seeds on test videos: {len(runs)} runs in one rerun",
        f"  resources  {resources_text(where, room)}",
        f"  videos     {videos_text(decoded)}",
        f"  tracking   {tracker.uri.split('@')[-1]}",
        "  time       known when the first trial is complete",
    ]
    if left_out := [row.name for row in request.preset.rows if not row.is_for(stream_names(planned.stream))]:
        lines.append(f"  left out   {'; '.join(left_out)} (not for this stream)")
    if mark := planned.stream.settings_mark:
        lines.append(f"  note       {mark}")
    return "\n".join(lines)
