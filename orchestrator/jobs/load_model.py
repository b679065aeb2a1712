"""Trained models by name: a folder, an MLflow run, a sweep, a method, or `best-STREAM`."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator import renamed
from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.commits import Commits
from ctvr.orchestrator.learning.factory import TrainedModel, load_trained, restore_from_commits
from ctvr.orchestrator.learning.gallery_files import read_gallery
from ctvr.orchestrator.learning.resolve import get_method, named_in, resolve
from ctvr.orchestrator.retrieval.model import Block, Model
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.manifest import read_json
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps.best import best_of, can_be_asked
from ctvr.orchestrator.sweeps.comparison import last_value
from ctvr.orchestrator.sweeps.selection import best_trials, selection_metric
from ctvr.orchestrator.tables.selection import split_of
from ctvr.orchestrator.tracking.run_record import RunRecord

log = logging.getLogger(__name__)
BEST = "best-"


def load(name: str, execution: ExecutionConfig) -> Model:
    """Load a trained model for queries.

    Args:
        name: a folder with a saved model; the beginning of an MLflow run id; the name of a run; `best-STREAM`, the
            model that searches chose on validation videos (sweeps/best.py) or, with a warning, the run of the highest
            R@1 if none has chosen; the name of a sweep: its best trial; the name of a method: its newest complete run.
        execution: the runs folder, and the folder of the videos.

    Raises:
        ConfigError: if no model has this name, or its weights are missing.
    """
    if is_folder(name):
        folder = Path(name).expanduser()
        trained = _read(folder)
        _check_searches(name, trained.experiment.run.method)
        return _with_gallery(_make_model(name, trained, execution, None), folder)
    run = find_run(name, execution)
    stream = execution.stream_of(run)
    _check_run(name, run)
    model = _make_model(name, _of_run(run, execution, stream), execution, stream)
    model.run = run.name
    return model


def is_folder(name: str) -> bool:
    """Return whether a name is a folder with a saved model."""
    return os.path.lexists(Path(name).expanduser() / "model.json")  # a FIFO or a loop there is refused by its name


def load_task_checkpoints(name: str, execution: ExecutionConfig) -> Iterator[Model]:
    """Yield the model of a run after each task, loaded lazily.

    `name`, `execution`: as for `load`, except that a folder is refused, which has only the model after the last task.

    Raises:
        ConfigError: if no run has this name, or its commits are missing.
    """
    if is_folder(name):
        raise ConfigError(f"model {name}: a folder has only the model after its last task. Give a run or a method.")
    run = find_run(name, execution)
    stream = execution.stream_of(run)
    if stream is None:
        raise ConfigError(
            f"model {name}: the stream of run {run.name} does not exist here, or has changed. Run it again."
        )
    _check_run(name, run)
    if change := int(run.settings.get("upgrade.task", 0)):
        raise ConfigError(
            f"model {name}: run {run.name} has another backbone from task {change} on (upgrade.task), so its features "
            "before and after cannot be compared. Name a run without an upgrade."
        )
    for done in range(1, len(stream.tasks) + 1):
        try:
            yield Model(name, _restored(run, execution, stream, done), execution.places().open_store(), stream)
        except MissingObject as error:
            raise ConfigError(
                f"model {name}: run {run.name} has no model after task {done}. Train it with --fresh and "
                "tracking.keep_checkpoints=true."
            ) from error


def find_run(name: str, execution: ExecutionConfig) -> RunRecord:
    """Find the complete run with a name (see `load`).

    Raises:
        ConfigError: if no run has this name, with the known names.
    """
    tracker = execution.existing_tracker()
    complete = tracker.find_runs(tags={"ctvr.complete": "true"})
    if re.fullmatch("[0-9a-f]{6,32}", name) and (found := [run for run in complete if run.run_id.startswith(name)]):
        return found[0]
    if found := [run for run in complete if run.name == name]:
        return found[-1]
    if name.startswith(BEST):
        return _best(name, complete)
    if found := [run for run in complete if run.tags.get("ctvr.method") == name]:
        return found[-1]
    if name in EVERY_METHOD or name in CONFIGURATIONS:
        raise ConfigError(f"model: no run of {name} is complete. Train one: ctvr run {name} shapes-5")
    if (sweep := tracker.find_sweep(name)) is not None:
        best = best_trials(tracker, name, 1)[0]
        if "," in selection_metric(sweep)[0]:
            log.warning(
                "%s: a search with several objectives has no best trial; using %s of its Pareto front", name, best.name
            )
        return best
    for run in reversed(tracker.find_runs()):
        if run.name == name or (len(name) >= 6 and run.run_id.startswith(name)):
            again = f"ctvr runs show {name} prints the command"
            raise ConfigError(f"model: run {name} is {run.status.lower()} and not complete. Resume it; {again}.")
    known = [*dict.fromkeys(run.tags.get("ctvr.method", "") for run in complete), *(run.name for run in complete)]
    known += [BEST + stream for stream in dict.fromkeys(run.tags.get("ctvr.stream", "") for run in complete)]
    raise ConfigError(
        f"model: {name!r} is not a folder with a model.json, run id, run, sweep or method of {execution.runs}."
        f"{suggest(name, known)} Known: {', '.join(sorted(known)[:8]) or 'nothing yet'}."
    )


def find_started(name: str, execution: ExecutionConfig) -> RunRecord:
    """Find the complete run with a name (see `load`), or else the run with this id or name that is not complete.

    Raises:
        ConfigError: if no run has this name, with the known names.
    """
    try:
        return find_run(name, execution)
    except ConfigError:
        found = [run for run in execution.existing_tracker().find_runs() if run.tags.get("ctvr.commits")]
        named = [run for run in found if run.name == name or (len(name) >= 6 and run.run_id.startswith(name))]
        if not named:
            raise
        return named[-1]


def count_finished(run: RunRecord, execution: ExecutionConfig, num_tasks: int) -> int:
    """Return the number of tasks, at most `num_tasks`, after which the store has a commit of a run."""
    store, key = execution.places().open_store(), run.tags.get("ctvr.commits", "")
    return next((done for done in range(num_tasks, 0, -1) if store.has("commits", f"{key}/task_{done:03d}")), 0)


def load_task(run: RunRecord, execution: ExecutionConfig, stream: Stream, done: int) -> Model:
    """Load the model of a run after `done` tasks; it searches the videos of these tasks, as stored.

    Raises:
        ConfigError: for a run that cannot be queried.
        MissingObject: if the commit or its weights are missing.
    """
    _check_run(run.name, run)
    trained = _restored(run, execution, stream, done)
    model = Model(run.name, trained, execution.places().open_store(), stream, run=run.name)
    items = [stream.items(index, trained.experiment.evaluation.split) for index in range(done)]
    if list(map(len, items)) != list(map(len, trained.galleries)):
        raise ConfigError(f"model: the stream of run {run.name} has other videos than when it ran. Run it again.")
    model.set_gallery(
        [
            Block(each, rows, (model.stream or stream).method_task(index), stream.tasks[index].name)
            for index, (each, rows) in enumerate(zip(items, trained.galleries))
        ]
    )
    return model


def _best(name: str, complete: list[RunRecord]) -> RunRecord:
    stream = name.removeprefix(BEST)
    if chosen := best_of(stream, complete):
        return chosen
    own = [run for run in complete if run.tags.get("ctvr.stream") == stream]
    if not own:
        streams = ", ".join(sorted({run.tags.get("ctvr.stream", "") for run in complete})) or "none yet"
        raise ConfigError(f"model {name}: stream {stream!r} has no complete run. Streams with runs: {streams}.")
    kept = [run for run in own if can_be_asked(run)]
    if not kept:
        raise ConfigError(f"model {name}: none of the {len(own)} runs of {stream} can be queried. Give a run.")
    on_test = [run for run in kept if split_of(run) == "test"]
    highest = max(on_test or kept, key=lambda run: last_value(run, "stream/t2v/r1"))
    log.warning(
        "%s: no search has chosen a model of %s on validation videos; using the run with the highest R@1, %s",
        name,
        stream,
        highest.name,
    )
    return highest


def _of_run(run: RunRecord, execution: ExecutionConfig, stream: Stream | None) -> TrainedModel:
    """Load a run's model from its commits in the store, else the uploaded one (--keep-model)."""
    tracker = execution.existing_tracker()
    if stream is not None:
        try:
            return _restored(run, execution, stream, len(stream.tasks))
        except MissingObject:
            pass
    try:
        with named_in(f"run {run.name}"):
            folder = tracker.download(run.run_id, "model")
            return replace(_read(folder), galleries=tuple(rows for _, _, rows, _ in read_gallery(folder)))
    except FileNotFoundError as error:
        raise ConfigError(
            f"model: run {run.name} has no model: its commits are not in the store, or its stream has changed, and it "
            "ran without --keep-model. Run it again."
        ) from error


def _restored(run: RunRecord, execution: ExecutionConfig, stream: Stream, done: int) -> TrainedModel:
    """Restore the model from the commit of a run's `done`-th task.

    Raises:
        MissingObject: if the commit is missing.
    """
    settings = run.settings  # as text, until the run is complete
    if run.tags.get("ctvr.complete") == "true":
        settings = read_json(execution.existing_tracker().download(run.run_id, "config.json"))
    presets = [name for name in run.tags.get("ctvr.presets", "").split(",") if name]
    key = run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", "")
    commits = Commits(execution.places().open_store(), key)
    with named_in(f"run {run.name}"):
        experiment = resolve(renamed.settings(settings, quiet=True), None, presets)
    return restore_from_commits(experiment, commits, done, stream)


def _check_run(name: str, run: RunRecord) -> None:
    with named_in(f"run {run.name}"):
        _check_searches(name, str(run.settings["method"]))


def _check_searches(name: str, method: str) -> None:
    """Refuse a method that does not retrieve videos."""
    learned = {
        "images": "images without captions, so it cannot be queried",
        "questions": "questions, so it cannot be queried",
    }
    if what := learned.get(get_method(method).domain):
        raise ConfigError(f"model {name}: {method} learned from {what}. Give a run of a retriever.")


def _read(folder: Path) -> TrainedModel:
    try:
        return load_trained(folder)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError) as error:  # a missing field of a task, or one of another type
        raise ConfigError(f"model {folder}: {error}. Save the model again.") from error


def _with_gallery(model: Model, folder: Path) -> Model:
    """Give a model the features that were saved with it, next to the paths of its stream if that is here."""
    if blocks := read_gallery(folder):
        split, stream = model.trained.experiment.evaluation.split, model.stream
        here = [] if stream is None else [stream.items(index, split) for index in range(len(stream.tasks))]
        names = [[item.video for item in items] for items in here]
        same = names == [[item.video for item in items] for _, items, _, _ in blocks]
        model.set_gallery(
            [Block(here[i] if same else items, rows, task, name) for i, (name, items, rows, task) in enumerate(blocks)]
        )
    return model


def _make_model(name: str, trained: TrainedModel, execution: ExecutionConfig, stream: Stream | None) -> Model:
    root = execution.runs.resolve()
    if stream is None and root.is_dir():
        try:
            stream = load_stream(trained.experiment.run.stream, root, execution.places().videos)
        except ConfigError:
            stream = None
    if root.is_dir():
        return Model(name, trained, execution.places().open_store(), stream)
    folder = tempfile.TemporaryDirectory(prefix="ctvr-")  # a model folder needs no runs folder
    model = Model(name, trained, Store.open(folder.name), stream)
    model.__dict__["_folder"] = folder  # removed with the model
    return model


def close(model: Model) -> None:
    """Remove the temporary store of a model that was loaded without a runs folder."""
    if folder := model.__dict__.pop("_folder", None):
        folder.cleanup()
