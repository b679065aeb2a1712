"""Execution of sweeps: hyperparameter searches of table rows, confirmation of winners, and reruns over seeds.

The searches of all rows have the same budget and metric.

A search of one method, `NAME`, is an MLflow parent run with one child per trial; its rerun includes the baselines. A
table `NAME` is a parent run, a search `NAME-ROW` for each searched row, and the rerun `NAME-final-...` of all rows.
Trials of all rows are interleaved on one cluster, so that it is not idle while the last trial of a row runs. A failed
row does not stop the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from ctvr.orchestrator.console import count, say
from ctvr.orchestrator.errors import ConfigError, Interrupted, RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.on_ray.capacity import capacity, final_concurrency
from ctvr.orchestrator.on_ray.plan import SearchOutcome, TrialPlan, read_plan, write_plan
from ctvr.orchestrator.on_ray.plan_types import naming_plan
from ctvr.orchestrator.on_ray.search import describe_space
from ctvr.orchestrator.on_ray.search_space import RowPlan, SearchSpace
from ctvr.orchestrator.on_ray.tune import can_resume, run_rows
from ctvr.orchestrator.output_dir import check_name
from ctvr.orchestrator.settings.resolve import named_in
from ctvr.orchestrator.sweeps import mlflow_notes
from ctvr.orchestrator.sweeps.claims import RERUN, ClaimTable, judge_table
from ctvr.orchestrator.sweeps.comparison import ConfirmationResult, experiment_of
from ctvr.orchestrator.sweeps.confirm import candidates, confirm
from ctvr.orchestrator.sweeps.driver import only_driver
from ctvr.orchestrator.sweeps.front import FrontResult
from ctvr.orchestrator.sweeps.plan import SweepPlan, SweepRequest, plan_sweep, read_request
from ctvr.orchestrator.sweeps.plan_text import describe_outcome, describe_plan, describe_request, flat_search
from ctvr.orchestrator.sweeps.preparation import decoded_in, prepare_all
from ctvr.orchestrator.sweeps.rerun import OVERRIDES, execute_rerun, rerun, searched_tags, unsearched_tags
from ctvr.orchestrator.sweeps.run_names import require_free_name
from ctvr.orchestrator.sweeps.selection import (
    SPACE,
    Rerun,
    best_trials,
    expand_seeds,
    expand_task_orders,
    have_no_winner,
    used_seeds,
)
from ctvr.orchestrator.sweeps.session import (
    check_machine,
    close_search,
    flush_outbox,
    interruptible,
    not_started,
    ray_cluster,
    restore_execution,
    resume_options,
    trial_plan,
    warn_unsent,
)
from ctvr.orchestrator.sweeps.trust import resume_command
from ctvr.orchestrator.sweeps.verdict import CONFIRMS
from ctvr.orchestrator.tables.build import VARIES
from ctvr.orchestrator.tables.footnotes import NOTES
from ctvr.orchestrator.tables.paper_comparison import ROW, TABLE_NAME
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

Verdicts = Mapping[str, ConfirmationResult | FrontResult]  # MLflow name of a search -> result of its confirmation


def sweep(request: SweepRequest, execution: ExecutionConfig) -> str:
    """Search the rows of a request, then rerun the winners and the other rows over seeds if requested.

    Returns:
        the results as text, with the table of the rerun.

    Raises:
        ConfigError: for a request that cannot run.
        RunsFailed: if rows or runs failed.
        Interrupted: after Ctrl-C, with the command that resumes.
    """
    require_free_name(request.name, execution)
    execution.check()
    request = replace(request, stream=find_manifest(request.stream))
    plan = plan_sweep(request, execution)
    check_machine(execution, request.name, [row.experiment for row in plan.rows])
    with only_driver(execution.folder(request.name), request.name):
        require_free_name(request.name, execution)  # checked again, because another driver may have started first
        say(describe_request(plan, execution.workers))
        trials = trial_plan(execution, request.name, [row.experiment for row in plan.rows])
        _record(plan, trials, execution)
        try:
            return _drive(plan, execution, trials)
        except ConfigError:
            if not read_plan(execution.folder(request.name), request.name)[0].parent:
                (execution.folder(request.name) / "plan.json").unlink()  # its name remains free
            raise


def _record(plan: SweepPlan, trials: TrialPlan, execution: ExecutionConfig) -> None:
    """Write plan.json, which `--resume` reads. The trials' plan has a `parent` once the sweep has started."""
    write_plan(
        trials, execution.folder(plan.request.name), request=asdict(plan.request), where=resume_options(execution)
    )


def resume(name: str, execution: ExecutionConfig) -> str:
    """Resume an interrupted sweep or table (`ctvr sweep --resume`); finished searches and runs are not repeated.

    Raises:
        ConfigError: if the sweep does not exist, or another version wrote its plan.
        RunsFailed, Interrupted: as `sweep`.
    """
    check_name(name, "--resume")
    file = execution.folder(name) / "plan.json"
    trials, kept = read_plan(file.parent, name)
    request = read_request(file, kept.get("request", {}))
    execution.check()
    execution = restore_execution(execution, trials, kept)
    with only_driver(file.parent, name), named_in(f"sweep {name}, plan.json"):
        with naming_plan(file):
            execution.check()
            plan = plan_sweep(request, execution)
        say(describe_request(plan, execution.workers))
        return _drive(plan, execution, trials)


# ------------------------------------------------------------------------------------------------- search


def _drive(plan: SweepPlan, execution: ExecutionConfig, recorded: TrialPlan) -> str:
    """Execute a checked plan; return the results as text. `recorded` is the trial plan in plan.json."""
    name = plan.request.name
    what = f"{'table' if plan.request.is_table else 'sweep'} {name}"
    with not_started(what, resume_command(name), execution), ray_cluster(execution) as execution:
        experiments = [row.experiment for row in plan.rows]
        trials = trial_plan(execution, name, experiments, recorded)
        room = capacity(trials, execution.max_concurrent)
        if not recorded.parent:  # a search that was started must propose the same trials again
            plan = plan.fit_to(final_concurrency(trials, room, execution.max_concurrent))
        splits, on_host = plan.stream.splits, not execution.gpus_per_trial
        ready = prepare_all(experiments, execution, splits, on_host, on_cluster=True)
        stream = ready[0].stream
        tracker = execution.tracker(stream.name)  # after all checks, which may refuse the sweep
        say(describe_plan(plan, room, decoded_in(ready), execution, tracker))
        if ready[0].zero_shot and not plan.request.is_table:
            split = experiments[0].evaluation.split
            say(f"  zero-shot  R@1 {ready[0].zero_shot[-1]:.2f} on {split} videos, without training")
        rows = _open_runs(plan, replace(trials, tracking_uri=tracker.uri), stream.name, tracker)
        run_ids = {row: each.plan.parent or "" for row, each in rows.items()}
        searches = {row: each for row, each in rows.items() if row in plan.searches}
        if searches and can_resume(trials):
            scheduler = plan.search_config.scheduler
            limit = f"; {scheduler} compares only trials that still run" if plan.search_config.depends_on_timing else ""
            say(f"resumed: finished tasks are kept{limit}")
        _record(plan, rows[""].plan, execution)
        with interruptible(what, resume_command(name), execution, tracker, list(run_ids.values())):
            outcomes: dict[str, SearchOutcome] = {}
            if searches:
                outcomes = run_rows(searches, len(stream.tasks), plan.search_config, execution.max_concurrent)
            if any(outcome.is_interrupted for outcome in outcomes.values()):
                raise KeyboardInterrupt  # a signal that Ray Tune handled
            return _conclude(plan, outcomes, run_ids, execution, tracker)


def _open_runs(plan: SweepPlan, trials: TrialPlan, stream: str, tracker: Tracker) -> dict[str, RowPlan]:
    """Open an MLflow run for each search, and a run for a table; return the trial plan and search space of each row.

    The key "" stands for the search of one method, or for the table itself, whose search space is empty.
    """
    request, config = plan.request, plan.search_config
    title = {"ctvr.table": request.preset.title} if request.is_table else {}
    row_plans: dict[str, RowPlan] = {}
    if request.is_table:
        settings = {"rows": ",".join(row.row.name for row in plan.rows), "seeds": request.preset.seeds}
        settings |= {**flat_search(config), "search.trials": config.trials if plan.searches else 0}
        parent = tracker.open_sweep(request.name, stream, settings, title)
        row_plans[""] = RowPlan(replace(trials, parent=parent), SearchSpace({}, {}, {}))
    for row, search in plan.searches.items():
        settings = {**search.experiment.settings, **flat_search(config)}
        tags = {OVERRIDES: json.dumps(request.overrides), SPACE: json.dumps(describe_space(search.space)), **title}
        parent = tracker.open_sweep(search.name, stream, settings, tags)
        question = f"Which settings of {search.row.method} are best on {stream}?"
        mlflow_notes.write_sweep_note(tracker, parent, request.name, question, config, search.space)
        own = replace(trials, sweep=search.name, parent=parent, settings=search.fixed_settings, epochs=search.epochs)
        own = replace(own, presets=search.experiment.presets, tags={"ctvr.role": "trial"})
        row_plans[row] = RowPlan(own, search.search_space)
    return row_plans


# ------------------------------------------------------------------------------------------ confirmation, rerun


def _conclude(
    plan: SweepPlan,
    outcomes: Mapping[str, SearchOutcome],
    run_ids: Mapping[str, str],
    execution: ExecutionConfig,
    tracker: Tracker,
) -> str:
    """Close the searches, confirm their winners and rerun all rows; return a summary and the table.

    Args:
        plan: the plan of the sweep.
        outcomes: outcome of the search of each row.
        run_ids: MLflow run id of the search of each row; for "", the run id of the sweep.
        execution: execution settings.
        tracker: records of runs.
    """
    request, again = plan.request, resume_command(plan.request.name)
    for row, outcome in outcomes.items():
        close_search(tracker, run_ids[row], outcome)
    if waiting := flush_outbox(tracker):
        raise RunsFailed(
            f"{count(waiting, 'record waits', 'records wait')} because MLflow does not respond"
            f", so no winner can be selected. Restart MLflow, then: ctvr runs sync; {again}"
        )
    best = {row: best_trials(tracker, plan.searches[row].name, None) for row, each in outcomes.items() if each.complete}
    lines = [
        line
        for row, outcome in outcomes.items()
        for line in describe_outcome(plan, row, outcome, best.get(row, ()), execution.workers)
    ]
    for row in best:
        search = plan.searches[row]
        mlflow_notes.annotate_search(tracker, run_ids[row], search.name, search.space, plan.search_config)
    if not request.is_table:
        if not best:
            raise RunsFailed("\n".join(lines))
        lines += [verdict.text for verdict in _confirm(plan, best, run_ids, lines, execution, tracker).values()]
        if seeds := request.preset.seeds:
            counts, orders = (request.top, seeds), request.orders
            lines.append(rerun(request.name, execution, *counts, request.baselines, request.direction, orders))
        return "\n".join(lines)
    failed = [row for row, outcome in outcomes.items() if not outcome.complete]
    missing = [f"rows without a winner, missing from the table: {', '.join(failed)}"] if failed else []
    try:
        verdicts = _confirm(plan, best, run_ids, lines, execution, tracker)
        lines += [f"{sweep}: {verdict.text}" for sweep, verdict in verdicts.items()]
        text = _rerun_table(plan, best, verdicts, execution, tracker)
    except (RunsFailed, Interrupted) as error:
        tracker.close(run_ids[""], "KILLED" if isinstance(error, Interrupted) else "FAILED")
        raise type(error)("\n".join([str(error), *missing])) from None
    tracker.close(run_ids[""], "FAILED" if failed else "FINISHED")
    if failed:
        raise RunsFailed("\n".join([text, *missing]))
    return "\n".join([*lines, text])


def _confirm(
    plan: SweepPlan,
    best: Mapping[str, Sequence[RunRecord]],
    run_ids: Mapping[str, str],
    lines: Sequence[str],
    execution: ExecutionConfig,
    tracker: Tracker,
) -> Verdicts:
    """Print `lines`, then confirm the best trials of all rows against the recommended settings, in one rerun."""
    listed = []
    for row in best if plan.search_config.confirm else ():
        search = plan.searches[row]
        listed += candidates(tracker, search.name, search.recommended_experiment(execution.workers), plan.search_config)
    if listed or plan.request.is_table:
        say("\n".join(lines))
    elif plan.search_config.confirm:
        only = "complete" if len(plan.search_config.metrics) == 1 else "on the Pareto front"
        equal = have_no_winner(best[""], plan.search_config.metric)
        why = "all trials are equal" if equal else f"only the recommended trial is {only}"
        say(f"confirmation: skipped, because {why}")
    name = plan.request.name
    verdicts = confirm(
        name, listed, len(plan.stream.tasks), execution, tracker, plan.search_config, resume_command(name)
    )
    for row in best:
        if verdict := verdicts.get(plan.searches[row].name):
            mlflow_notes.append_confirmation(tracker, run_ids[row], [verdict.text])
    return verdicts


def _rerun_table(
    plan: SweepPlan,
    best: Mapping[str, Sequence[RunRecord]],
    verdicts: Verdicts,
    execution: ExecutionConfig,
    tracker: Tracker,
) -> str:
    """Rerun all rows of a table over its seeds and task orders; return the table and the verdicts on its claims."""
    request, preset = plan.request, plan.request.preset
    runs = [_plan_rerun(plan, place, best, verdicts, tracker) for place in range(len(plan.rows))]
    sweeps = [search.name for search in plan.searches.values()]
    tried = [run for name in sweeps for run in tracker.find_runs(sweep=name)]
    tried += [run for name in sweeps for run in tracker.find_runs(tags={CONFIRMS: name})]
    listed = expand_seeds([run for run in runs if run], preset.seeds, execution.workers, used_seeds(tried))
    listed = expand_task_orders(listed, request.orders)
    if not preset.seeds or not listed:
        warn_unsent(tracker)
    if not preset.seeds:
        return ""
    name = request.name
    if not listed:
        raise RunsFailed(f"table {name}: no row has a winner, so no table is written. `ctvr ui` shows why.")
    settings = {"rerun_of": name, "seeds": preset.seeds, "rows": len({run.tags["ctvr.place"] for run in listed})}
    equal = {row: each.row.name for each in plan.rows for row in each.duplicates}
    claims = ClaimTable(name, preset, plan.stream.name, request.overrides, equal)
    try:
        text = execute_rerun(name, listed, execution, tracker, settings, resume_command(name), request.direction)
    except RunsFailed as error:
        if preset.claims and tracker.find_runs(tags={RERUN: name, "ctvr.complete": "true"}):
            raise RunsFailed(f"{error}\n{judge_table(claims, execution)}") from error
        raise
    return f"{text}\n{judge_table(claims, execution)}" if preset.claims else text


def _plan_rerun(
    plan: SweepPlan, place: int, best: Mapping[str, Sequence[RunRecord]], verdicts: Verdicts, tracker: Tracker
) -> Rerun | None:
    """Return the rerun of a row's winner, or of its recommended settings if these were kept; None without a winner."""
    row, preset = plan.rows[place], plan.request.preset
    tags = {"ctvr.place": f"{place:03d}", "ctvr.table": preset.title, ROW: row.row.name}
    tags |= {VARIES: ",".join(preset.varies)} if preset.varies else {}
    tags |= {TABLE_NAME: preset.name} if preset.name else {}
    notes, experiment = list(row.row.notes), row.experiment
    more = unsearched_tags(experiment.name)
    if row.search is not None:
        if row.row.name not in best:
            return None
        trials, verdict = tracker.find_runs(sweep=row.search.name), verdicts.get(row.search.name)
        experiment, is_kept = experiment_of(best[row.row.name][0]), False
        if isinstance(verdict, ConfirmationResult):
            experiment, is_kept = verdict.chosen, not verdict.is_confirmed
            kept = f"the recommended settings; the best of {len(trials)} trials is {verdict.note}"
            notes.append(kept if is_kept else verdict.note)
        if not is_kept:
            more = searched_tags(experiment.name, trials, plan.search_config.metric)
    tags |= {"ctvr.note": NOTES.join(notes)} if notes else {}
    return Rerun(experiment, tags | more)
