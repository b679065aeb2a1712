"""Report of a sweep, a rerun or a stream's runs as one self-contained HTML file (`ctvr report`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import CtvrError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.learning.commits import Commits
from ctvr.orchestrator.pages.forgetting import LostQuery, ModelHistory, lost_names
from ctvr.orchestrator.pages.html import check_page, write_page
from ctvr.orchestrator.pages.report import report
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.sweeps.confirm import read_verdict
from ctvr.orchestrator.sweeps.selection import best_trials
from ctvr.orchestrator.sweeps.table import made_tables
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker


def make_report(name: str, execution: ExecutionConfig, html: Path | None = None) -> str:
    """Write the report of a sweep, of a rerun, or of all complete runs of a stream; return its path.

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
    tables = made_tables(execution, name, None) if sweep else made_tables(execution, None, name)
    facts = _facts(name, sweep, tracker)
    memories, names = _memories(tables, tracker, execution)
    text = report(name, facts, tables, memories, names)
    file = write_page(html or execution.runs / "pages" / f"{Path(name).stem}.html", text)
    if sweep is not None:
        tracker.log_artifacts(sweep.run_id, [file], into="page")  # an artifact of the sweep in MLflow
    return f"written: {file}"


def _facts(name: str, sweep: RunRecord | None, tracker: Tracker) -> list[tuple[str, str]]:
    """Return question, budget, winner and confirmation from MLflow's records."""
    if sweep is None:
        return [("Shown", f"the complete runs of the stream {name} on one split, without trials of searches")]
    settings, stream = sweep.settings, sweep.tags.get("ctvr.stream", "")
    trials = sweep.tags.get("ctvr.trials")
    if trials is None:
        return [("Question", f"How do these methods compare on the test split of {stream}, over fresh seeds?")]
    facts = [
        ("Question", f"Which settings of {settings.get('method')} are best on {stream}?"),
        ("Budget", f"{trials} trials, {sweep.tags.get('ctvr.complete_trials')} of them complete; "
                   f"searched by {settings.get('search.searcher')}, {settings.get('search.scheduler')}"),
    ]  # fmt: skip
    best = best_trials(tracker, name, 1)[0]
    facts.append(("Winner of the search", f"{best.name}, run {best.run_id}"))
    verdict = read_verdict(tracker, name)
    facts.append(("Confirmation", verdict.text if verdict else "none was run, or it has not ended"))
    return facts


def _memories(
    tables: Sequence[Table], tracker: Tracker, execution: ExecutionConfig
) -> tuple[list[ModelHistory], Sequence[str]]:
    """Return the forgotten queries of the first run of each row in the first table."""
    runs = {run.run_id: run for run in tracker.find_runs(tags={"ctvr.complete": "true"})}
    memories, names = [], list[str]()
    for row in tables[0].rows:
        run = runs[row.runs[0]]
        label = f"{row.label}, seed {row.seeds[0]}"
        try:
            model = load(run.run_id, execution)
            memories.append(_memory(label, model, run, execution))
            names = names or [block.name for block in model.gallery()]
        except MissingObject:
            memories.append(
                ModelHistory(label, 0, (), "its commits are no longer in the store, so nothing is known of it")
            )
        except CtvrError as error:  # also an untrusted class; the other rows are shown
            memories.append(ModelHistory(label, 0, (), str(error)))
    return memories, names


def _memory(label: str, model: Model, run: RunRecord, execution: ExecutionConfig) -> ModelHistory:
    key = run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", "")
    commits, blocks = Commits(execution.places().open_store(), key), model.gallery()
    history: list[Mapping[str, float]] = [commits.record(done).ranks for done in range(1, len(blocks) + 1)]
    queries = {
        f"{item.video}#{number}": (index, item, text)
        for index, block in enumerate(blocks)
        for item in block.items
        for number, text in enumerate(item.captions)
    }
    found, lost = lost_names(history, {name: index for name, (index, _, _) in queries.items()})
    scores = model.scores([text for _, _, text in queries.values()], blocks)
    rows = {name: row for row, name in enumerate(queries)}
    places: list[Any] = [(index, item) for index, block in enumerate(blocks) for item in block.items]
    listed = []
    for name in lost:
        task, item, text = queries[name]
        row = scores[rows[name]].clone()
        if model.stream is not None and model.stream.protocol == "cvlm":  # the gallery of a query is its own task
            row[[place for place, (index, _) in enumerate(places) if index != task]] = -float("inf")
        winner_task, winner = places[int(row.argmax())]
        listed.append(LostQuery(text, item, task, history[-1][name], winner, winner_task))
    return ModelHistory(label, found, tuple(listed))
