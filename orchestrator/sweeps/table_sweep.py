"""Search of a whole table: all rows with the same budget and metric, then one rerun of all winners.

A table `NAME` is an MLflow parent run, a sweep `NAME-ROW` for each searched row, and the rerun
`NAME-final-...`. Trials of all rows are interleaved on one cluster, so that no row's last trial leaves it
idle. A failed row does not stop the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError, Interrupted, RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.on_ray.capacity import capacity, final_concurrency
from ctvr.orchestrator.on_ray.plan import Capacity, SearchOutcome, TrialPlan, write_plan
from ctvr.orchestrator.on_ray.search_space import RowPlan
from ctvr.orchestrator.on_ray.tune import can_resume, run_rows
from ctvr.orchestrator.sweeps.claims import RERUN, ClaimTable, judge_table
from ctvr.orchestrator.sweeps.comparison import ConfirmationResult, experiment_of, last_value
from ctvr.orchestrator.sweeps.confirm import candidates, confirm
from ctvr.orchestrator.sweeps.driver import only_driver
from ctvr.orchestrator.sweeps.plan_text import (
    describe_confirmation,
    describe_decoding,
    describe_scheduler,
    flat_search,
    most_at_once,
)
from ctvr.orchestrator.sweeps.preparation import prepare_all
from ctvr.orchestrator.sweeps.rerun import execute_rerun, searched_tags, unsearched_tags
from ctvr.orchestrator.sweeps.run_names import require_free_name
from ctvr.orchestrator.sweeps.selection import (
    Rerun,
    best_trials,
    describe_metric,
    expand_seeds,
    expand_task_orders,
    have_no_winner,
    used_seeds,
)
from ctvr.orchestrator.sweeps.session import (
    batch_lines,
    check_machine,
    close_search,
    describe_concurrency,
    flush_outbox,
    interruptible,
    precision_lines,
    ray_cluster,
    resources_text,
    resume_options,
    trial_plan,
    warn_unsent,
)
from ctvr.orchestrator.sweeps.table_plan import PlannedRow, PlannedTable, TableRequest, plan_table, stream_names
from ctvr.orchestrator.sweeps.trust import resume_command
from ctvr.orchestrator.sweeps.verdict import CONFIRMS
from ctvr.orchestrator.tables.build import VARIES
from ctvr.orchestrator.tables.footnotes import NOTES
from ctvr.orchestrator.tables.paper_comparison import ROW, TABLE_NAME
from ctvr.orchestrator.tables.presets import as_data, parse_preset
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

# ----------------------------------------------------------------------------------------------- running


def sweep_table(request: TableRequest, execution: ExecutionConfig) -> str:
    """Search every row, rerun all winners over all seeds, write the table."""
    require_free_name(request.name, execution)
    execution.check()
    request = replace(request, stream=find_manifest(request.stream))
    planned = plan_table(request, execution)
    check_machine(execution, request.name, [row.experiment for row in planned.rows])
    with only_driver(execution.folder(request.name), request.name):
        require_free_name(request.name, execution)  # checked again: another driver may have started first
        return _run(planned, execution, is_new=True)


def resume_table(name: str, kept: Mapping[str, Any], execution: ExecutionConfig) -> str:
    """Resume an interrupted table; finished rows are not searched again.

    Args:
        name: name of the table.
        kept: its plan, read by `on_ray.plan.read_plan`.
        execution: settings of the first command, on the current cluster.

    Raises:
        ConfigError: if another version wrote the plan.
    """
    try:
        table = kept["table"]
        preset = parse_preset(table["preset"])
        request = TableRequest(name, table["stream"], preset, table["overrides"], table.get("direction", "t2v"))
        request = replace(request, orders=table.get("orders", 1))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"sweep {name}: its plan is of another version ({error}). Start a new table.") from error
    return _run(plan_table(request, execution), execution, is_new=False)


def _run(planned: PlannedTable, execution: ExecutionConfig, is_new: bool) -> str:
    stream = planned.stream
    with ray_cluster(execution) as execution:
        plan = trial_plan(execution, planned.request.name, [row.experiment for row in planned.rows])
        room = capacity(plan, execution.max_concurrent)
        if is_new:  # the searches of a resumed table must propose the same trials again
            planned = planned.filling(final_concurrency(plan, room, execution.max_concurrent))
        request = planned.request
        experiments = [row.experiment for row in planned.rows]
        ready = prepare_all(experiments, execution, stream.splits, not execution.gpus_per_trial, on_cluster=True)
        stream = ready[0].stream
        tracker = execution.tracker(stream.name)  # created only now, so that a refusal leaves no database
        say(_plan_text(planned, room, max(each.decoded for each in ready), execution, tracker))
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
        write_plan(plan, execution.folder(request.name), table=kept, where=resume_options(execution))
        again = resume_command(request.name)
        parents = [*(row.plan.parent or "" for row in rows.values()), parent]
        with interruptible(f"table {request.name}", again, execution, tracker, parents):
            outcomes: dict[str, SearchOutcome] = {}
            if rows:
                num_tasks = len(stream.tasks)
                outcomes = run_rows(rows, num_tasks, planned.search, execution.max_concurrent)
            if any(outcome.is_interrupted for outcome in outcomes.values()):
                raise KeyboardInterrupt
            for name, outcome in outcomes.items():
                close_search(tracker, rows[name].plan.parent or "", outcome)
            if waiting := flush_outbox(tracker):
                raise RunsFailed(
                    f"{waiting} records wait because MLflow does not respond, so no winner can be selected. "
                    f"Restart MLflow, then: ctvr sync; {again}"
                )
            return _conclude(planned, outcomes, execution, tracker, parent)


def _row_plan(row: PlannedRow, plan: TrialPlan, stream: str, table: PlannedTable, tracker: Tracker) -> RowPlan:
    """Return the search plan of a row, with its own MLflow parent run."""
    assert row.sweep is not None
    name = row.sweep.request.name
    settings = {**row.experiment.settings, **flat_search(table.search)}
    parent = tracker.open_sweep(name, stream, settings, {"ctvr.table": table.request.preset.title})
    made = replace(
        plan,
        sweep=name,
        parent=parent,
        settings=row.sweep.fixed_settings,
        epochs=row.sweep.epochs,
        presets=row.experiment.presets,
        tags={"ctvr.role": "trial"},
    )
    return RowPlan(made, row.sweep.searched)


def _conclude(
    planned: PlannedTable,
    outcomes: Mapping[str, SearchOutcome],
    execution: ExecutionConfig,
    tracker: Tracker,
    parent: str,
) -> str:
    """Summarize the searches, confirm their winners, rerun all rows and return their table."""
    lines, failed, best = [], [], {}
    for row in planned.searched:
        assert row.sweep is not None
        outcome, name = outcomes[row.row.name], row.sweep.request.name
        found = f"{outcome.complete} complete, {outcome.stopped} stopped early, {outcome.failed} failed"
        if outcome.complete:
            trials = best_trials(tracker, name, None)
            best[name] = trials[0]
            value = f"{describe_metric(planned.search.metric)} {last_value(best[name], planned.search.metric):+.2f}"
            found += (
                f"; no winner, all have {value}" if have_no_winner(trials, planned.search.metric) else f"; best {value}"
            )
        else:
            failed.append(row.row.name)
            found += "; no trial is complete, so no winner is selected"
        lines.append(f"{row.row.name}: {found}")
    say("\n".join(lines))
    try:
        verdicts = _confirm(planned, best, execution, tracker)
        lines += [f"{verdict.sweep}: {verdict.text}" for verdict in verdicts.values()]
        runs = [_rerun_of(planned, place, best, verdicts, tracker) for place in range(len(planned.rows))]
        used = _used(planned, tracker)
        seeds = planned.request.preset.seeds
        listed = expand_seeds([run for run in runs if run], seeds, execution.workers, used)
        text = _rerun(planned, expand_task_orders(listed, planned.request.orders), execution, tracker)
    except (RunsFailed, Interrupted) as error:
        tracker.close(parent, "KILLED" if isinstance(error, Interrupted) else "FAILED")
        raise type(error)("\n".join([str(error), *_failures(failed)])) from None
    tracker.close(parent, "FAILED" if failed else "FINISHED")
    if failed:
        raise RunsFailed("\n".join([text, *_failures(failed)]))
    return "\n".join([*lines, text])


def _confirm(
    planned: PlannedTable, best: Mapping[str, RunRecord], execution: ExecutionConfig, tracker: Tracker
) -> dict[str, ConfirmationResult]:
    """Confirm the best trials of all rows against the recommended settings, in one list of runs."""
    name, search = planned.request.name, planned.search
    listed = []
    for row in planned.searched:
        if search.confirm and row.sweep is not None and row.sweep.request.name in best:
            listed += candidates(tracker, row.sweep.request.name, row.sweep.unsearched(execution.workers), search)
    found = confirm(name, listed, len(planned.stream.tasks), execution, tracker, search, resume_command(name))
    return {sweep: verdict for sweep, verdict in found.items() if isinstance(verdict, ConfirmationResult)}


def _rerun_of(
    planned: PlannedTable,
    place: int,
    best: Mapping[str, RunRecord],
    verdicts: Mapping[str, ConfirmationResult],
    tracker: Tracker,
) -> Rerun | None:
    """Return the rerun of a row: its winner, or the recommended settings if these were kept; None without a winner."""
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
        experiment = verdict.chosen if verdict else experiment_of(best[name])
        more = searched_tags(experiment.name, trials, planned.search.metric)
        if verdict:
            notes.append(verdict.note)
        if verdict and not verdict.is_confirmed:
            more = unsearched_tags(experiment.name)
            notes[-1] = f"the recommended settings; the best of {len(trials)} trials is {verdict.note}"
    tags |= {"ctvr.note": NOTES.join(notes)} if notes else {}
    return Rerun(experiment, tags | more)


def _used(planned: PlannedTable, tracker: Tracker) -> frozenset[int]:
    """Return all seeds of trials and confirmations."""
    found = frozenset[int]()
    for row in planned.searched:
        assert row.sweep is not None
        name = row.sweep.request.name
        found |= used_seeds([*tracker.find_runs(sweep=name), *tracker.find_runs(tags={CONFIRMS: name})])
    return found


def _rerun(planned: PlannedTable, runs: list[Rerun], execution: ExecutionConfig, tracker: Tracker) -> str:
    name, seeds = planned.request.name, planned.request.preset.seeds
    if not seeds:
        warn_unsent(tracker)
        return ""
    if not runs:
        warn_unsent(tracker)
        raise RunsFailed(f"table {name}: no row has a winner, so no table is written. `ctvr ui` shows why.")
    settings = {"rerun_of": name, "seeds": seeds, "rows": len({run.tags["ctvr.place"] for run in runs})}
    again = resume_command(name)
    preset, stream = planned.request.preset, planned.stream.name
    equal = {row: each.row.name for each in planned.rows for row in each.equal}
    claims = ClaimTable(name, preset, stream, planned.request.overrides, equal)
    try:
        text = execute_rerun(name, runs, execution, tracker, settings, again, planned.request.direction)
    except RunsFailed as error:
        if preset.claims and tracker.find_runs(tags={RERUN: name, "ctvr.complete": "true"}):
            raise RunsFailed(f"{error}\n{judge_table(claims, execution)}") from error
        raise
    return f"{text}\n{judge_table(claims, execution)}" if preset.claims else text


def _failures(rows: list[str]) -> list[str]:
    return [f"rows without a winner, missing from the table: {', '.join(rows)}"] if rows else []


def _plan_text(
    planned: PlannedTable, room: Capacity, decoded: int, execution: ExecutionConfig, tracker: Tracker
) -> str:
    """Describe the table before it starts."""
    request, search, searched = planned.request, planned.search, planned.searched
    unsearched = [row.row.name for row in planned.rows if row.sweep is None]
    budget = "none: every row runs its recommended preset"
    if searched:
        budget = f"{search.trials} for each row, {search.trials * len(searched)} in all, by {search.searcher}, "
        most = most_at_once(search, search.trials, len(searched))
        epochs = [row.sweep.epochs for row in searched if row.sweep is not None]
        budget += f"{describe_scheduler(search, len(planned.stream.tasks), epochs)}; {describe_concurrency(room, most)}"
    split = searched[0].experiment.evaluation.split if searched else "test"
    runs = expand_seeds([Rerun(row.experiment) for row in planned.rows], request.preset.seeds, execution.workers)
    runs = expand_task_orders(runs, request.orders)
    orders = f" and {request.orders} orders of tasks" if request.orders > 1 else ""
    lines = [
        f"table {request.name}: {request.preset.title}, on {planned.stream.name}, {len(planned.stream.tasks)} tasks",
        f"  searched   {', '.join(row.row.name for row in searched) or 'no row'}",
        f"  presets    {', '.join(unsearched) or 'no row'} (not searched)",
        f"  trials     {budget}",
        f"  chosen by  {describe_metric(search.metric)} on {split} videos",
        f"  confirms   {describe_confirmation(search) if searched else 'nothing is searched'}",
        f"  rerun      all rows over {request.preset.seeds} seeds{orders} on test videos: {len(runs)} runs in one "
        "rerun",
        f"  resources  {resources_text(execution, room)}",
        *precision_lines(execution, [row.experiment.run.precision for row in planned.rows], room.models),
        *batch_lines(execution, [row.experiment.data.batch_size for row in planned.rows]),
        f"  videos     {describe_decoding(decoded)}",
        f"  tracking   {tracker.uri.split('@')[-1]}",
        "  time       known when the first trial is complete",
    ]
    if left_out := [row.name for row in request.preset.rows if not row.is_for(stream_names(planned.stream))]:
        lines.append(f"  left out   {'; '.join(left_out)} (not for this stream)")
    if mark := planned.stream.table_caveat:
        lines.append(f"  note       {mark}")
    return "\n".join(lines)
