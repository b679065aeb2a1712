"""Answers of the models in a table's rows: queries that each model forgot, and categories that the best confuses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctvr.orchestrator import memo
from ctvr.orchestrator.errors import ConfigError, CtvrError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.record.commits import Commits, digest_of_commit
from ctvr.orchestrator.pages.confusion import MAX_CATEGORIES
from ctvr.orchestrator.pages.forgetting import LostQuery, ModelHistory, lost_names
from ctvr.orchestrator.streams.stream import Item, Stream
from ctvr.orchestrator.streams.videos import VideoPlaces, picture_of
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

log = logging.getLogger(__name__)

COMPLETE = "ctvr.complete"
ASKED = 2000  # captions of the confusion of categories at most


@dataclass(frozen=True)
class Answers:
    """Answers of the first run of each row of a table."""

    histories: tuple[ModelHistory, ...]
    tasks: tuple[str, ...] = ()  # names of the stream's tasks
    best: str = ""  # label of the best row
    categories: tuple[tuple[str, str], ...] = ()  # of a caption, and of the video that the best row ranks first


def find_answers(table: Table, tracker: Tracker, execution: ExecutionConfig) -> Answers:
    """Return the forgotten queries of the first run of each row, and the confused categories of the best row."""
    runs = {run.run_id: run for run in tracker.find_runs(tags={COMPLETE: "true"})}
    memories, streams = list[ModelHistory](), dict[str, Stream | None]()
    best = next((n for n, row in enumerate(table.rows) if table.is_best(row, table.columns[0])), 0)
    categories: tuple[tuple[str, str], ...] = ()
    for place, row in enumerate(table.rows):
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
            continue
        except CtvrError as error:  # also an untrusted class; the other rows are shown
            memories.append(ModelHistory(label, 0, (), str(error)))
            continue
        if place == best:
            try:
                categories = _confusion(run, streams[digest], execution)
            except CtvrError as error:
                log.warning("the report lacks the confusion of categories: %s", error)
    memories[best] = replace(memories[best], is_open=True)
    found = [stream for stream in streams.values() if stream is not None]
    names = tuple(task.name for task in found[0].tasks) if found else ()
    return Answers(tuple(memories), names, f"{table.rows[best].label}, seed {table.rows[best].seeds[0]}", categories)


def _memory(label: str, run: RunRecord, stream: Stream | None, execution: ExecutionConfig) -> ModelHistory:
    """Return the forgotten queries of a run. Its model is loaded only if the result is not cached."""
    if stream is None:
        raise ConfigError(f"its stream {run.settings.get('stream')} does not exist here, or has changed")
    if stream.domain != "videos":
        raise ConfigError(f"it learned from {stream.domain}, so it cannot be queried")
    commits, places, queries = _asked(run, stream, execution)
    history = [commits.record(done).ranks for done in range(1, len(stream.tasks) + 1)]
    found, lost = lost_names(history, {name: index for name, (index, _, _) in queries.items()})
    winners = _remembered(run, stream, execution, queries, lost)
    listed, files = [], VideoPlaces(execution.videos) if execution.videos else None
    for name, place in zip(lost, winners):
        task, item, text = queries[name]
        winner_task, winner = places[place]
        shown = (_with_picture(each, files) for each in (item, winner))
        listed.append(LostQuery(text, next(shown), task, history[-1][name].mean, next(shown), winner_task))
    return ModelHistory(label, found, tuple(listed))


def _confusion(run: RunRecord, stream: Stream | None, execution: ExecutionConfig) -> tuple[tuple[str, str], ...]:
    """Return pairs (category of a caption, category of the video ranked first); empty for one or many categories."""
    if stream is None:
        return ()
    _, places, queries = _asked(run, stream, execution)
    if not 2 <= len({item.category for _, item in places}) <= MAX_CATEGORIES:
        return ()
    names = list(queries)[:: max(1, -(-len(queries) // ASKED))]
    winners = _remembered(run, stream, execution, queries, names)
    return tuple((queries[name][1].category, places[place][1].category) for name, place in zip(names, winners))


Queries = dict[str, tuple[int, Item, str]]  # query "<video>#<number>" -> its task, video and text


def _asked(
    run: RunRecord, stream: Stream, execution: ExecutionConfig
) -> tuple[Commits, list[tuple[int, Item]], Queries]:
    """Return the commits of a run, the videos of its split with their tasks, and its queries."""
    key, split = run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", ""), run.tags.get("ctvr.split", "test")
    places = [(index, item) for index in range(len(stream.tasks)) for item in stream.items(index, split)]
    queries = {
        f"{item.video}#{number}": (index, item, text)
        for index, item in places
        for number, text in enumerate(item.captions)
    }
    return Commits(execution.places().open_store(), key), places, queries


def _remembered(
    run: RunRecord, stream: Stream, execution: ExecutionConfig, queries: Queries, names: Sequence[str]
) -> list[int]:
    """Return the index of the video that the model ranks first for each named query; the result is cached."""
    store, key = execution.places().open_store(), run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", "")
    numbers = range(1, len(stream.tasks) + 1)
    chain = [digest_of_commit(store.get_json("commits", f"{key}/task_{done:03d}")) for done in numbers]
    rows = {name: row for row, name in enumerate(queries)}
    chosen = [rows[name] for name in names]
    question = ["winners of queries", run.settings, run.tags.get("ctvr.presets", ""), stream.digest, chain, chosen]
    asked = [(index, text) for index, _, text in queries.values()]
    return memo.remembered(question, lambda: _winners(run, execution, stream, asked, chosen), of_commits=True)


def _with_picture(item: Item, files: VideoPlaces | None) -> Item:
    """Return an item whose `path` is the file of its picture; an item with a video file is returned unchanged."""
    if not item.path.endswith(".npy"):
        return item
    file, segment = picture_of(item, files)
    return replace(item, path=file, segment=segment)


def _winners(
    run: RunRecord, execution: ExecutionConfig, stream: Stream, queries: Sequence[tuple[int, str]], asked: Sequence[int]
) -> list[int]:
    """Return the index of the video that the model ranks first, for each query in `asked`.

    Args:
        queries: all queries as pairs (task, text).
        asked: indices in `queries`.
    """
    if not asked:
        return []
    from ctvr.orchestrator.jobs.load_model import load_task  # imports torch
    from ctvr.orchestrator.learning.evaluation.protocols import protocol_of  # imports torch

    model = load_task(run, execution, stream, len(stream.tasks))
    # Normalized scores depend on all queries; otherwise only those in `asked` are encoded
    encoded = range(len(queries)) if model.trained.method.declared.normalizes_scores else asked
    blocks = model.gallery()
    scores = dict(zip(encoded, model.scores([queries[row][1] for row in encoded], blocks)))
    of = [index for index, block in enumerate(blocks) for _ in block.items]
    if protocol_of(stream).kind == "cvlm":  # the gallery of a query is its own task
        for row in asked:
            scores[row][[place for place, index in enumerate(of) if index != queries[row][0]]] = -float("inf")
    return [int(scores[row].argmax()) for row in asked]
