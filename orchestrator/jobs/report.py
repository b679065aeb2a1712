"""Report of a sweep, a rerun or a stream's runs as one self-contained HTML file (`ctvr report`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ctvr.orchestrator import memo
from ctvr.orchestrator.errors import ConfigError, CtvrError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.record.commits import Commits, digest_of_commit
from ctvr.orchestrator.on_ray.plan import NUMBER, names_of
from ctvr.orchestrator.pages.forgetting import ANCHOR, LostQuery, ModelHistory, lost_names
from ctvr.orchestrator.pages.html import check_page, write_page
from ctvr.orchestrator.pages.report import report
from ctvr.orchestrator.pages.searched import SearchedSetting, SearchedSpace, Trial
from ctvr.orchestrator.streams.metric_names import COSTS
from ctvr.orchestrator.streams.stream import Item, Stream
from ctvr.orchestrator.streams.videos import VideoPlaces, picture_of
from ctvr.orchestrator.sweeps.comparison import last_value
from ctvr.orchestrator.sweeps.front import describe_front, on_front
from ctvr.orchestrator.sweeps.selection import SPACE, best_trials, describe_metric, have_no_winner, selection_metric
from ctvr.orchestrator.sweeps.table import made_tables, no_runs_of
from ctvr.orchestrator.sweeps.verdict import read_verdict
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.server import default_uri
from ctvr.orchestrator.tracking.tracker import Tracker

COMPLETE = "ctvr.complete"


def make_report(name: str, execution: ExecutionConfig, html: Path | None = None) -> str:
    """Write a report as `write_report` does; return the line that names its file."""
    return f"written: {write_report(name, execution, html)}"


def open_line(name: str, execution: ExecutionConfig) -> str:
    """Write a report; return the line with its address, which opens at the forgetting explorer."""
    return f"open: {write_report(name, execution).as_uri()}#{ANCHOR}"


def write_report(name: str, execution: ExecutionConfig, html: Path | None = None) -> Path:
    """Write the report of a sweep with its rerun, of a rerun, or of all complete runs of a stream; return its path.

    Args:
        name: name of a sweep, a rerun (NAME-final-...) or a stream.
        html: the file; None: `RUNS/pages/NAME.html`.

    Raises:
        ConfigError: if no complete run is found, or the file cannot be written.
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
    tables = made_tables(execution, shown, None) if sweep else made_tables(execution, None, name)
    facts = _facts(name, search or sweep, tracker)
    if reruns:
        which = "the Pareto front" if search and "," in selection_metric(search)[0] else "the best"
        facts.append(("Shown below", f"{which} and the baselines, over new seeds on test videos: {shown}"))
    memories, names = _memories(tables, tracker, execution)
    text = report(name, facts, tables, memories, names, _searched(search, tracker))
    file = write_page(html or execution.runs / "pages" / f"{Path(name).stem}.html", text)
    if sweep is not None and tracker.uri == default_uri(execution.runs):  # else its records cannot be written
        tracker.log_artifacts(sweep.run_id, [file], into="page")  # an artifact of the sweep in MLflow
    return file


def _facts(name: str, sweep: RunRecord | None, tracker: Tracker) -> list[tuple[str, str]]:
    """Return question, budget, winner and confirmation from MLflow's records."""
    if sweep is None:
        return [("Shown", f"the complete runs of the stream {name} on one split, without trials of searches")]
    settings, stream = sweep.settings, sweep.tags.get("ctvr.stream", "")
    trials = sweep.tags.get("ctvr.trials")
    if trials is None:
        return [("Question", f"How do these methods compare on the test split of {stream}, over new seeds?")]
    facts = [
        ("Question", f"Which settings of {settings.get('method')} are best on {stream}?"),
        ("Budget", f"{trials} trials, {sweep.tags.get('ctvr.complete_trials')} of them complete; "
                   f"searched by {settings.get('search.searcher')}, {settings.get('search.scheduler')}"),
    ]  # fmt: skip
    best, rule = best_trials(tracker, sweep.name, None), selection_metric(sweep)
    if "," in rule[0]:
        facts.append(("Front of the search", describe_front(best, rule)))
    elif have_no_winner(best, rule[0]):
        facts.append(("Winner of the search", f"none, because all {len(best)} complete trials are equal"))
    else:
        facts.append(("Winner of the search", f"{best[0].name}, run {best[0].run_id}"))
    facts.append(
        (
            "Confirmation",
            _verdict(sweep.name, sweep, tracker).removeprefix("confirmation: ") or "none was run, or it has not ended",
        )
    )
    return facts


def _searched(sweep: RunRecord | None, tracker: Tracker) -> SearchedSpace | None:
    """Return the space and trials of a search, by its first objective; None for other sweeps."""
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
        )
        for run in runs
    ]
    unit = "" if metric.startswith(COSTS) else ", in points"
    return SearchedSpace(_space(sweep, trials), tuple(trials), f"{describe_metric(metric)}{unit}", len(metrics) > 1)


def _state(run: RunRecord) -> str:
    if run.tags.get(COMPLETE) == "true":
        return "complete"
    return f"stopped: {run.tags['ctvr.stopped']}" if "ctvr.stopped" in run.tags else run.status.lower()


def _space(sweep: RunRecord, trials: Sequence[Trial]) -> tuple[SearchedSetting, ...]:
    """Return the recorded space; for a sweep before 0.3, the tried values of the settings in which trials differ."""
    try:
        known = dict(json.loads(sweep.tags[SPACE]))
        return tuple(
            SearchedSetting(name, tuple(each["values"]))
            if "values" in each
            else SearchedSetting(name, (), float(each["low"]), float(each["high"]), bool(each["log"]))
            for name, each in known.items()
        )
    except (KeyError, ValueError, TypeError, RecursionError):  # MLflow's records may be old, or have been edited
        names = trials[0].settings
        varied = [name for name in names if len({trial.settings.get(name) for trial in trials}) > 1]
        return tuple(_as_tried(name, trials) for name in varied)


def _as_tried(name: str, trials: Sequence[Trial]) -> SearchedSetting:
    tried = list(dict.fromkeys(trial.settings.get(name, "") for trial in trials))
    try:
        numbers = sorted({float(value) for value in tried})
    except ValueError:
        return SearchedSetting(name, tuple(tried))
    is_log = numbers[0] > 0 and numbers[-1] / numbers[0] > 5
    return SearchedSetting(name, (), numbers[0], numbers[-1], is_log, is_known=False)


def _verdict(name: str, sweep: RunRecord, tracker: Tracker) -> str:
    """Return the sentence on a sweep's confirmation, computed from its complete runs; empty if there is none."""
    confirmation = sweep.tags.get("ctvr.confirmation", "")
    if not confirmation:
        return ""

    def compute() -> str:  # imports torch
        verdict = read_verdict(tracker, name)
        return verdict.text if verdict else ""

    complete = [run for each in (name, confirmation) for run in tracker.find_runs(None, each, {COMPLETE: "true"})]
    return str(memo.remembered(["confirmation", name, [run.run_id for run in complete]], compute))


def _memories(
    tables: Sequence[Table], tracker: Tracker, execution: ExecutionConfig
) -> tuple[list[ModelHistory], Sequence[str]]:
    """Return the forgotten queries of the first run of each row in the first table."""
    runs = {run.run_id: run for run in tracker.find_runs(tags={COMPLETE: "true"})}
    memories, streams = list[ModelHistory](), dict[str, Stream | None]()
    for row in tables[0].rows:
        run = runs[row.runs[0]]
        label = f"{row.label}, seed {row.seeds[0]}"
        digest = run.tags.get("ctvr.stream_digest", "")
        if digest not in streams:
            streams[digest] = execution.stream_of(run)
        try:
            memories.append(_memory(label, run, streams[digest], execution))
        except MissingObject:
            memories.append(
                ModelHistory(label, 0, (), "its commits are no longer in the store, so its history is unknown")
            )
        except CtvrError as error:  # also an untrusted class; the other rows are shown
            memories.append(ModelHistory(label, 0, (), str(error)))
    best = next((n for n, row in enumerate(tables[0].rows) if tables[0].is_best(row, tables[0].columns[0])), 0)
    memories[best] = replace(memories[best], is_open=True)
    found = [stream for stream in streams.values() if stream is not None]
    return memories, [task.name for task in found[0].tasks] if found else []


def _memory(label: str, run: RunRecord, stream: Stream | None, execution: ExecutionConfig) -> ModelHistory:
    """Return the forgotten queries of a run. Its model is loaded only if the result is not cached."""
    if stream is None:
        raise ConfigError(f"its stream {run.settings.get('stream')} does not exist here, or has changed")
    if stream.domain != "videos":
        raise ConfigError(f"it learned from {stream.domain}, so it cannot be queried")
    store, key = execution.places().open_store(), run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", "")
    commits, split = Commits(store, key), run.tags.get("ctvr.split", "test")
    numbers = range(1, len(stream.tasks) + 1)
    history = [commits.record(done).ranks for done in numbers]
    chain = [digest_of_commit(store.get_json("commits", f"{key}/task_{done:03d}")) for done in numbers]
    tasks = [stream.items(index, split) for index in range(len(stream.tasks))]
    queries = {
        f"{item.video}#{number}": (index, item, text)
        for index, items in enumerate(tasks)
        for item in items
        for number, text in enumerate(item.captions)
    }
    found, lost = lost_names(history, {name: index for name, (index, _, _) in queries.items()})
    places = [(index, item) for index, items in enumerate(tasks) for item in items]
    question = ["winners of lost queries", run.settings, run.tags.get("ctvr.presets", ""), stream.digest, chain]
    rows = {name: row for row, name in enumerate(queries)}
    asked = [(index, text) for index, _, text in queries.values()]
    winners = memo.remembered(
        question, lambda: _winners(run, execution, stream, asked, [rows[name] for name in lost]), of_commits=True
    )
    listed, files = [], VideoPlaces(execution.videos) if execution.videos else None
    for name, place in zip(lost, winners):
        task, item, text = queries[name]
        winner_task, winner = places[place]
        shown = (_with_picture(each, files) for each in (item, winner))
        listed.append(LostQuery(text, next(shown), task, history[-1][name].mean, next(shown), winner_task))
    return ModelHistory(label, found, tuple(listed))


def _with_picture(item: Item, files: VideoPlaces | None) -> Item:
    """Return an item whose `path` is the file of its picture; of a video file it is unchanged."""
    if not item.path.endswith(".npy"):
        return item
    file, segment = picture_of(item, files)
    return replace(item, path=file, segment=segment)


def _winners(
    run: RunRecord, execution: ExecutionConfig, stream: Stream, queries: Sequence[tuple[int, str]], lost: Sequence[int]
) -> list[int]:
    """Return the index of the video that the model ranks first for each of `queries`, pairs (task, text)."""
    if not lost:
        return []
    from ctvr.orchestrator.jobs.load_model import load_task  # imports torch
    from ctvr.orchestrator.learning.evaluation.protocols import protocol_of  # imports torch

    model = load_task(run, execution, stream, len(stream.tasks))
    # Normalised scores depend on all queries; otherwise only the lost queries are encoded
    chosen = range(len(queries)) if model.trained.method.declared.normalizes_scores else lost
    blocks = model.gallery()
    scores = dict(zip(chosen, model.scores([queries[row][1] for row in chosen], blocks)))
    of = [index for index, block in enumerate(blocks) for _ in block.items]
    if protocol_of(stream).kind == "cvlm":  # the gallery of a query is its own task
        for row in lost:
            scores[row][[place for place, index in enumerate(of) if index != queries[row][0]]] = -float("inf")
    return [int(scores[row].argmax()) for row in lost]
