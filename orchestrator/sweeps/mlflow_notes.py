"""Annotation of a sweep and its rerun for MLflow's pages: run names, a note, metrics, tables, the winner.

Commands do not read these annotations, and an error of the server does not stop the sweep.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ctvr.orchestrator.console import say
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.plan import GAIN, NUMBER, SearchConfig
from ctvr.orchestrator.settings.resolve import stored_capabilities
from ctvr.orchestrator.streams.metric_names import ACCURACY, ANSWERED, FORGETTING
from ctvr.orchestrator.sweeps.best import promote
from ctvr.orchestrator.sweeps.comparison import last_value
from ctvr.orchestrator.sweeps.front import describe_front
from ctvr.orchestrator.sweeps.selection import best_trials, describe_metric, have_no_winner, result_text
from ctvr.orchestrator.sweeps.trust import resume_command, trust_text
from ctvr.orchestrator.tables.footnotes import CHOICE, trials_of
from ctvr.orchestrator.tracking.internals import NOTE
from ctvr.orchestrator.tracking.mlflow_ui import code, plain, short_name
from ctvr.orchestrator.tracking.run_record import RunRecord, is_count
from ctvr.orchestrator.tracking.tracker import Tracker

R1, BWF = "stream/t2v/r1", "stream/t2v/bwf"
MODEL = "ctvr"  # name of the registered model; one version for the winner of each rerun


def write_sweep_note(
    tracker: Tracker, parent: str, name: str, question: str, config: SearchConfig, space: Mapping[str, Any]
) -> None:
    """Write the note of a starting sweep: question, searched settings, budget, and the command that resumes it."""
    lines = [
        f"- searched: {', '.join(f'`{setting}`' for setting in space)}",
        f"- budget: {config.trials} trials by {config.searcher}, scheduler {config.scheduler}; "
        f"{'best' if len(config.metrics) == 1 else 'Pareto front'} by {describe_metric(config.metric)}",
        f"- resume after an interruption: `{resume_command(name)}`",
    ]
    tracker.set_tags(parent, {NOTE: "\n\n".join([f"**{plain(question)}**", "\n".join(lines)])})


def annotate_search(tracker: Tracker, parent: str, name: str, space: Mapping[str, Any], config: SearchConfig) -> None:
    """Annotate a finished search: give trials short names; add metrics and winner or Pareto front to the parent run."""
    with _best_effort():
        trials = tracker.find_runs(sweep=name)
        unlike = [key for key in space if len({str(run.settings.get(key)) for run in trials}) > 1]
        for run in trials:
            number = run.tags.get(NUMBER, "")
            differing = {key: run.settings[key] for key in unlike if key in run.settings}
            gain = last_value(run, GAIN)
            title = short_name(
                int(number) if is_count(number) else None,
                run.tags.get("ctvr.stopped", ""),
                gain if math.isfinite(gain) else None,
                differing,
            )
            tracker.rename(run.run_id, title)
        ranked = best_trials(tracker, name, None)
        best, metric = ranked[0], config.metric
        stopped = sum("ctvr.stopped" in run.tags for run in trials)
        complete = sum(run.tags.get("ctvr.complete") == "true" for run in trials)
        numbers = {"trials/complete": complete, "trials/stopped": stopped, "trials/all": len(trials)}
        what, trust = _kind_of_data([best]), trust_text()
        if len(config.metrics) > 1:  # a front has no winner whose metrics represent the sweep
            tracker.log_task(parent, 0, numbers)
            text = describe_front(ranked, (metric, config.mode))
            again = f"- repeat it over new seeds, on test {what}: `ctvr rerun --sweep {name}{trust}`"
            _add_note(tracker, parent, [f"**Pareto front** by {describe_metric(metric)}", *_item(text), again])
            return
        _log_summary(tracker, parent, best, numbers)
        found = ", ".join(code(f"{key}={best.settings[key]}") for key in space if key in best.settings)
        experiment = tracker.experiment(best.tags.get("ctvr.stream", ""))
        title = "No winner, because all trials are equal; the first" if have_no_winner(trials, metric) else "Winner"
        lines = [
            f"**{title}**: [{plain(best.name)}](#/experiments/{experiment}/runs/{best.run_id}), "
            f"{describe_metric(metric)} {result_text(best, metric)} "
            f"on {best.tags.get('ctvr.split')} {what}",
            f"- {found}",
            *([] if what != "videos" else [f"- query it: `ctvr search 'TEXT' --model {name}{trust}`"]),
            f"- repeat it over new seeds, on test {what}: `ctvr rerun --sweep {name}{trust}`",
            f"- one HTML file to mail: `ctvr report {name}{trust}` (then under Artifacts, `page/`)",
        ]
        _add_note(tracker, parent, lines)


def append_confirmation(tracker: Tracker, parent: str, texts: Sequence[str]) -> None:
    """Append the results of the confirmation to the note of the sweep."""
    with _best_effort():
        if texts:
            note = tracker.client.get_run(parent).data.tags.get(NOTE, "")
            new = [line for text in texts if text not in note for line in _item(text)]
            tracker.set_tags(parent, {NOTE: "\n".join([note, *new])})


def _item(text: str) -> list[str]:
    """Return a text as lines of Markdown: a list item, or a code block if the text has several lines."""
    return ["```", text, "```"] if "\n" in text else [f"- {text}"]


def annotate_confirmation_runs(
    tracker: Tracker, parent: str, name: str, sweeps: Sequence[str], texts: Sequence[str], kept: Sequence[str] = ()
) -> None:
    """Annotate a finished confirmation: give its runs short names, and add its results to its parent run.

    Args:
        tracker: records of runs.
        parent: run id of the confirmation's parent run.
        name: name of the confirmation.
        sweeps: names of the confirmed searches.
        texts: results as text.
        kept: the chosen candidate of each search, "" for a Pareto front. If there is one candidate, the metrics of its
            first seed are logged on the parent run.
    """
    with _best_effort():
        trials = [run for sweep in sweeps for run in tracker.find_runs(sweep=sweep)]
        numbers = {run.name: f"#{int(run.tags[NUMBER])}" for run in trials if is_count(run.tags.get(NUMBER, ""))}
        runs = tracker.find_runs(sweep=name, tags={"ctvr.complete": "true"})
        for run in runs:
            label = numbers.get(run.tags.get("ctvr.candidate", ""), run.tags.get("ctvr.candidate", ""))
            place = f"{run.tags['ctvr.method']} " if len(sweeps) > 1 else ""
            tracker.rename(run.run_id, f"{place}{label} s{run.settings.get('seed')} {_format_first(run)}")
        which = "The Pareto front" if "" in kept else "The best trials"
        lines = [f"**{which} and the recommended settings, repeated over new seeds on validation videos**"]
        best = [run for run in runs if len(kept) == 1 and run.tags.get("ctvr.candidate") == kept[0]]
        if best:
            first = min(best, key=lambda run: int(run.settings.get("seed", 0)))
            _log_summary(tracker, parent, first, {"runs/complete": len(runs)})
            lines.append(f"- chosen: {plain(first.name)}")
        tracker.set_tags(parent, {NOTE: "\n".join([*lines, *(line for text in texts for line in _item(text))])})


def _format_first(run: RunRecord) -> str:
    """Format R@1 of a run, or the accuracy on a stream of images or questions, in percent."""
    value, counted = last_value(run, R1), last_value(run, ANSWERED if run.last(ANSWERED) else ACCURACY)
    return f"R@1 {value:.1f}" if math.isfinite(value) else f"acc {counted:.1f}"


def annotate_rerun(tracker: Tracker, parent: str, name: str, of: str, execution: ExecutionConfig) -> None:
    """Annotate a finished rerun with short names, table, figures and note; register the winner as a model version."""
    with _best_effort():
        runs = tracker.find_runs(sweep=name, tags={"ctvr.complete": "true"})
        for run in runs:
            label = run.tags.get("ctvr.row") or run.tags.get("ctvr.method", "")
            choice = f" {run.tags[CHOICE]}" if run.tags.get(CHOICE) else ""
            tracker.rename(run.run_id, f"{label}{choice} s{run.settings.get('seed')} {_format_first(run)}")
        folder = execution.runs.resolve() / "tables" / name
        if folder.is_dir():
            tracker.log_artifacts(parent, folder, into="table")
        what = _kind_of_data(runs)
        lines = [
            f"**Winners of {of} and baselines, repeated over new seeds on test {what}**",
            "- table and figures: under Artifacts, `table/`",
            f"- the same table: `ctvr table --sweep {name}`; one HTML file to mail: `ctvr report {name}{trust_text()}`",
        ]
        if best := selected_run(runs):
            _log_summary(tracker, parent, best, {"runs/complete": len(runs)})
            version, moved = _register(tracker, best)
            kept = f", version {version} of the model `{MODEL}`" if version else ""
            lines += [f"- chosen: {plain(best.name)}{kept}", *([f"- {plain(moved)}"] if moved else [])]
        tracker.set_tags(parent, {NOTE: "\n".join(lines)})


def _kind_of_data(runs: Sequence[RunRecord]) -> str:
    """Return the kind of data on which the runs were tested: "images", "questions" or "videos"."""
    for metric, what in ((ACCURACY, "images"), (ANSWERED, "questions")):
        if any(run.last(metric) is not None for run in runs):
            return what
    return "videos"


def selected_run(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run with the first seed of the candidate that the confirmation on validation videos chose.

    Returns None without a search, after a search of several rows, or if trials are on a Pareto front.
    """
    if any(run.tags.get(CHOICE, "").startswith("front") for run in runs):
        return None
    confirmed = [
        run for run in runs if run.tags.get(CHOICE) == "searched" and "NOT" not in run.tags.get("ctvr.note", "")
    ]
    kept = [run for run in runs if run.tags.get(CHOICE) == "recommended"]
    searched = [run for run in runs if trials_of(run)]
    for group in (confirmed, kept, searched):
        if group and len({run.tags.get("ctvr.place", "") for run in group}) == 1:
            return min(group, key=lambda run: int(run.settings.get("seed", 0)))
    return None


def _register(tracker: Tracker, run: RunRecord) -> tuple[str | None, str]:
    """Register a run's model as a new version. If it is the best of its stream (best.py), point the aliases to it.

    Returns:
        number of the version, or None if the run has no model; note on the alias `best-STREAM`, "" for an upper bound
    """
    if stored_capabilities(run.settings).reencodes_gallery:
        return None, ""
    is_best, said = promote(tracker, run)
    if not tracker.has_artifacts(run.run_id, "model"):
        return None, said
    aliases = ("best", f"best-{run.tags.get('ctvr.stream', '')}") if is_best else ()
    return tracker.register_model(run.run_id, MODEL, aliases), said


def _log_summary(tracker: Tracker, parent: str, best: RunRecord, more: Mapping[str, float]) -> None:
    """Log the best run's final metrics, and the values `more`, on the parent run."""
    points = {key: best.last(key) for key in (R1, GAIN, BWF, ACCURACY, FORGETTING, ANSWERED)}
    step = max((point[0] for point in points.values() if point), default=0)
    values = {key: point[1] for key, point in points.items() if point and math.isfinite(point[1])}
    tracker.log_task(parent, step, {**values, **more})


def _add_note(tracker: Tracker, parent: str, lines: Sequence[str]) -> None:
    """Insert lines on the winner after the question of the note, because MLflow's page shows only the first lines."""
    parts = tracker.client.get_run(parent).data.tags.get(NOTE, "").split("\n\n")
    tracker.set_tags(parent, {NOTE: "\n\n".join([parts[0], "\n".join(lines), parts[-1]])})


@contextlib.contextmanager
def _best_effort() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a failed annotation must not stop a sweep of hours
        say(f"tracking: some annotations in MLflow are missing ({type(error).__name__}: {error})")
