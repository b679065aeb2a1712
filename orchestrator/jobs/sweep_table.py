"""A whole table: every row searched by one budget and one rule, then all winners and seeds in one rerun.

A table `NAME` is an MLflow parent run, a sweep `NAME-ROW` for each row that is searched, and the rerun
`NAME-final-...`. Trials of all rows share one cluster and take turns, so that no row's last trial keeps it
waiting. A row that fails does not end the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.console import say
from orchestrator.errors import ConfigError, FailedRuns, Interrupted
from orchestrator.jobs.again import RULES, Rerun, best_trials, over_orders, over_seeds, used_seeds
from orchestrator.jobs.announce import confirm_text, schedule_text, videos_text
from orchestrator.jobs.confirm import CONFIRMS, candidates, confirm
from orchestrator.jobs.deployment import Deployment, find_manifest
from orchestrator.jobs.driver import only_driver
from orchestrator.jobs.ready import make_all_ready, searched_splits
from orchestrator.jobs.rerun import run_again, searched_tags, unsearched_tags
from orchestrator.jobs.session import (
    check_machine,
    connected,
    interruptible,
    portable,
    precision_lines,
    resources_text,
    room_text,
    say_waiting,
    send_waiting,
    trial_plan,
)
from orchestrator.jobs.sweep import (
    check_new,
    close_search,
    flat_search,
)
from orchestrator.jobs.table_plan import PlannedRow, PlannedTable, TableRequest, plan_table, stream_names
from orchestrator.jobs.trust import resume_command
from orchestrator.jobs.verdict import Verdict, last_value, winner
from orchestrator.on_ray.capacity import capacity
from orchestrator.on_ray.plan import Capacity, Outcome, RowPlan, TrialPlan, write_plan
from orchestrator.on_ray.tune import can_resume, run_rows
from orchestrator.tables.beside_paper import ROW, TABLE_NAME
from orchestrator.tables.build import VARIES
from orchestrator.tables.marks import NOTES
from orchestrator.tables.presets import as_data, parse_preset
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.values import RunRecord

# ----------------------------------------------------------------------------------------------- running


def sweep_table(request: TableRequest, where: Deployment) -> str:
    """Search every row, rerun all winners and seeds, write the table."""
    check_new(request.name, where)
    where.check()
    request = replace(request, stream=find_manifest(request.stream))
    check_machine(where, request.name)
    planned = plan_table(request, where)
    with only_driver(where.folder(request.name), request.name):
        check_new(request.name, where)  # again: another driver of the same name may have been quicker
        return _run(planned, where)


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
        request = replace(request, orders=table.get("orders", 1))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"sweep {name}: its plan is of another version ({error}). Start a new table.") from error
    return _run(plan_table(request, where), where)


def _run(planned: PlannedTable, where: Deployment) -> str:
    request, stream = planned.request, planned.stream
    tracker = where.tracker(stream.name)
    with connected(where, tracker) as there:
        plan = trial_plan(there, request.name, tracker, [row.experiment for row in planned.rows])
        room = capacity(plan, there.max_concurrent)
        experiments = [row.experiment for row in planned.rows]
        ready = make_all_ready(experiments, there, searched_splits(stream), not there.gpus_per_trial, on_cluster=True)
        stream = ready[0].stream
        say(_plan_text(planned, room, max(each.decoded for each in ready), there, tracker))
        settings = {"rows": ",".join(row.row.name for row in planned.rows), "seeds": request.preset.seeds}
        settings |= {**flat_search(planned.search), "search.trials": planned.search.trials if planned.searched else 0}
        parent = tracker.open_sweep(request.name, stream.name, settings, {"ctvr.table": request.preset.title})
        plan = replace(plan, parent=parent)
        rows = {row.row.name: _row_plan(row, plan, stream.name, planned, tracker) for row in planned.searched}
        if rows and can_resume(plan):
            say("resumed: finished tasks are kept")
        table = {"preset": as_data(request.preset), "stream": request.stream, "overrides": request.overrides}
        table["direction"] = request.direction
        kept = {**table, "orders": request.orders}
        write_plan(plan, there.folder(request.name), table=kept, where=portable(there))
        again = resume_command(request.name)
        parents = [*(row.plan.parent or "" for row in rows.values()), parent]
        with interruptible(f"table {request.name}", again, there, tracker, parents):
            outcomes: dict[str, Outcome] = {}
            if rows:
                num_tasks = len(stream.tasks)
                outcomes = run_rows(rows, num_tasks, planned.search, there.max_concurrent)
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
    """What the searches found and what was confirmed, then the rerun of all rows and their table."""
    lines, failed, best = [], [], {}
    for row in planned.searched:
        assert row.sweep is not None
        outcome, name = outcomes[row.row.name], row.sweep.request.name
        found = f"{outcome.complete} complete, {outcome.stopped} stopped early, {outcome.failed} failed"
        if outcome.complete:
            best[name] = best_trials(tracker, name, 1)[0]
            value = f"{last_value(best[name], planned.search.metric):+.2f}"
            found += f"; best {RULES.get(planned.search.metric, planned.search.metric)} {value}"
        else:
            failed.append(row.row.name)
            found += "; no trial is complete, so there is no winner"
        lines.append(f"{row.row.name}: {found}")
    say("\n".join(lines))
    try:
        verdicts = _confirm(planned, best, where, tracker)
        lines += [f"{verdict.sweep}: {verdict.text}" for verdict in verdicts.values()]
        runs = [_rerun_of(planned, place, best, verdicts, tracker) for place in range(len(planned.rows))]
        used = _used(planned, tracker)
        seeds = planned.request.preset.seeds
        listed = over_seeds([run for run in runs if run], seeds, where.workers, used)
        text = _rerun(planned, over_orders(listed, planned.request.orders), where, tracker)
    except (FailedRuns, Interrupted) as error:
        tracker.close(parent, "KILLED" if isinstance(error, Interrupted) else "FAILED")
        raise type(error)("\n".join([str(error), *_failures(failed)])) from None
    tracker.close(parent, "FAILED" if failed else "FINISHED")
    if failed:
        raise FailedRuns("\n".join([text, *_failures(failed)]))
    return "\n".join([*lines, text])


def _confirm(
    planned: PlannedTable, best: Mapping[str, RunRecord], where: Deployment, tracker: Tracker
) -> dict[str, Verdict]:
    """Of every row with a winner, in one list of runs: the best trials and the recommended settings."""
    name, search = planned.request.name, planned.search
    listed = []
    for row in planned.searched:
        if search.confirm and row.sweep is not None and row.sweep.request.name in best:
            listed += candidates(tracker, row.sweep.request.name, row.sweep.unsearched(where.workers), search)
    return confirm(name, listed, len(planned.stream.tasks), where, tracker, search, resume_command(name))


def _rerun_of(
    planned: PlannedTable,
    place: int,
    best: Mapping[str, RunRecord],
    verdicts: Mapping[str, Verdict],
    tracker: Tracker,
) -> Rerun | None:
    """A row as it is rerun: its winner, or the recommended settings where they kept their place; None without one."""
    row = planned.rows[place]
    tags = {"ctvr.place": f"{place:03d}", "ctvr.table": planned.request.preset.title}
    preset = planned.request.preset
    tags |= {VARIES: ",".join(preset.varies)} if preset.varies else {}
    tags |= {ROW: row.row.name} | ({TABLE_NAME: preset.name} if preset.name else {})
    notes, experiment = list(row.row.notes), row.experiment
    if row.sweep is None:
        more = unsearched_tags(experiment.name)
    elif (name := row.sweep.request.name) not in best:
        return None
    else:
        verdict, trials = verdicts.get(name), tracker.find_runs(sweep=name)
        experiment = verdict.chosen if verdict else winner(best[name])
        more = searched_tags(experiment.name, trials, planned.search.metric)
        if verdict:
            notes.append(verdict.note)
        if verdict and not verdict.is_confirmed:
            more = unsearched_tags(experiment.name)
            notes[-1] = f"the recommended settings; the best of {len(trials)} trials is {verdict.note}"
    tags |= {"ctvr.note": NOTES.join(notes)} if notes else {}
    return Rerun(experiment, tags | more)


def _used(planned: PlannedTable, tracker: Tracker) -> frozenset[int]:
    """Every seed that a trial or a confirmation had."""
    found = frozenset[int]()
    for row in planned.searched:
        assert row.sweep is not None
        name = row.sweep.request.name
        found |= used_seeds([*tracker.find_runs(sweep=name), *tracker.find_runs(tags={CONFIRMS: name})])
    return found


def _rerun(planned: PlannedTable, runs: list[Rerun], where: Deployment, tracker: Tracker) -> str:
    name, seeds = planned.request.name, planned.request.preset.seeds
    if not seeds:
        say_waiting(tracker)
        return ""
    if not runs:
        say_waiting(tracker)
        raise FailedRuns(f"table {name}: no row has a winner, so there is no table. `ctvr ui` shows why.")
    settings = {"rerun_of": name, "seeds": seeds, "rows": len({run.tags["ctvr.place"] for run in runs})}
    again = resume_command(name)
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
        budget += f"{schedule_text(search)}; {room_text(room)}"
    split = searched[0].experiment.evaluation.split if searched else "test"
    runs = over_seeds([Rerun(row.experiment) for row in planned.rows], request.preset.seeds, where.workers)
    runs = over_orders(runs, request.orders)
    orders = f" and {request.orders} orders of tasks" if request.orders > 1 else ""
    lines = [
        f"table {request.name}: {request.preset.title}, on {planned.stream.name}, {len(planned.stream.tasks)} tasks",
        f"  searched   {', '.join(row.row.name for row in searched) or 'no row'}",
        f"  presets    {', '.join(unsearched) or 'no row'} (not searched)",
        f"  trials     {budget}",
        f"  chosen by  {RULES.get(search.metric, search.metric)} on {split} videos",
        f"  confirms   {confirm_text(search) if searched else 'nothing is searched'}",
        f"  then       all rows over {request.preset.seeds} seeds{orders} on test videos: {len(runs)} runs in one "
        "rerun",
        f"  resources  {resources_text(where, room)}",
        *precision_lines(where, [row.experiment.run.precision for row in planned.rows]),
        f"  videos     {videos_text(decoded)}",
        f"  tracking   {tracker.uri.split('@')[-1]}",
        "  time       known when the first trial is complete",
    ]
    if left_out := [row.name for row in request.preset.rows if not row.is_for(stream_names(planned.stream))]:
        lines.append(f"  left out   {'; '.join(left_out)} (not for this stream)")
    if mark := planned.stream.settings_mark:
        lines.append(f"  note       {mark}")
    return "\n".join(lines)
