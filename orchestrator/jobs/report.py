"""Report of a sweep, a rerun or a stream's runs as one self-contained HTML file (`ctvr report`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ctvr.orchestrator import memo
from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.answers import COMPLETE, find_answers
from ctvr.orchestrator.on_ray.plan import NUMBER, names_of
from ctvr.orchestrator.pages.confusion import confusion_html
from ctvr.orchestrator.pages.forgetting import ANCHOR
from ctvr.orchestrator.pages.html import check_page, write_page
from ctvr.orchestrator.pages.report import report
from ctvr.orchestrator.pages.search_space import SearchedSetting, SearchedSpace, Trial, round_number
from ctvr.orchestrator.streams.metric_names import COSTS
from ctvr.orchestrator.sweeps.comparison import last_value
from ctvr.orchestrator.sweeps.front import describe_front, on_front
from ctvr.orchestrator.sweeps.selection import (
    PLANNED,
    SPACE,
    best_trials,
    describe_metric,
    have_no_winner,
    selection_metric,
)
from ctvr.orchestrator.sweeps.table import made_tables, no_runs_of
from ctvr.orchestrator.sweeps.verdict import read_verdict
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.write import write_slides
from ctvr.orchestrator.tracking.run_record import RunRecord, is_count
from ctvr.orchestrator.tracking.server import default_uri
from ctvr.orchestrator.tracking.tracker import Tracker


def make_report(
    name: str,
    execution: ExecutionConfig,
    html: Path | None = None,
    figures: Path | None = None,
    columns: Sequence[str] = (),
) -> str:
    """Write a report as `write_report` does; return the line that names its file and the folder of its figures."""
    file = write_report(name, execution, html, figures, columns)
    return f"written: {file}" if figures is None else f"written: {file}, and figures as SVG and PDF in {figures}"


def open_line(name: str, execution: ExecutionConfig) -> str:
    """Write a report; return the line with its address, which opens at the forgetting explorer."""
    return f"open: {write_report(name, execution).as_uri()}#{ANCHOR}"


def write_report(
    name: str,
    execution: ExecutionConfig,
    html: Path | None = None,
    figures: Path | None = None,
    columns: Sequence[str] = (),
) -> Path:
    """Write the report of a sweep with its rerun, of a rerun, or of all complete runs of a stream; return its path.

    Args:
        name: name of a sweep, a rerun (NAME-final-...) or a stream.
        html: the file; if None, `RUNS/pages/NAME.html`.
        figures: folder in which the figures of the tables are also written as SVG and PDF.
        columns: names of further metrics, each a column of the tables.

    Raises:
        ConfigError: if no complete run is found, or a file cannot be written.
    """
    if html is not None:
        check_page(html)
    tracker = execution.existing_tracker()
    sweep = tracker.find_sweep(name)
    if sweep is None and not tracker.find_runs(stream=name):
        raise ConfigError(no_runs_of(name, tracker), "report")
    search = tracker.find_sweep(str(sweep.settings.get("rerun_of", name))) if sweep else None
    reruns = tracker.find_runs(tags={"ctvr.rerun_of": name, COMPLETE: "true"}) if sweep else []
    shown = reruns[-1].tags["ctvr.sweep"] if reruns else name
    tables = made_tables(execution, shown if sweep else None, None if sweep else name, columns=columns)
    if figures is not None:
        write_slides(tables, figures)
    facts = _facts(name, search or sweep, tracker)
    if reruns:
        which = "the Pareto front" if search and "," in selection_metric(search)[0] else "the best"
        facts.append(("Shown below", f"{which} and the baselines, over new seeds on test videos: {shown}"))
    answers, status = find_answers(tables[0], tracker, execution), _status(tables, shown, tracker)
    confused = confusion_html(answers.best, answers.categories)
    searched = _describe_search(search, tracker)
    text = report(name, facts, tables, answers.histories, answers.tasks, searched, status, confused)
    file = write_page(html or execution.runs / "pages" / f"{Path(name).stem}.html", text)
    if sweep is not None and tracker.uri == default_uri(execution.runs):  # otherwise the records cannot be written
        tracker.log_artifacts(sweep.run_id, [file], into="page")  # an artifact of the sweep in MLflow
    return file


def _status(tables: Sequence[Table], shown: str, tracker: Tracker) -> str:
    """Return a text on limits of the shown results: short training, the number of seeds, open runs of a rerun."""
    rows = [row for table in tables for row in table.rows]
    ids = {each for row in rows for each in row.runs}
    runs = [run for run in tracker.find_runs(tags={COMPLETE: "true"}) if run.run_id in ids]
    short = sum(map(_is_short, runs))
    which = "all runs" if short == len(runs) else f"{short} of {len(runs)} runs"
    parts = [f"{which}: fewer epochs than recommended"] if short else []
    least, most = (choose([len(row.seeds) for row in rows], default=0) for choose in (min, max))
    parts.append(f"{most} seed{'s' * (most != 1)}" if least == most else f"{least} to {most} seeds")
    parents = [each for each in tracker.find_sweeps() if shown in (each.name, each.settings.get("rerun_of"))]
    if parents and is_count(planned := parents[-1].tags.get(PLANNED, "")):
        complete = len(tracker.find_runs(sweep=parents[-1].name, tags={COMPLETE: "true"}))
        if complete < int(planned):
            parts.append(f"rerun: {complete} of {planned} runs complete")
    return "; ".join(parts)


def _is_short(run: RunRecord) -> bool:
    """Return whether a run had fewer epochs than recommended for its method."""
    epochs, recommended = str(run.settings.get("optim.epochs", "")), run.tags.get("ctvr.recommended_epochs", "")
    return is_count(epochs) and is_count(recommended) and int(epochs) < int(recommended)


def _facts(name: str, sweep: RunRecord | None, tracker: Tracker) -> list[tuple[str, str]]:
    """Return (title, text) of question, budget, winner and confirmation, from MLflow's records."""
    if sweep is None:
        return [("Shown", f"the complete runs of the stream {name} on one split, without trials of searches")]
    settings, stream = sweep.settings, sweep.tags.get("ctvr.stream", "")
    trials = sweep.tags.get("ctvr.trials")
    if trials is None:
        return [("Question", f"How do these methods compare on the test split of {stream}, over new seeds?")]
    facts = [
        ("Question", f"Which settings of {settings.get('method')} are best on {stream}?"),
        ("Budget", f"{count(int(trials), 'trial')}, {sweep.tags.get('ctvr.complete_trials')} of them complete; "
                   f"searched by {settings.get('search.searcher')}, {settings.get('search.scheduler')}"),
    ]  # fmt: skip
    best, rule = best_trials(tracker, sweep.name, None), selection_metric(sweep)
    if "," in rule[0]:
        facts.append(("Front of the search", describe_front(best, rule)))
    elif have_no_winner(best, rule[0]):
        facts.append(("Winner of the search", f"none, because all {len(best)} complete trials are equal"))
    else:
        facts.append(("Winner of the search", f"{best[0].name}, run {best[0].run_id}{_chosen(sweep, best[0])}"))
    facts.append(
        (
            "Confirmation",
            _verdict(sweep.name, sweep, tracker).removeprefix("confirmation: ") or "none was run, or it has not ended",
        )
    )
    return facts


def _chosen(sweep: RunRecord, best: RunRecord) -> str:
    """Return the searched settings of the best trial as `: name=value, ...`; "" if the space is not recorded."""
    values = {each.name: str(best.settings.get(each.name, "")) for each in _space(sweep, ())}
    words = [f"{name.removeprefix('method.')}={round_number(value)}" for name, value in values.items() if value]
    return f": {', '.join(words)}" if words else ""


def _describe_search(sweep: RunRecord | None, tracker: Tracker) -> SearchedSpace | None:
    """Return the space and the trials of a search, with values of the first objective; None for other sweeps."""
    if sweep is None or "ctvr.trials" not in sweep.tags:
        return None
    metrics, modes = map(names_of, selection_metric(sweep))
    metric, ranked = metrics[0], best_trials(tracker, sweep.name, None)
    front = on_front(ranked, metrics, modes) if len(metrics) > 1 else [True]
    best = {run.run_id for run, is_best in zip(ranked, front) if is_best}
    runs = tracker.find_runs(sweep=sweep.name)
    trials = [
        Trial(
            number=run.tags.get(NUMBER, "").lstrip("0") or run.name,
            settings={name: str(value) for name, value in run.settings.items()},
            value=last_value(run, metric),
            tasks=(run.last(metric) or (0, 0.0))[0],
            state=_state(run),
            is_complete=run.tags.get(COMPLETE) == "true",
            is_winner=run.run_id in best,
            history=tuple(run.metrics.get(metric, ())),
        )
        for run in runs
    ]
    unit = "" if metric.startswith(COSTS) else ", in points"
    measured = f"{describe_metric(metric)}{unit}"
    return SearchedSpace(_space(sweep, trials), tuple(trials), measured, len(metrics) > 1, modes[0] == "min")


def _state(run: RunRecord) -> str:
    if run.tags.get(COMPLETE) == "true":
        return "complete"
    return f"stopped: {run.tags['ctvr.stopped']}" if "ctvr.stopped" in run.tags else run.status.lower()


def _space(sweep: RunRecord, trials: Sequence[Trial]) -> tuple[SearchedSetting, ...]:
    """Return the recorded search space; if it is missing (before version 0.3), infer it from the trials' settings."""
    try:
        known = dict(json.loads(sweep.tags[SPACE]))
        return tuple(
            SearchedSetting(name, tuple(each["values"]))
            if "values" in each
            else SearchedSetting(name, (), float(each["low"]), float(each["high"]), bool(each["log"]))
            for name, each in known.items()
        )
    except (KeyError, ValueError, TypeError, RecursionError):  # MLflow's records may be old, or have been edited
        names = trials[0].settings if trials else {}
        varied = [name for name in names if len({trial.settings.get(name) for trial in trials}) > 1]
        return tuple(_infer_setting(name, trials) for name in varied)


def _infer_setting(name: str, trials: Sequence[Trial]) -> SearchedSetting:
    tried = list(dict.fromkeys(trial.settings.get(name, "") for trial in trials))
    try:
        numbers = sorted({float(value) for value in tried})
    except ValueError:
        return SearchedSetting(name, tuple(tried))
    is_log = numbers[0] > 0 and numbers[-1] / numbers[0] > 5
    return SearchedSetting(name, (), numbers[0], numbers[-1], is_log, is_known=False)


def _verdict(name: str, sweep: RunRecord, tracker: Tracker) -> str:
    """Return the sentence on a sweep's confirmation, computed from complete runs; empty without a confirmation."""
    confirmation = sweep.tags.get("ctvr.confirmation", "")
    if not confirmation:
        return ""

    def compute() -> str:  # imports torch
        verdict = read_verdict(tracker, name)
        return verdict.text if verdict else ""

    complete = [run for each in (name, confirmation) for run in tracker.find_runs(None, each, {COMPLETE: "true"})]
    return str(memo.remembered(["confirmation", name, [run.run_id for run in complete]], compute))
